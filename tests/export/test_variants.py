"""Variants: which are saved, from which text they are calibrated, and that their bytes repeat."""

import numpy as np
import onnx
import pytest
import torch

from export import variants
from export.bundle.directory import load_bundle
from export.bundle.manifest import Quantization
from export.export_errors import ExportError
from export.options import AUTOMATIC, ExportOptions, QuantizationOptions
from export.passes.quantization_scheme import SCHEMES
from export.select_scheme import Choice
from export.texts import Development
from export.to_onnx import export_model
from export.variants import calibration_ids, save_graph, save_variant, trace_model
from export.verification.inputs import sample_inputs
from export.verification.verifier import make_report, verify_graphs
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer


def test_half_precision_is_a_second_variant_with_the_same_golden_answer(tmp_path):
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    manifest = export_model(
        model, tiny_tokenizer(), tmp_path / "out", ExportOptions(precisions=("fp32", "fp16"), texts=TEXTS)
    )
    assert [variant.precision for variant in manifest.variants] == ["fp32", "fp16"]
    assert {state.dtype for state in manifest.variant("fp16").states} == {"float16"}
    golden = [check["precision"] for check in manifest.parity["checks"] if check["name"] == "golden answer"]
    assert golden == ["fp32", "fp16"]
    errors = {c["precision"]: c["max_error"] for c in manifest.parity["checks"] if c["name"].startswith("cached steps")}
    assert errors["fp32"] < 1e-5 < errors["fp16"]
    sizes = [manifest.files[f"{precision}/decode.onnx"].bytes for precision in ("fp32", "fp16")]
    assert sizes[1] < 0.65 * sizes[0]
    assert model.decoder.unembedding.weight.dtype == torch.float32


@pytest.mark.parametrize("precisions", [("fp32", "w4a16"), pytest.param(("fp16", "w4a16"), marks=pytest.mark.slow)])
def test_weights_of_4_bits_for_cuda_are_a_variant_of_their_own(tmp_path, precisions):
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    options = ExportOptions(precisions=precisions, texts=TEXTS)
    manifest = export_model(model, tiny_tokenizer(), tmp_path / "out", options)
    assert [variant.precision for variant in manifest.variants] == list(precisions)
    packed = manifest.variant("w4a16")
    assert packed.quantization == Quantization(
        scheme="w4a16-block32",
        weight_bits=4,
        block_size=32,
        activations="float16",
        kv_cache="float16",
        batch_invariant=False,
    )
    assert {state.dtype for state in packed.states} == {"float16"}
    assert [figures.scheme for figures in packed.comparison] == ["fp32", "w4a16-block32"]
    assert load_bundle(tmp_path / "out").variant("w4a16") == packed


@pytest.mark.usefixtures("fresh_traces")
def test_exporting_twice_gives_the_same_bytes_and_leaves_the_model_alone(tmp_path):
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        traced, inline_limit = trace_model(model), 1 << 30 if name == "one" else 0
        variant = save_variant(traced, tmp_path / name, SCHEMES["fp32"], inline_limit=inline_limit)
    one, two = onnx.load(tmp_path / "one/fp32/decode.onnx"), onnx.load(tmp_path / "two/fp32/decode.onnx")
    for tensor in two.graph.initializer:  # loading has taken the weights back in, and left a mark
        tensor.ClearField("data_location")
    assert one.SerializeToString() == two.SerializeToString()
    assert [file.name for file in (tmp_path / "two/fp32").iterdir()] != ["decode.onnx"]
    assert (tmp_path / "two/fp32/decode.onnx").stat().st_size < (tmp_path / "one/fp32/decode.onnx").stat().st_size / 2
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training
    assert make_report(verify_graphs(tmp_path / "two", variant, model, sample_inputs(model.config)).checks)["passed"]


def test_weights_that_cannot_be_written_raise_the_error_of_the_system(tmp_path):
    values = np.arange(1000, dtype=np.float32)
    graph = onnx.helper.make_graph([], "weights", [], [], [onnx.numpy_helper.from_array(values, "weights")])
    (tmp_path / "decode.onnx.data").mkdir()
    with pytest.raises(IsADirectoryError, match=r"decode\.onnx\.data"):
        save_graph(onnx.helper.make_model(graph), tmp_path / "decode.onnx", 0)


def test_without_text_to_measure_on_there_is_no_quantized_variant(tmp_path, monkeypatch):
    monkeypatch.delattr(variants, "trace_model")
    model = tiny_model(tiny_config("decoder"))
    with pytest.raises(ExportError, match=r"int8: there is no text to measure on .* fix: .*--development FILE"):
        export_model(model, tiny_tokenizer(), tmp_path / "out", ExportOptions(precisions=("fp32", "int8")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("architecture", [pytest.param("encoder_decoder", marks=pytest.mark.slow), "decoder"])
def test_a_bundle_keeps_the_chosen_scheme_only_and_the_figures_of_all(architecture, tmp_path):
    model, limit = tiny_model(tiny_config(architecture)), 100.0
    schemes = QuantizationOptions(max_loss=limit)
    options = ExportOptions(precisions=("int8", "fp32"), quantization=schemes, texts=TEXTS)
    manifest = export_model(model, tiny_tokenizer(), tmp_path / "out", options)
    assert [variant.precision for variant in manifest.variants] == ["int8", "fp32"]
    int8 = manifest.variant("int8")
    assert [figures.scheme for figures in int8.comparison] == ["fp32", *AUTOMATIC["int8"]]
    (taken,) = [figures.scheme for figures in int8.comparison if figures.chosen]
    assert int8.quantization is not None
    assert int8.quantization.scheme == taken
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {"int8", "fp32"}
    assert load_bundle(tmp_path / "out") == manifest


def test_the_graphs_are_those_of_the_chosen_scheme_and_not_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "select_scheme", lambda *_, **__: Choice("w8a8-dynamic", (), {}, {}))
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    options = ExportOptions(precisions=("int8",), quantization=QuantizationOptions(), texts=TEXTS)
    manifest = export_model(model, tiny_tokenizer(), tmp_path / "out", options)
    quantization = manifest.variant("int8").quantization
    assert quantization is not None
    assert quantization.scheme == "w8a8-dynamic"
    graph = onnx.load(tmp_path / "out" / manifest.variant("int8").graphs["decode"].file)
    assert "ReduceMax" in {node.op_type for node in graph.graph.node}, "the largest value of each row"


def test_sources_without_references_are_answered_for_calibration():
    model, tokenizer = tiny_model(tiny_config()), tiny_tokenizer()
    samples = calibration_ids(model, tokenizer, (), Development(TEXTS))
    assert len(samples) == len(TEXTS)
    for (source, target), text in zip(samples, TEXTS, strict=True):
        assert source == [*tokenizer.encode(text), 2]
        assert target[0] == 1
        assert 2 not in target


def test_long_texts_are_cut_for_calibration():
    model, tokenizer = tiny_model(tiny_config("decoder")), tiny_tokenizer()
    text = " ".join(TEXTS * 5)
    samples = calibration_ids(model, tokenizer, [("", text)], Development(()))
    assert [token for _, target in samples for token in target[1:]] == tokenizer.encode(text)
    assert max(len(target) for _, target in samples) == model.config.max_target_len


@pytest.mark.parametrize(
    ("architecture", "texts"), [("decoder", ["", " "]), ("encoder", [" "]), ("encoder_decoder", [])]
)
def test_text_without_a_token_cannot_calibrate(architecture, texts):
    development = Development(texts, (), "an empty file")
    with pytest.raises(ExportError, match=r"calibration: this model can read no text of an empty file; fix: give text"):
        calibration_ids(tiny_model(tiny_config(architecture)), tiny_tokenizer(), (), development)


@pytest.mark.parametrize(("invariant", "promised"), [(True, True), (False, False)])
def test_a_bundle_promises_no_more_than_this_processor_keeps(invariant, promised, tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "is_batch_invariant", lambda scheme: invariant)
    variant = save_variant(trace_model(tiny_model(tiny_config("encoder_decoder"))), tmp_path, SCHEMES["w4-block32"])
    assert variant.quantization is not None
    assert (variant.quantization.scheme, variant.quantization.batch_invariant) == ("w4-block32", promised)
