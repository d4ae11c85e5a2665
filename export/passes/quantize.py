"""Quantization of the optimized graphs in a `QuantizationScheme`: of fp32 graphs, and for `w4a16` of fp16 graphs.

Products read int8 or 4-bit weights, embeddings become int8, and caches may hold int8. Norms, softmax, biases and
residuals stay as they are. The schemes, and the use of each:

    w8a8-dynamic            u8 activations, one scale per row from its largest magnitude; no calibration
    w8a8-static             u8 activations, one calibrated scale and zero point per product; the fastest for many rows
    w8a8-dynamic-kv8        w8a8-dynamic with an int8 KV cache, for self-attention and cross-attention
    w8a8-static-kv8         w8a8-static with the same int8 KV cache
    w8-block64              int8 weights in blocks of 64 inputs, activations quantized per block: fast for 1 to 4 rows
    w4-block32, w4-block128 the same with 4-bit weights in blocks of 32 or 128 in the decoder; the encoder, whose
                            products have many rows, uses "w8a8-dynamic"
    w4a16-block32           4-bit weights in blocks of 32 inputs, float16 activations, in every graph: for CUDA

This module runs no graph; `export.select_scheme` measures the quality loss of a scheme.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, helper

from export.bundle.manifest import Role
from export.passes.calibrate import Ranges
from export.passes.error_feedback import Feedback
from export.passes.graph_rewriter import MICROSOFT, GraphRewriter
from export.passes.held_weights import Weights
from export.passes.integer_weights import INT8_MAX, symmetric_columns
from export.passes.optimize import remove_unused, sum_in_norms
from export.passes.quantization_scheme import QuantizationScheme
from export.passes.quantize_caches import CacheQuantizer
from export.passes.quantize_products import ProductQuantizer
from export.passes.unpad_encoder import unpad_encoder

SCATTER_OPSET = 24  # TensorScatter


def quantize(
    model: ModelProto,
    role: Role,
    scheme: QuantizationScheme,
    ranges: Ranges | None = None,
    feedback: Feedback | None = None,
    weights: Weights | None = None,
) -> ModelProto:
    """Quantize the graph of `role`, optimized and with named weights; `scheme.needs_ranges` requires `ranges`.

    feedback: rounds the weights of products; without, they become the nearest integers. weights: of the graph's model,
    if the graph lacks some.
    """
    if not scheme.is_quantized:
        return model
    assert ranges is not None or not scheme.needs_ranges, scheme.name
    scheme = scheme.for_role(role)
    rewriter, divided = GraphRewriter(model.graph, scheme.name, weights), dict[str, np.ndarray | float]()
    if scheme.has_int8_cache:
        assert ranges is not None
        caches = CacheQuantizer(rewriter, ranges)
        caches.narrow_caches()
        divided = caches.divided
        for opset in model.opset_import:
            opset.version = max(opset.version, SCATTER_OPSET) if opset.domain == "" else opset.version
    quantize_embeddings(rewriter)
    ProductQuantizer(rewriter, scheme, ranges, feedback, divided).quantize_products()
    if role == "encode" and scheme.has_integer_products:
        model = unpad_encoder(model)
    if scheme.activations == "block":
        model = sum_in_norms(model)
    if not any(opset.domain == MICROSOFT for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return remove_unused(model)


def quantize_embeddings(rewriter: GraphRewriter) -> None:
    """Gather(table) → Gather(int8 table) times Gather(one scale per row), in the type of the table. Position tables
    stay as they are."""
    replacements: dict[int, list[NodeProto]] = {}
    for i, node in enumerate(rewriter.graph.node):
        if node.op_type != "Gather" or not node.input[0].endswith(".embedding.tokens.weight"):
            continue
        table_NK = rewriter.array(node.input[0])
        rows_KN, scale_N = symmetric_columns(table_NK.T, most=INT8_MAX)
        name = f"{node.input[0]}.rows.int8"
        rows = rewriter.constant(f"{name}.weight", rows_KN.T)
        scales = rewriter.constant(f"{name}.scale", scale_N[:, None])
        row, scale = (rewriter.add("Gather", [table, node.input[1]]) for table in (rows, scales))
        kind = rewriter.constants[node.input[0]].data_type
        rewriter.add("Mul", [rewriter.add("Cast", [row], to=kind), scale], node.output[0])
        replacements[i] = rewriter.added()
    rewriter.replace(replacements)
