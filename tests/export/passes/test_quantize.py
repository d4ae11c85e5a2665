"""Quantized graphs: their nodes, their caches, and how near they are to fp32."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from export.graphs.encoder import embed_signature
from export.graphs.tracing import trace
from export.limits import limits_of
from export.passes.calibrate import Ranges
from export.passes.optimize import name_weights, optimize, weight_names
from export.passes.quantization_scheme import SCHEMES
from export.passes.quantize import quantize
from export.variants import arrays_of, save_variant
from export.verification.ort_graphs import OrtGraphs, is_batch_invariant
from tests.export.passes.quantized_graphs import QUANTIZED, SOURCES, TARGETS, graph, operators, prepared, traced_for
from tests.tiny import EMBEDDER, tiny_config, tiny_model


def served(architecture, scheme, directory):
    model, _, ranges = prepared(architecture)
    traced = traced_for(architecture, is_half=SCHEMES[scheme].is_half)
    variant = save_variant(traced, directory, SCHEMES[scheme], ranges=ranges)
    return OrtGraphs(directory, variant, limits_of(model.config))


def logits(graphs, rows):
    """Of the last of several tokens read one after another, (rows, V)."""
    cross = {}
    if "encode" in graphs.roles:
        sources = [SOURCES[row] for row in rows]
        cross = {**graphs.encode(sources), "source_lengths": np.array([len(s) for s in sources], np.int32)}
        cross.pop("encoder_states")
    buffers = graphs.buffers(len(rows), 16)
    for place in range(4):
        blocks = [[TARGETS[row][place]] for row in rows]
        prediction = graphs.decode(blocks, [place] * len(rows), buffers, cross)
    return prediction.logits


# ---- graphs


@pytest.mark.parametrize("scheme", ["fp32", "fp16"])
def test_forms_that_are_not_quantised_leave_a_graph_alone(scheme):
    _, traced, _ = prepared("encoder_decoder")
    copy = ModelProto()
    copy.CopyFrom(traced.graphs["decode"])
    assert quantize(copy, "decode", SCHEMES[scheme]).SerializeToString() == traced.graphs["decode"].SerializeToString()


@pytest.mark.parametrize("scheme", ["w8a8-dynamic", "w8a8-static"])
def test_layers_after_the_pooling_stay_floats(scheme):
    model = tiny_model(tiny_config("encoder", **EMBEDDER))
    given = name_weights(optimize(trace(embed_signature(model))), weight_names(arrays_of(model)))
    before = [node.op_type for node in given.graph.node]
    found = quantize(given, "embed", SCHEMES[scheme], Ranges({}, {}))
    assert [node.op_type for node in found.graph.node] == before
    assert {tensor.data_type for tensor in found.graph.initializer} == {TensorProto.FLOAT}


@pytest.mark.parametrize("scheme", ["w8a8-static", "w8-block64", "w4-block32"])
def test_norms_sum_residuals_where_products_are_for_few_rows(scheme):
    found = operators(graph("decoder rms", "decode", scheme))
    fused = (
        2 * 2 if SCHEMES[scheme].activations == "block" else 0
    )  # two layers; the first norm of all has nothing to sum
    assert found.count("SkipSimplifiedLayerNormalization") == fused
    assert found.count("RMSNormalization") == 2 * 2 + 1 - fused


# ---- what they compute

# Root mean square of the error as a share of the logits' spread. Tiny models this lively make several times as much of
# it as trained ones; a wrong scale or zero point makes it 1 and more.
ERRORS = {
    "w8a8-dynamic": 0.1,
    "w8a8-static": 0.105,
    "w8a8-dynamic-kv8": 0.12,
    "w8a8-static-kv8": 0.12,
    "w8-block64": 0.1,
    "w4-block32": 0.7,
    "w4-block128": 0.7,
    "w4a16-block32": 0.7,
}


BUCKETED, DECODER = (pytest.param(name, marks=pytest.mark.slow) for name in ("encoder_decoder bucketed", "decoder"))


def kinds_and_schemes():
    """Graphs of float16 are traced for one scheme alone: one model has them."""
    for scheme in QUANTIZED:
        for kind in ("encoder_decoder", "encoder_decoder rotary", "encoder_decoder bucketed", "decoder", "decoder rms"):
            is_fast = kind == "encoder_decoder" or (kind == "decoder rms" and not SCHEMES[scheme].is_half)
            yield pytest.param(kind, scheme, marks=[] if is_fast else [pytest.mark.slow])


@pytest.mark.parametrize(("architecture", "scheme"), list(kinds_and_schemes()))
def test_logits_are_near_those_of_fp32(architecture, scheme, tmp_path):
    rows = range(len(SOURCES))
    expected = logits(served(architecture, "fp32", tmp_path / "fp32"), rows)
    actual = logits(served(architecture, scheme, tmp_path / "scheme"), rows)
    error = np.sqrt(np.square(actual - expected).mean()) / expected.std()
    assert 0 < error < ERRORS[scheme] * (2 if architecture == "decoder rms" else 1)  # its norms leave the mean in


@pytest.mark.parametrize("architecture", ["encoder_decoder", BUCKETED, DECODER, "decoder rms"])
@pytest.mark.parametrize("scheme", [name for name in QUANTIZED if name not in ("w4-block128", "w4a16-block32")])
def test_a_row_is_the_same_alone_and_among_others(architecture, scheme, tmp_path):
    """On every processor, but in 4 bits where kernels differ for a single product as well."""
    graphs = served(architecture, scheme, tmp_path)
    together = logits(graphs, range(4))
    same = [np.array_equal(logits(graphs, [row])[0], together[row]) for row in range(4)]
    assert all(same) == is_batch_invariant(SCHEMES[scheme]), same
    assert SCHEMES[scheme].weight_bits == 4 or all(same), same
