"""Inputs and outputs of graphs: padding, garbage, the shared memory of past and present, and a server's sessions."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch

from export.bundle.directory import load_bundle
from export.bundle.manifest import SESSION_CONFIG, GraphSpec, Limits, Variant
from export.passes.quantization_scheme import SCHEMES
from export.passes.quantize import quantize
from export.verification.ort_graphs import GARBAGE, OrtGraphs, garbage, is_batch_invariant, lengths, padded, round_up


@pytest.fixture
def generation(tiny_generation_bundle):
    manifest = load_bundle(tiny_generation_bundle)
    return OrtGraphs(tiny_generation_bundle, manifest.variant("fp32"), manifest.limits)


@pytest.fixture
def masked(tiny_encoder_bundles):
    manifest = load_bundle(tiny_encoder_bundles["masked"])
    return OrtGraphs(tiny_encoder_bundles["masked"], manifest.variant("fp32"), manifest.limits)


def test_rows_are_padded_to_a_multiple():
    rows = [(1, 2, 3), (4,)]
    assert padded(rows, 2).tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
    assert padded(rows, 16).shape == (2, 16)
    assert padded(rows, 1).dtype == np.int64
    assert lengths(rows).tolist() == [3, 1]
    assert [round_up(length, 16) for length in (0, 1, 16, 17)] == [0, 16, 16, 32]


def test_garbage_is_finite_and_outside_of_rounded_values():
    assert garbage((2,), np.float32).tolist() == [37.0, 37.0]
    assert garbage((2,), "int8").tolist() == [-128, -128]


def test_places_to_predict_count_over_the_padded_batch(masked):
    feeds = masked.encoder_feeds([(4, 5, 2), (6, 2)], [(0, 2), (1,)])
    assert feeds["source"].shape == (2, 4)
    assert feeds["places"].tolist() == [0, 2, 5]


def test_attention_passes_are_as_wide_as_their_longest_row(tiny_attention_bundle):
    manifest = load_bundle(tiny_attention_bundle)
    graphs = OrtGraphs(tiny_attention_bundle, manifest.variant("fp32"), manifest.limits)
    weights = graphs.attend([(4, 5, 2), (6, 2)], [(1, 6), (1,)])
    widths = {name: array.shape[-2:] for name, array in weights.items()}
    assert widths == {"encoder_attention": (3, 3), "decoder_attention": (2, 2), "cross_attention": (2, 3)}


def test_a_prefill_is_padded_and_a_step_is_not(generation):
    buffers = generation.buffers(2, 32)
    feeds = generation.decoder_feeds([(1, 5, 6), (1,)], [0, 0], buffers, {})
    assert feeds["tokens"].shape == (2, 16)
    assert (feeds["lengths"].tolist(), feeds["total_length"]) == ([3, 1], 16)
    assert feeds["positions"].tolist() == [[0, 2], [1, 0]]
    feeds = generation.decoder_feeds([(7,), (8,)], [3, 1], buffers, {}, [(1, 0)])
    assert feeds["tokens"].tolist() == [[7], [8]]
    assert (feeds["lengths"].tolist(), feeds["total_length"]) == ([4, 2], 32)
    assert feeds["positions"].tolist() == [[1, 0]]
    assert feeds["past.self_key.0"] is buffers["self_key.0"]


def test_a_step_writes_its_position_of_the_callers_buffers(generation):
    buffers = generation.buffers(1, 16)
    assert all((array == GARBAGE).all() for array in buffers.values())
    first = generation.decode([(1, 5, 6)], [0], buffers, {})
    before = buffers["self_key.0"].copy()
    run, second = generation.step([(7,)], [3], buffers, {}, top_k=2)
    assert np.isnan(second.logits).all(), "bound, but not run yet"
    run()
    written = (buffers["self_key.0"] != before).any(axis=(0, 1, 3))
    assert np.flatnonzero(written).tolist() == [3]
    whole = generation.decode([(1, 5, 6, 7)], [0], generation.buffers(1, 16), {}, requested=[(0, 2), (0, 3)], top_k=2)
    np.testing.assert_allclose(whole.logits, [first.logits[0], second.logits[0]], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second.logprobs + second.normaliser[:, None], second.logits, rtol=1e-5, atol=1e-5)
    assert second.top_ids.tolist() == [np.argsort(-second.logits[0], kind="stable")[:2].tolist()]


def test_without_requested_positions_nothing_is_predicted(generation):
    prediction = generation.decode([(1, 5)], [0], generation.buffers(1, 16), {}, requested=())
    assert prediction.logits.shape == (0, 27)


@pytest.mark.parametrize("scheme", ["w8a8-dynamic", "w4-block32"])
def test_products_are_recorded_with_their_inputs_and_outputs(scheme, tmp_path):
    random = np.random.default_rng(1)
    weight_KN, x_BK = (random.standard_normal(shape).astype(np.float32) for shape in ((64, 16), (3, 64)))
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        decode (float[B, 64] x) => (float[B, 16] y) { y = MatMul(x, weight) }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight_KN, "layer.weight"))
    model.graph.node[0].input[1] = "layer.weight"
    onnx.save(quantize(model, "decode", SCHEMES[scheme]), tmp_path / "decode.onnx")
    graph = GraphSpec(role="decode", file="decode.onnx", inputs=("x",), outputs=("y",))
    graphs = OrtGraphs(
        tmp_path,
        Variant(precision=SCHEMES[scheme].precision, graphs={"decode": graph}, states=()),
        Limits(vocab_size=16, max_source_len=0, max_target_len=8, max_block=0),
    )
    (recorded,) = graphs.record_products("decode", {"x": x_BK})
    assert recorded.weight == "layer.weight"
    assert np.array_equal(recorded.input_RK, x_BK)
    error_RN = recorded.output_RN - x_BK @ weight_KN
    size = float(np.sqrt(np.square(error_RN).mean()))
    assert 1e-5 < size < (1.0 if scheme.startswith("w4") else 0.2), "rounded, but not wrong"
    weight = graphs.roundings("decode").products["layer.weight"]
    assert weight.round_input is not None
    expected_RN = weight.round_input(torch.from_numpy(x_BK)).numpy() @ weight.values_NK.T
    np.testing.assert_allclose(recorded.output_RN, expected_RN, rtol=1e-4, atol=1e-4)


def test_sessions_are_made_with_the_settings_of_the_bundle(tiny_translation_bundle):
    manifest = load_bundle(tiny_translation_bundle)
    sessions = OrtGraphs(tiny_translation_bundle, manifest.variant("fp32"), manifest.limits).sessions
    for session in sessions.values():
        options = session.get_session_options()
        assert options.intra_op_num_threads == options.inter_op_num_threads == 1
        assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        for key, value in SESSION_CONFIG.items():
            assert options.get_session_config_entry(key) == value


@pytest.mark.parametrize(("scheme", "is_invariant"), [("fp32", True), ("w8a8-static", True), ("w4-block128", False)])
def test_batch_invariance_of_these_schemes_is_known_without_measuring(scheme, is_invariant, monkeypatch):
    monkeypatch.delattr("export.verification.ort_graphs.open_session")
    assert is_batch_invariant.__wrapped__(SCHEMES[scheme]) == is_invariant
