"""A pass over fp16 graphs: bias and residual of a product are added by the norm that reads their sum.

A decode step on CUDA takes as long as its kernels take to start, and these additions are a third of them. ONNX Runtime
fuses them itself only where nothing but the norm reads the sum, after which models that norm before each layer are not
built. The fused kernel sums squares in float32, in ONNX Runtime 1.31; earlier ones overflow in fp16.

On the CPU the same nodes stay apart, see `export.passes.optimize.sum_in_norms`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from onnx import ModelProto, NodeProto, TensorProto, helper

from export.passes.graph_rewriter import MICROSOFT
from export.passes.optimize import attributes_of, makers_of, remove_unused

FUSED = {"LayerNormalization": "SkipLayerNormalization", "RMSNormalization": "SkipSimplifiedLayerNormalization"}


class _Branch(NamedTuple):
    """A product that is added to the residual, and its bias; "" if it has none."""

    product: str
    bias: str


def fuse_norms(model: ModelProto) -> ModelProto:
    """Add(residual, product + bias) → norm becomes one node, which outputs both the sum and its norm.

    Only sums with a product or a recurrent layer as an operand are fused, which broadcast nothing, and norms over the
    last axis.
    """
    graph = model.graph
    makers, tensors = makers_of(graph), {tensor.name: tensor for tensor in graph.initializer}
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    for norm in graph.node:
        add = makers.get(norm.input[0]) if norm.op_type in FUSED else None
        if add is None or add.op_type != "Add" or attributes_of(norm).get("axis", -1) != -1:
            continue
        branches = [_branch(makers.get(name), makers, tensors, uses) for name in add.input]
        index = next((index for index, branch in enumerate(branches) if branch is not None), None)
        if index is None or any(name in tensors for name in add.input):
            continue
        branch, residual, total = branches[index], add.input[1 - index], add.output[0]
        assert branch is not None
        shift = [norm.input[2] if len(norm.input) > 2 else ""] if norm.op_type == "LayerNormalization" else []
        fused = helper.make_node(
            FUSED[norm.op_type],
            [branch.product, residual, norm.input[1], *shift, branch.bias],
            [norm.output[0], "", "", total] if uses[total] > 1 else [norm.output[0]],
            name=norm.name,
            domain=MICROSOFT,
            epsilon=attributes_of(norm).get("epsilon", 1e-5),
        )
        add.CopyFrom(fused)
        norm.Clear()
    kept = [node for node in graph.node if node.op_type]
    del graph.node[:]
    graph.node.extend(kept)
    if not any(opset.domain == MICROSOFT for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return remove_unused(model)


def _branch(
    node: NodeProto | None,
    makers: Mapping[str, NodeProto],
    tensors: Mapping[str, TensorProto],
    uses: Mapping[str, int],
) -> _Branch | None:
    """A product with weights, or one plus a bias that nothing else reads; or what a recurrent layer computed."""
    if node is None:
        return None
    if node.op_type == "Cast" and (relu := makers.get(node.input[0])) is not None and relu.op_type == "Relu":
        return _Branch(node.output[0], "")
    if node.op_type == "MatMul":
        return _Branch(node.output[0], "") if node.input[1] in tensors else None
    if node.op_type != "Add" or uses[node.output[0]] > 1:
        return None
    for product, bias in (node.input, reversed(node.input)):
        maker = makers.get(product)
        is_product = maker is not None and maker.op_type == "MatMul" and maker.input[1] in tensors
        if is_product and bias in tensors and len(tensors[bias].dims) == 1:
            return _Branch(product, bias)
    return None
