"""Quantized graphs: their nodes, their caches, and how near they are to fp32."""

from functools import cache

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from export import variants
from export.passes.calibrate import calibrate
from export.passes.integer_weights import symmetric_columns
from export.passes.quantization_scheme import SCHEMES
from export.passes.quantize import quantize
from export.variants import save_variant, trace_model
from export.verification.ort_graphs import OrtGraphs, is_batch_invariant
from export.verification.verifier import limits_of
from tests.tiny import tiny_config, tiny_model

SOURCES = [(5, 6, 7, 2), (6, 2), (9, 8, 7, 6, 5, 2), (4, 4, 4, 2)]
TARGETS = [(1, 8, 9, 5), (1, 4, 5, 6), (1, 5, 5, 8), (1, 9, 8, 7)]
QUANTIZED = [name for name, scheme in SCHEMES.items() if scheme.is_quantized]
ROTARY = {"positions": "rotary", "num_heads": 2}
SHAPES = {
    "encoder_decoder": {},
    "encoder_decoder rotary": ROTARY,
    "encoder_decoder bucketed": {"positions": "bucketed", "position_buckets": 4, "position_range": 5},
    "decoder": ROTARY,
    "decoder rms": {**ROTARY, "norm": "rms", "bias": False},
}


@cache
def prepared(architecture):
    model = tiny_model(tiny_config(architecture.partition(" ")[0], **SHAPES[architecture]))
    has_encoder = model.config.has_encoder
    pairs = [(source if has_encoder else (), target) for source, target in zip(SOURCES, TARGETS, strict=True)]
    return model, trace_model(model, attention=has_encoder), calibrate(model, pairs)


@cache
def graph(architecture, role, scheme):
    _, traced, ranges = prepared(architecture)
    copy = ModelProto()
    copy.CopyFrom(traced.graphs[role])
    return quantize(copy, role, SCHEMES[scheme], ranges)


def operators(model):
    return [node.op_type for node in model.graph.node]


def served(architecture, scheme, directory):
    model, traced, ranges = prepared(architecture)
    variant = save_variant(model, directory, SCHEMES[scheme], ranges=ranges, traced=traced)
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


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("inputs", [32, 100])
def test_products_of_the_largest_weights_and_bytes_are_exact_on_this_processor(rows, inputs):
    """Without VNNI, kernels add up two products in 16 bits."""
    rng = np.random.default_rng(3)
    weight_KN = (rng.choice([-1, 1], (inputs, 48)) * rng.random((1, 48))).astype(np.float32)
    weight_KN[:, :16] = np.abs(weight_KN[:, :16])
    integers_KN, _ = symmetric_columns(weight_KN)
    x_MK = rng.choice([0, 254, 255], (rows, inputs)).astype(np.uint8)
    x_MK[0] = 255
    node = helper.make_node("MatMulInteger", ["x", "weight"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, ["rows", inputs])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, ["rows", 48])
    product = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(integers_KN, "weight")])
    model = helper.make_model(product, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found_MN,) = session.run(None, {"x": x_MK})
    assert np.array_equal(found_MN, x_MK.astype(np.int32) @ integers_KN.astype(np.int32))


# ---- graphs


@pytest.mark.parametrize("scheme", ["fp32", "fp16"])
def test_forms_that_are_not_quantised_leave_a_graph_alone(scheme):
    _, traced, _ = prepared("encoder_decoder")
    copy = ModelProto()
    copy.CopyFrom(traced.graphs["decode"])
    assert quantize(copy, "decode", SCHEMES[scheme]).SerializeToString() == traced.graphs["decode"].SerializeToString()


@pytest.mark.parametrize("scheme", QUANTIZED)
@pytest.mark.parametrize(
    ("architecture", "role"), [("encoder_decoder", r) for r in ("encode", "decode", "align")] + [("decoder", "decode")]
)
def test_no_matrix_is_left_in_float32(architecture, role, scheme):
    model = graph(architecture, role, scheme)
    wide = {
        tensor.name: tuple(tensor.dims)
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2 and min(tensor.dims) > 1
    }
    assert all(name.endswith((".positions", ".cos", ".sin", ".half")) for name in wide), wide
    assert not any(node.op_type == "Gemm" for node in model.graph.node)
    kind = "MatMulNBits" if SCHEMES[scheme].activations == "block" and role == "decode" else "MatMulIntegerToFloat"
    products = {("encoder_decoder", "encode"): 2 * 4 + 2, ("encoder_decoder", "decode"): 2 * 6 + 1}
    # The weights of the last layer are all that `align` wants of it.
    products |= {("encoder_decoder", "align"): 6 + 3, ("decoder", "decode"): 2 * 4 + 1}
    assert operators(model).count(kind) == products[architecture, role]


@pytest.mark.parametrize("scheme", ["w8a8-dynamic", "w8a8-static"])
def test_what_several_products_read_is_quantised_once(scheme):
    model = graph("encoder_decoder", "encode", scheme)
    # Two layers of four products, and one more input that the cross-attention of both layers reads.
    assert operators(model).count("QuantizeLinear") == 2 * 4 + 1


def test_a_static_product_behind_a_rectifier_needs_no_rectifier():
    assert operators(graph("encoder_decoder", "decode", "w8a8-dynamic")).count("Relu") == 2
    assert operators(graph("encoder_decoder", "decode", "w8a8-static")).count("Relu") == 0


@pytest.mark.parametrize("scheme", ["w8a8-static", "w8-block64", "w4-block32"])
def test_norms_sum_residuals_where_products_are_for_few_rows(scheme):
    found = operators(graph("decoder rms", "decode", scheme))
    fused = (
        2 * 2 if SCHEMES[scheme].activations == "block" else 0
    )  # two layers; the first norm of all has nothing to sum
    assert found.count("SkipSimplifiedLayerNormalization") == fused
    assert found.count("RMSNormalization") == 2 * 2 + 1 - fused


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_int8_caches_are_int8_wherever_they_are_seen(architecture):
    model = graph(architecture, "decode", "w8a8-static-kv8")
    caches = [
        v
        for v in (*model.graph.input, *model.graph.output)
        if v.name.partition(".")[0] in ("past", "present", "passed", "cross_key", "cross_value")
    ]
    assert {value.type.tensor_type.elem_type for value in caches} == {TensorProto.INT8}
    counts = {"encoder_decoder": (4, 12), "decoder": (0, 8)}  # TensorScatter; past and present, handed through, sources
    scatters, seen = counts[architecture]
    assert operators(model).count("TensorScatter") == scatters
    assert len(caches) == seen + (4 + 4 if architecture == "encoder_decoder" else 0)


def test_the_steps_of_a_cache_are_in_the_scales_of_the_product_that_fills_it():
    _, _, ranges = prepared("encoder_decoder")
    plain, narrow = (
        graph("encoder_decoder", "encode", "w8a8-dynamic"),
        graph("encoder_decoder", "encode", "w8a8-dynamic-kv8"),
    )
    name = "decoder.blocks.1.cross_attention.key_value.weight.int8.scale"
    before, after = (
        next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name) for model in (plain, narrow)
    )
    keys, values = ranges.cache_steps("cross.1")
    half = len(before) // 2
    np.testing.assert_allclose(before / after, [keys] * half + [values] * half, rtol=1e-5)


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
}


@pytest.mark.parametrize(
    "architecture", ["encoder_decoder", "encoder_decoder rotary", "encoder_decoder bucketed", "decoder", "decoder rms"]
)
@pytest.mark.parametrize("scheme", QUANTIZED)
def test_logits_are_near_those_of_fp32(architecture, scheme, tmp_path):
    rows = range(len(SOURCES))
    expected = logits(served(architecture, "fp32", tmp_path / "fp32"), rows)
    actual = logits(served(architecture, scheme, tmp_path / "scheme"), rows)
    error = np.sqrt(np.square(actual - expected).mean()) / expected.std()
    assert 0 < error < ERRORS[scheme] * (2 if architecture == "decoder rms" else 1)  # its norms leave the mean in


@pytest.mark.parametrize("architecture", ["encoder_decoder", "encoder_decoder bucketed", "decoder", "decoder rms"])
@pytest.mark.parametrize("scheme", [name for name in QUANTIZED if SCHEMES[name].is_batch_invariant])
def test_a_row_is_the_same_alone_and_among_others(architecture, scheme, tmp_path):
    """On every processor, but in 4 bits on those whose kernels say otherwise of a single product, too."""
    graphs = served(architecture, scheme, tmp_path)
    together = logits(graphs, range(4))
    same = [np.array_equal(logits(graphs, [row])[0], together[row]) for row in range(4)]
    assert all(same) == is_batch_invariant(SCHEMES[scheme]), same
    assert SCHEMES[scheme].weight_bits == 4 or all(same), same


@pytest.mark.parametrize(("apart", "told"), [(True, True), (False, False)])
def test_a_bundle_promises_no_more_than_this_processor_keeps(apart, told, tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "is_batch_invariant", lambda scheme: apart)
    variant = save_variant(tiny_model(tiny_config("encoder_decoder")), tmp_path, SCHEMES["w4-block32"])
    assert variant.quantization is not None
    assert (variant.quantization.scheme, variant.quantization.batch_invariant) == ("w4-block32", told)


def test_which_forms_keep_rows_apart():
    assert {name for name, scheme in SCHEMES.items() if scheme.is_quantized and not scheme.is_batch_invariant} == {
        "w4-block128"
    }
    told = SCHEMES["w4-block128"].quantization()
    assert told is not None
    assert not told.batch_invariant
    assert SCHEMES["fp32"].quantization() is None
