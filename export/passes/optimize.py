"""Passes over a traced graph: functions ModelProto → ModelProto that modify their argument and return it.

The passes cover only what the runtime's own optimizer cannot infer or would repeat at every start. A pass that does not
recognize its pattern changes nothing, so `export.graph_checks` counts the required nodes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from export.graphs.large_weights import is_large

Pass = Callable[[ModelProto], ModelProto]
POSITION_TABLES = (".embedding.positions", ".cos", ".sin")


def optimize(model: ModelProto) -> ModelProto:
    """Apply all passes in order."""
    for run in PASSES:
        model = run(model)
    return model


def remove_no_ops(model: ModelProto) -> ModelProto:
    """Remove Identity, and Cast to a value's current type. A node between a graph input and an output stays."""
    graph = model.graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    outputs = {value.name for value in graph.output}
    uses = Counter(name for node in graph.node for name in node.input)
    makers = makers_of(graph)
    kept, renamed = [], dict[str, str]()
    for node in graph.node:
        rename_inputs(node, renamed)
        is_cast = node.op_type == "Cast" and attributes_of(node).get("to", 0) == types.get(node.input[0], -1)
        maker = makers.get(node.input[0]) if node.input else None
        if node.domain != "" or not (node.op_type == "Identity" or is_cast):
            kept.append(node)
        elif node.output[0] not in outputs:
            renamed[node.output[0]] = node.input[0]
            uses[node.input[0]] += uses[node.output[0]] - 1
        elif maker is not None and uses[node.input[0]] == 1 and node.input[0] not in outputs:
            maker.output[list(maker.output).index(node.input[0])] = node.output[0]
        else:
            kept.append(node)
    return _with_nodes(model, kept)


def gather_rows(model: ModelProto) -> ModelProto:
    """GatherND by one trailing index → Gather. PyTorch traces indexing of a table by positions to GatherND."""
    graph = model.graph
    makers, constants = makers_of(graph), constants_of(graph)
    for node in graph.node:
        if node.op_type != "GatherND" or attributes_of(node).get("batch_dims", 0) != 0:
            continue
        unsqueeze = makers.get(node.input[1])
        if unsqueeze is None or unsqueeze.op_type != "Unsqueeze":
            continue
        axes = constants.get(unsqueeze.input[1])
        if axes is not None and axes.tolist() == [-1]:
            gather = helper.make_node("Gather", [node.input[0], unsqueeze.input[0]], list(node.output), axis=0)
            node.CopyFrom(gather)
    return remove_unused(model)


def pack_query_key_value(model: ModelProto) -> ModelProto:
    """Split → GroupQueryAttention(q, k, v) → GroupQueryAttention(packed): the operator splits without copying.

    Rotary models rotate queries and keys between the two and keep the Split.
    """
    graph = model.graph
    makers, constants = makers_of(graph), constants_of(graph)
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    for node in graph.node:
        if node.op_type != "GroupQueryAttention" or not all(node.input[:3]):
            continue
        split = makers.get(node.input[0])
        if split is None or split.op_type != "Split" or list(split.output) != list(node.input[:3]):
            continue
        sizes = constants.get(split.input[1]) if len(split.input) > 1 else None
        attributes, axis = attributes_of(node), attributes_of(split).get("axis", 0)
        heads, kv_heads = attributes.get("num_heads", 0), attributes.get("kv_num_heads", 0)
        in_order = sizes is not None and sizes[1] == sizes[2] and sizes[0] * kv_heads == sizes[1] * heads
        if in_order and axis in (-1, 2) and all(uses[name] == 1 for name in split.output):
            node.input[0], node.input[1], node.input[2] = split.input[0], "", ""
    return remove_unused(model)


def sum_in_norms(model: ModelProto) -> ModelProto:
    """Add → RMSNormalization → SkipSimplifiedLayerNormalization, which outputs both: for graphs that compute few rows.

    One node costs as much as the addition for one row: a step of one row, 12 layers of d768 in 4 bits, is 2 to 4 %
    faster. The fused kernel is a scalar loop: with 64 rows it takes a fifth longer than the two nodes. The pass fuses
    only sums with a product as an operand, which broadcast nothing. It does not fuse LayerNormalization, because the
    fused counterpart computes the variance as E[x²]-mean².
    """
    graph = model.graph
    makers, kept = makers_of(graph), list[NodeProto]()
    for node in graph.node:
        kept.append(node)
        add = makers.get(node.input[0]) if node.op_type == "RMSNormalization" else None
        attributes = attributes_of(node)
        if add is None or add.op_type != "Add" or attributes.get("axis", -1) != -1:
            continue
        if any(name in makers and makers[name].op_type == "MatMulNBits" for name in add.input):
            fused = helper.make_node(
                "SkipSimplifiedLayerNormalization",
                [*add.input, node.input[1]],
                [node.output[0], "", "", add.output[0]],
                domain="com.microsoft",
                epsilon=attributes.get("epsilon", 1e-5),
            )
            add.CopyFrom(fused)
            kept.pop()
    return _with_nodes(model, kept)


def share_initializers(model: ModelProto) -> ModelProto:
    """Merge equal constants, such as the embedding matrix of tied models."""
    graph = model.graph
    first, renamed, kept = dict[tuple[int, tuple[int, ...], bytes], str](), dict[str, str](), list[TensorProto]()
    for tensor in graph.initializer:
        content = tensor.name.encode() if is_held(tensor) else digest(numpy_helper.to_array(tensor))
        key = (tensor.data_type, tuple(tensor.dims), content)
        if key in first:
            renamed[tensor.name] = first[key]
        else:
            first[key] = tensor.name
            kept.append(tensor)
    if renamed:
        replace_items(graph.initializer, kept)
        for node in graph.node:
            rename_inputs(node, renamed)
    return model


def remove_unused(model: ModelProto) -> ModelProto:
    """Remove nodes and constants that no output depends on."""
    graph = model.graph
    needed, kept = {value.name for value in graph.output}, list[NodeProto]()
    for node in reversed(graph.node):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed.update(name for inner in with_inner([node]) for name in inner.input)
    if any(tensor.name not in needed for tensor in graph.initializer):
        replace_items(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in needed])
    return _with_nodes(model, kept[::-1])


def with_inner(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and the nodes of their inner graphs, such as the body of a Scan."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from with_inner(attribute.g.node)


def strip_metadata(model: ModelProto) -> ModelProto:
    """Remove the export's metadata: source files and their paths, stack traces, the exporter's counters in names.

    The result depends on the model only, including the order of attributes, so that repeated exports give the same
    bytes. Inputs, outputs and constants keep their names; every other value is named after its node.
    """
    graph = model.graph
    model.producer_name, model.producer_version, model.doc_string, model.domain = "glossa", "", "", ""
    graph.name, graph.doc_string = "glossa", ""
    del graph.value_info[:]
    del model.metadata_props[:]
    del graph.metadata_props[:]
    fixed = {value.name for value in (*graph.input, *graph.output)}
    renamed: dict[str, str] = {}
    for tensor in graph.initializer:
        tensor.doc_string = ""
        del tensor.metadata_props[:]
    for value in (*graph.input, *graph.output):
        value.doc_string = ""
        del value.metadata_props[:]
    for i, node in enumerate(graph.node):
        node.name, node.doc_string = f"{node.op_type}_{i}", ""
        del node.metadata_props[:]
        replace_items(node.attribute, sorted(node.attribute, key=lambda attribute: attribute.name))
        rename_inputs(node, renamed)
        for j, name in enumerate(node.output):
            if name and name not in fixed:
                renamed[name] = f"{node.name}.{j}" if j else node.name
                node.output[j] = renamed[name]
    return model


WeightNames = Mapping[tuple[tuple[int, ...], bytes], str]  # by shape and digest of the values


def weight_names(weights: Mapping[str, np.ndarray]) -> WeightNames:
    """Return the names of a model's weights, and of their transposes with the suffix ".T"; of equal ones the first.
    Transposes of large ones are not among them."""
    names = dict[tuple[tuple[int, ...], bytes], str]()
    for name, array in weights.items():
        names.setdefault((array.shape, digest(array)), name)
        if array.ndim == 2 and not is_large(array):
            names.setdefault((array.shape[::-1], digest(array.T)), f"{name}.T")
    return names


def name_weights(model: ModelProto, names: WeightNames) -> ModelProto:
    """Name constants after the model weights that they hold."""
    graph = model.graph
    taken, renamed = {value.name for value in (*graph.input, *graph.output)}, dict[str, str]()
    for i, tensor in enumerate(graph.initializer):
        if is_held(tensor):
            continue
        name = names.get((tuple(tensor.dims), digest(numpy_helper.to_array(tensor))), f"constant_{i}")
        name = name if name not in taken else f"constant_{i}"
        taken.add(name)
        renamed[tensor.name] = tensor.name = name
    for node in graph.node:
        rename_inputs(node, renamed)
    return model


def name_top_axes(model: ModelProto) -> ModelProto:
    """Name the axis of a TopK output, and of values gathered by one, after the input that holds its length, which is
    known only at run time."""
    graph = model.graph
    names = {output: node.input[1] for node in graph.node if node.op_type == "TopK" for output in node.output}
    gathered = [node for node in graph.node if node.op_type == "GatherElements" and node.input[1] in names]
    names |= {node.output[0]: names[node.input[1]] for node in gathered}
    for value in graph.output:
        if value.name in names:
            value.type.tensor_type.shape.dim[-1].dim_param = names[value.name]
    return model


def round_up_tables(model: ModelProto, multiple: int) -> ModelProto:
    """Repeat the last row of position tables up to a multiple of rows, for the positions of padding."""
    for tensor in model.graph.initializer:
        if tensor.name.endswith(POSITION_TABLES) and tensor.dims[0] % multiple:
            table = numpy_helper.to_array(tensor)
            rounded = np.pad(table, ((0, -len(table) % multiple), (0, 0)), mode="edge")
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    return model


PASSES: tuple[Pass, ...] = (
    remove_no_ops,
    gather_rows,
    pack_query_key_value,
    share_initializers,
    remove_unused,
    name_top_axes,
    strip_metadata,
)


def digest(array: np.ndarray) -> bytes:
    """Return a digest of an array's values, so that comparing weights needs no second copy of them in memory."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


def makers_of(graph: GraphProto) -> dict[str, NodeProto]:
    """Return the node that produces each value, by value name; inner graphs included."""
    return {name: node for node in with_inner(graph.node) for name in node.output if name}


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name; defaults are not included."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def constants_of(graph: GraphProto) -> dict[str, np.ndarray]:
    """Return small constants, such as axes and sizes, by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if np.prod(tensor.dims) <= 8}


def is_held(tensor: TensorProto) -> bool:
    """Report whether a constant has no values, because they stay in the memory of the model that it is named after."""
    is_external: bool = tensor.data_location == TensorProto.EXTERNAL
    return is_external


def rename_inputs(node: NodeProto, renamed: Mapping[str, str]) -> None:
    """Give the inputs of a node their new names."""
    for i, name in enumerate(node.input):
        if name in renamed:
            node.input[i] = renamed[name]


def _with_nodes(model: ModelProto, nodes: Iterable[NodeProto]) -> ModelProto:
    replace_items(model.graph.node, nodes)
    return model


def replace_items(field: Any, items: Iterable[Any]) -> None:
    """Replace the items of a repeated protocol buffer field, whose stubs share no common type."""
    kept = list(items)
    del field[:]
    field.extend(kept)
