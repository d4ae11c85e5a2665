"""The graphs of a model, with the weights of another one of the same shapes: cheaper than another trace.

A graph names its constants after the weights that they hold (`export.passes.optimize.name_weights`), and holds equal
weights once. A tied table is an exception to "equal stays equal": what the rows of an embedding are gathered from, and
what the last product multiplies by, may differ afterwards.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from export.passes.held_weights import Weights, without_values
from export.passes.optimize import digest, is_held, replace_items, with_inner

TABLE = ".embedding.tokens.weight"


def swap_weights(model: ModelProto, before: Weights, after: Weights) -> set[str] | None:
    """Give a graph the weights `after` in place of `before`; return the names of those that it holds. None: the graph
    would need one constant for weights that differ, and is as it was."""
    graph = model.graph
    equal = dict[tuple[tuple[int, ...], bytes], list[str]]()
    for name, array in before.items():
        equal.setdefault(_content(array), []).append(name)
    held, swapped, renamed = set[str](), dict[str, TensorProto](), dict[str, str]()
    for tensor in graph.initializer:
        name = tensor.name.removesuffix(".T")
        suffix = tensor.name.removeprefix(name)
        if name not in before:
            continue
        names = equal[_content(before[name])]
        different = {_content(after[one]): one for one in reversed(names)}  # the first of those that stay equal
        tables = [one for one in different.values() if one.endswith(TABLE)]
        if len(different) > 2 or len(different) > 1 != len(tables):
            return None
        held.update(names)
        for one in different.values():
            array = after[one].T if suffix else after[one]
            swapped[one + suffix] = (without_values if is_held(tensor) else _tensor)(one + suffix, array)
        others = [one for one in different.values() if one not in tables]
        (renamed[tensor.name],) = [one + suffix for one in others or tables]
    nodes = list(with_inner(graph.node))
    for node in nodes:
        if node.op_type != "Gather":
            for i, name in enumerate(node.input):
                node.input[i] = renamed.get(name, name)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name not in renamed]
    kept += [tensor for name, tensor in swapped.items() if name in used]
    replace_items(graph.initializer, kept)
    return held


def _tensor(name: str, array: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def _content(array: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    return array.shape, digest(array)
