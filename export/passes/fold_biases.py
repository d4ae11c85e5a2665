"""A pass over fp16 graphs: the bias of a product behind a LayerNormalization becomes part of the product's weight.

On CUDA a bias is a kernel of its own: `MatMul` has none, `Gemm` writes it into its result first, and the operator whose
kernel adds it (`GemmFloat8`) does not run on the CPU, where graphs are verified. With the bias in the weight, a decoder
layer of an encoder-decoder starts three kernels less.

A normalized row has the mean 0. So for a norm with gain g and shift b, the outputs y of its M channels satisfy
sum(y / g) = sum(b / g) = c, whatever the input. Adding (1 / g) t^T / c to a weight therefore adds t to its product with
y: a bias, without a node. The sum c may be close to 0, so the pass first adds LEAN * g to the shift, and LEAN * M to c
with it, and takes the effect back with the bias of every product.

Norms after the layers, whose output is also the residual, keep the biases behind them: of six random models that pass
the verification of fp16, three did not with folded biases (errors of 0.020 to 0.026 became 0.033 to 0.041, the limit is
0.03), for a reason that is not known.

Weights in 4 bits (`w4a16`) keep their biases: a bias within them would be rounded to 4 bits, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto

from export.passes.graph_rewriter import GraphRewriter
from export.passes.held_weights import Weights
from export.passes.optimize import attributes_of, remove_unused, replace_items

LEAN = 0.25  # what the outputs of a norm gain, in standard deviations; larger ones cost precision of y, smaller of c
MOST_NOISE = 4.0  # of the constant that stands for the bias, in units of the rounding of float16
GAIN = {"LayerNormalization": 1, "SkipLayerNormalization": 2}  # input with the gain; the shift is the next one


class _Product(NamedTuple):
    """A product with a constant weight, and the node that adds its bias; None if it has none."""

    node: NodeProto
    add: NodeProto | None


def fold_biases(model: ModelProto, weights: Weights | None = None) -> ModelProto:
    """LayerNormalization → MatMul → Add(bias) loses the Add. weights: of the graph's model, if the graph lacks some.

    A norm whose output anything but products reads is left alone, and so is one without a bias behind it.
    """
    rewriter = GraphRewriter(model.graph, "folded", weights)
    readers, uses = defaultdict[str, list[NodeProto]](list), Counter(value.name for value in model.graph.output)
    for node in model.graph.node:
        for name in node.input:
            readers[name].append(node)
            uses[name] += 1
    for norm in model.graph.node:
        if norm.op_type in GAIN:
            _fold_behind(norm, rewriter, readers, uses)
    replace_items(model.graph.node, [node for node in model.graph.node if node.op_type])  # not those that were cleared
    return remove_unused(model)


def _fold_behind(
    norm: NodeProto, rewriter: GraphRewriter, readers: dict[str, list[NodeProto]], uses: Counter[str]
) -> None:
    y, (gain_at, shift_at) = norm.output[0], (GAIN[norm.op_type], GAIN[norm.op_type] + 1)
    products = [_product(node, y, rewriter, readers, uses) for node in readers[y]]
    found = [product for product in products if product is not None]
    if len(found) < uses[y] or not any(product.add for product in found):
        return
    if attributes_of(norm).get("axis", -1) != -1 or len(norm.input) <= shift_at or not norm.input[shift_at]:
        return
    gain_M, shift_M = (rewriter.array(norm.input[i]).astype(np.float64) for i in (gain_at, shift_at))
    if not gain_M.all():  # the value of such a channel, which the sum lacks, is not to be had
        return
    inverse_M = 1 / gain_M
    lean = LEAN if shift_M @ inverse_M >= 0 else -LEAN
    leaned_M = (shift_M + lean * gain_M).astype(np.float16)
    added_M, total = leaned_M - shift_M, float(leaned_M @ inverse_M)
    noise = np.linalg.norm((np.abs(gain_M) + np.abs(leaned_M)) * inverse_M) / abs(total) if total else np.inf
    if noise > MOST_NOISE:
        return
    norm.input[shift_at] = rewriter.constant(f"{norm.input[shift_at]}.leaned", leaned_M)
    for product, add in found:
        weight_MN = rewriter.array(product.input[1]).astype(np.float64)
        bias_N = -added_M @ weight_MN
        if add is not None:
            (bias,) = (name for name in add.input if name != product.output[0])
            bias_N += rewriter.array(bias)
        folded_MN = (weight_MN + np.outer(inverse_M / total, bias_N)).astype(np.float16)
        product.input[1] = rewriter.constant(f"{product.input[1]}.with_bias", folded_MN)
        if add is not None:
            product.output[0] = add.output[0]
            add.Clear()


def _product(
    node: NodeProto, y: str, rewriter: GraphRewriter, readers: dict[str, list[NodeProto]], uses: Counter[str]
) -> _Product | None:
    """The product of y and a constant matrix; None for any other."""
    if node.op_type != "MatMul" or node.input[0] != y or node.input[1] not in rewriter.constants:
        return None
    if len(rewriter.constants[node.input[1]].dims) != 2:
        return None
    result = node.output[0]
    add = readers[result][0] if uses[result] == 1 and readers[result] else None
    if add is None or add.op_type != "Add":
        return _Product(node, None)
    (other,) = (name for name in add.input if name != result)
    is_bias = other in rewriter.constants and len(rewriter.constants[other].dims) == 1
    return _Product(node, add if is_bias else None)
