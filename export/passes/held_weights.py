"""Large weights of graphs, which stay in the memory of their model: a graph has their names, types and shapes alone.

A graph with its weights inside is another copy of them, a pass that moves them makes one more, and each role and scheme
has a graph. So matrices of at least HELD_BYTES that are weights of the model, or transposes of some, become constants
without values until `export.variants.save_graph` writes them. Whoever reads values of constants asks `values_of`; ONNX
itself refuses to read them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from export.passes.optimize import (
    HELD_BYTES,
    POSITION_TABLES,
    WeightNames,
    digest,
    is_held,
    rename_inputs,
    replace_items,
    with_inner,
)

Weights = Mapping[str, np.ndarray]
"""The weights of a model by all of their names."""


def hold(model: ModelProto, arrays: Mapping[str, np.ndarray], names: WeightNames) -> ModelProto:
    """Name the constants of a traced graph that are large weights, and give all others their values.

    arrays: the values of the constants that lack them, by their names. names: see `weight_names`.
    """
    graph, renamed, constants = model.graph, dict[str, str](), list[TensorProto]()
    for tensor in graph.initializer:
        if tensor.name in arrays:
            array = arrays[tensor.name]
            name = _name_of(array, names)
            if name and not name.endswith(POSITION_TABLES):  # which passes change
                renamed[tensor.name] = name
                tensor = without_values(name, array)
            else:
                tensor = numpy_helper.from_array(np.ascontiguousarray(array), tensor.name)
        constants.append(tensor)
    replace_items(graph.initializer, constants)
    for node in with_inner(graph.node):
        rename_inputs(node, renamed)
    return model


def _name_of(array: np.ndarray, names: WeightNames) -> str:
    """The name of a matrix; "" if it is no weight. Transposes are views of weights, as a rule, so no copy is hashed."""
    if array.ndim != 2:
        return ""
    is_turned = array.flags.f_contiguous and not array.flags.c_contiguous
    for matrix, suffix in ((array.T, ".T"), (array, ""))[:: 1 if is_turned else -1]:
        if name := names.get((matrix.shape, digest(matrix))):
            return name + suffix
    return ""


def without_values(name: str, array: np.ndarray) -> TensorProto:
    """Return a constant that has the type and the shape of an array."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)


def values_of(tensor: TensorProto, weights: Weights) -> np.ndarray:
    """Return the values of a constant; those of a transpose are a view."""
    if not is_held(tensor):
        return numpy_helper.to_array(tensor)
    return weights[tensor.name] if tensor.name in weights else weights[tensor.name.removesuffix(".T")].T


def is_large(array: np.ndarray) -> bool:
    """Report whether a graph should not have the values of a constant."""
    return array.ndim == 2 and array.nbytes >= HELD_BYTES
