"""A pass over fp16 graphs: a product with a vector becomes one with a matrix of a single column.

CUDA multiplies batches by a vector through lists of addresses. These are copied to the device from memory that is
reused once the step has been captured, while the captured step goes on reading it. A matrix needs no lists, as all
batches are the lines of one product.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto

from export.passes.graph_rewriter import GraphRewriter
from export.passes.optimize import remove_unused

COLUMN = ".column"  # ends the name of a vector that is a matrix now


def widen_vectors(model: ModelProto) -> ModelProto:
    """MatMul(x, vector) → Squeeze(MatMul(x, column)), where the vector is a constant."""
    graph = model.graph
    rewriter = GraphRewriter(graph, "column")
    vectors = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 1}
    replacements = dict[int, list[NodeProto]]()
    for index, node in enumerate(graph.node):
        if node.op_type != "MatMul" or node.input[1] not in vectors:
            continue
        left, vector = node.input
        column = rewriter.constant(vector + COLUMN, rewriter.array(vector)[:, None])
        product = rewriter.add("MatMul", [left, column])
        rewriter.add("Squeeze", [product, rewriter.constant("column.axis", np.array([-1], np.int64))], node.output[0])
        replacements[index] = rewriter.added()
    rewriter.replace(replacements)
    return remove_unused(model)
