"""A pass over decode graphs with rotary positions: `GroupQueryAttention` rotates queries and keys itself.

The rotation traced from PyTorch consists of two dozen small nodes per layer between the product and the attention. The
operator rotates while it copies the new keys to the cache, and takes query, key and value directly from the product. 12
layers of width 768, 4-bit weights, one thread: 9.1 → 7.7 ms per step with one row, 24.0 → 22.1 with eight.

The operator receives the positions of the original graph, so the pass assumes nothing about the start of a block. Like
every pass, it changes nothing where it does not recognize its pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from export.passes.optimize import constants_of, makers_of, pack_query_key_value, remove_unused

ROTARY_MULTIPLE = 16  # of head_dim and of the rotated dimensions, required by the operator's rotation
PLAIN_INPUTS = 7  # of the operator without rotation: query, key, value, past, lengths
HALF = ".half"  # suffix of a table's name


class _Rotation(NamedTuple):
    """A rotated value, its tables, (positions, rotated dimensions) each, and the positions at which they are read.

    turning: number of rotated dimensions if only the first ones of a head rotate; None if all do.
    """

    source: str
    cos: str
    sin: str
    positions: str
    turning: int | None = None


def fuse_rotary(model: ModelProto, capacity: int) -> ModelProto:
    """Rotated query and key → GroupQueryAttention(do_rotary), packed query, key and value if they were one.

    capacity: the largest `total_length` that the graph gets. The operator requires tables of at least so many rows, and
    on CUDA it reads `total_length` in main memory, so no node may compute it. The rows beyond the last position repeat
    that one's and are never read.

    Runs after `round_up_tables`, which does not recognize the halved tables that the operator reads.
    """
    graph = model.graph
    makers, constants = makers_of(graph), constants_of(graph)
    halves: dict[str, np.ndarray] = {}
    for node in graph.node:
        if node.op_type != "GroupQueryAttention" or not all(node.input) or len(node.input) != PLAIN_INPUTS:
            continue  # also without a cache, as in encoders: their positions are not those of rows
        query, key = (_rotation(makers, constants, name) for name in node.input[:2])
        if query is None or key is None or query[1:] != key[1:]:
            continue
        if _head_dim(graph, node.input[3]) % ROTARY_MULTIPLE:
            continue
        tables = {
            name: _half(graph, name, query.turning, capacity) for name in (query.cos, query.sin) if name not in halves
        }
        found = {name: half for name, half in tables.items() if half is not None}
        if len(found) < len(tables):
            continue
        halves |= found
        node.input[0], node.input[1] = query.source, key.source
        node.input.extend([query.cos + HALF, query.sin + HALF, query.positions])
        node.attribute.append(helper.make_attribute("do_rotary", 1))
    if not halves:
        return model
    graph.initializer.extend(numpy_helper.from_array(half, name + HALF) for name, half in halves.items())
    return pack_query_key_value(remove_unused(model))


def _rotation(makers: Mapping[str, NodeProto], constants: Mapping[str, np.ndarray], name: str) -> _Rotation | None:
    """Match x * cos + cat(-second half, first half) * sin, for x split into heads.

    The pattern may also rotate only the first dimensions of each head and append the others. Returns None if `name` has
    a different structure.
    """

    def made_by(node: NodeProto | None, index: int, op_type: str) -> NodeProto | None:
        maker = makers.get(node.input[index]) if node is not None else None
        return maker if maker is not None and maker.op_type == op_type else None

    merged = makers.get(name)
    merged = merged if merged is not None and merged.op_type == "Reshape" else None
    whole = made_by(merged, 0, "Concat")
    total = made_by(merged if whole is None else whole, 0, "Add")
    kept, turned = made_by(total, 0, "Mul"), made_by(total, 1, "Mul")
    first, joined = made_by(kept, 0, "Reshape" if whole is None else "Slice"), made_by(turned, 0, "Concat")
    rest = None if whole is None else made_by(whole, 1, "Slice")
    negated, split = made_by(joined, 0, "Neg"), made_by(joined, 1, "Split")
    cos = made_by(made_by(kept, 1, "Unsqueeze"), 0, "Gather")
    sin = made_by(made_by(turned, 1, "Unsqueeze"), 0, "Gather")
    if first is None or negated is None or split is None or cos is None or sin is None:
        return None
    assert joined is not None
    is_halved = len(split.input) == 1 and len(split.output) == 2 and split.input[0] == first.output[0]
    in_order = list(joined.input) == [negated.output[0], split.output[0]] and negated.input[0] == split.output[1]
    if not is_halved or not in_order or cos.input[1] != sin.input[1]:
        return None
    if whole is None:
        return _Rotation(first.input[0], cos.input[0], sin.input[0], cos.input[1])
    apart = made_by(first, 0, "Reshape")
    if apart is None or rest is None or rest.input[0] != first.input[0] or len(whole.input) != 2:
        return None
    begin, turning = _last_dims(constants, first)
    if begin != 0 or turning is None or _last_dims(constants, rest)[0] != turning:
        return None
    return _Rotation(apart.input[0], cos.input[0], sin.input[0], cos.input[1], turning)


def _last_dims(constants: Mapping[str, np.ndarray], node: NodeProto) -> tuple[int, int] | tuple[None, None]:
    """Return begin and end of a slice of the last of four axes with step 1; (None, None) for any other slice."""
    begin, end, axis, step = (constants.get(name, np.array([])) for name in node.input[1:])
    is_plain = begin.size == end.size == 1 and axis.tolist() in ([3], [-1]) and step.tolist() == [1]
    return (int(begin.item()), int(end.item())) if is_plain else (None, None)


def _head_dim(graph: GraphProto, past: str) -> int:
    (shape,) = (value.type.tensor_type.shape for value in graph.input if value.name == past)
    return int(shape.dim[3].dim_value)


def _half(graph: GraphProto, name: str, turning: int | None, rows: int) -> np.ndarray | None:
    """Return the first half of a table whose halves are equal, or None if the operator cannot use the table.

    turning: the table's width, if known. rows: the least number of rows of the result, by repetition of the last one.
    """
    tensor = next((tensor for tensor in graph.initializer if tensor.name == name), None)
    if tensor is None or len(tensor.dims) != 2 or tensor.dims[1] % ROTARY_MULTIPLE:
        return None
    if turning is not None and tensor.dims[1] != turning:
        return None
    first, second = np.split(numpy_helper.to_array(tensor), 2, axis=1)
    return (
        np.pad(first, ((0, max(0, rows - len(first))), (0, 0)), mode="edge") if np.array_equal(first, second) else None
    )
