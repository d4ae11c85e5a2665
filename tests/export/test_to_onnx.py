"""From a model to a bundle: what is in it, for every kind of model, and what is refused before and after."""

import dataclasses
import errno
import re
from typing import NamedTuple
from unittest import mock

import pytest
import safetensors.torch
import torch
from onnx import numpy_helper

from export import to_onnx, variants
from export.bundle.directory import BundleExistsError, load_bundle, load_shortlist
from export.export_errors import DiskError, ExportError, FullDiskError, NoGoldenError, ParityError
from export.options import ExportOptions, QuantizationOptions
from export.passes import quantize as passes
from export.texts import Development
from export.to_onnx import export_bundle, export_model, weights_bytes
from export.verification.checks import Check
from export.verification.golden import common_golden
from export.verification.verifier import Verified
from model.checkpoints.checkpoint import CheckpointError, save_checkpoint, weights_of
from model.config import TrainConfig
from tests.tiny import TEXTS, tiny_config, tiny_encoder, tiny_model, tiny_tokenizer


def test_a_bundle_is_complete_and_verified(tiny_translation_bundle, tiny_generation_bundle):
    translation, generation = load_bundle(tiny_translation_bundle), load_bundle(tiny_generation_bundle)
    assert translation.task == "translation"
    assert generation.task == "generation"
    assert list(translation.files) == ["fp32/decode.onnx", "fp32/encode.onnx", "fp32/logprobs.onnx", "tokenizer.json"]
    assert list(generation.files) == ["fp32/decode.onnx", "fp32/logprobs.onnx", "tokenizer.json"]
    assert (translation.limits.max_block, generation.limits.max_block) == (1, 0)
    assert (translation.limits.max_source_len, generation.limits.max_source_len) == (64, 0)
    assert {state.kind for state in translation.variant("fp32").states} == {"self_kv", "cross_kv"}
    assert {state.kind for state in generation.variant("fp32").states} == {"self_kv"}
    assert translation.golden.prompt == (1,)
    assert translation.golden.source[-1] == 2
    assert translation.lineage["model"]["d_model"] == 32
    assert set(translation.lineage["export"]) >= {"torch", "onnx", "onnxruntime", "opset"}


@pytest.mark.parametrize(
    ("scheme", "seed"),
    [
        pytest.param("w8a8-dynamic", 1, marks=pytest.mark.slow),
        pytest.param("w8a8-static-kv8", 2, marks=pytest.mark.slow),
        ("w8-block64", 3),
    ],
)
def test_words_of_a_quantised_model_are_integers_whatever_its_form(scheme, seed, tmp_path):
    pairs = [(text, text) for text in TEXTS]
    schemes = QuantizationOptions(scheme=scheme, max_loss=100.0, development=Development(TEXTS, TEXTS, "texts"))
    manifest = export_model(
        tiny_model(tiny_config("encoder_decoder"), seed),
        tiny_tokenizer(),
        tmp_path / scheme,
        ExportOptions(precisions=("int8",), quantization=schemes, texts=TEXTS, parallel=pairs),
    )
    kept = {state.name: state.dtype for state in manifest.variant("int8").states if state.kind == "shortlist"}
    assert kept == {"word_ids": "int64", "word_weight": "int8", "word_scale": "float32", "word_sum": "int32"}


def test_a_shortlist_is_a_file_of_the_bundle(tiny_attention_bundle, tiny_translation_bundle):
    manifest, tokenizer = load_bundle(tiny_attention_bundle), tiny_tokenizer()
    assert (manifest.shortlist, load_bundle(tiny_translation_bundle).shortlist) == ("shortlist.json", "")
    assert manifest.lineage["shortlist"] == {"pairs": len(TEXTS), "held_out": 0}
    shortlist = load_shortlist(tiny_attention_bundle / manifest.shortlist, vocab_size=manifest.limits.vocab_size)
    allowed = shortlist.allowed([*tokenizer.encode("birds sing"), 2])
    assert allowed >= {2, *tokenizer.encode(TEXTS[2])}
    assert not allowed & set(tokenizer.encode("black cat sleeps under"))


def test_text_from_which_nothing_can_be_learned_is_refused(tmp_path):
    with pytest.raises(ExportError, match=r"shortlist: no pair has 1\.\.100 tokens"):
        export_model(
            tiny_model(tiny_config()), tiny_tokenizer(), tmp_path / "out", ExportOptions(parallel=[("", "the")])
        )
    assert list(tmp_path.iterdir()) == []


def test_graphs_tell_nothing_of_the_machine_they_were_made_on(tiny_translation_bundle):
    for role in ("encode", "decode"):
        data = (tiny_translation_bundle / f"fp32/{role}.onnx").read_bytes()
        for word in (b".py", b"torch", b"/usr", b"/home", b"site-packages", b"namespace", b"pkg."):
            assert word not in data, (role, word)


def without_tracing(monkeypatch, bundle):
    """Exports whose graphs are those of a finished bundle, so that a test need not trace."""

    def copy(_traced, directory, scheme):
        (directory / scheme.precision).mkdir()
        for file in (bundle / scheme.precision).iterdir():
            (directory / scheme.precision / file.name).write_bytes(file.read_bytes())
        return load_bundle(bundle).variant(scheme.precision)

    monkeypatch.setattr(variants, "trace_model", lambda *_, **__: None)
    monkeypatch.setattr(variants, "save_variant", copy)


def test_graphs_of_another_model_never_become_a_bundle(tiny_generation_bundle, tmp_path, monkeypatch):
    without_tracing(monkeypatch, tiny_generation_bundle)
    with pytest.raises(
        ParityError, match=r"verification refused the graphs; nothing was written; prefill .* over 5e-05"
    ) as refusal:
        export_model(tiny_model(tiny_config("decoder"), seed=2), tiny_tokenizer(), tmp_path / "out")
    assert refusal.value.report["passed"] is False
    assert list(tmp_path.iterdir()) == []


PLAIN = ExportOptions(fp16_if_possible=True, texts=TEXTS)


def test_fp16_is_exported_where_it_can_be(tmp_path):
    model, tokenizer = tiny_model(tiny_config("decoder", num_decoder_layers=1)), tiny_tokenizer()
    manifest = export_model(model, tokenizer, tmp_path / "out", PLAIN)
    assert [variant.precision for variant in manifest.variants] == ["fp32", "fp16"]
    assert {check["precision"] for check in manifest.parity["checks"]} == {"fp32", "fp16"}
    assert "left_out" not in manifest.parity
    assert weights_bytes(model, PLAIN) == weights_bytes(model, ExportOptions(precisions=("fp32", "fp16")))
    with pytest.raises(ExportError, match="fp16 is among the precisions already"):
        export_model(model, tokenizer, tmp_path / "other", ExportOptions(precisions=("fp16",), fp16_if_possible=True))


@pytest.mark.parametrize("architecture", ["decoder", pytest.param("encoder_decoder", marks=pytest.mark.slow)])
def test_a_model_that_overflows_in_fp16_is_exported_without_it(architecture, tmp_path):
    """Only fp16 that nobody named is left out: named, it is refused with the same cause."""
    model = too_large_for_fp16(tiny_model(tiny_config(architecture, num_decoder_layers=1)))
    manifest = export_model(model, tiny_tokenizer(), tmp_path / "out", PLAIN)
    assert [variant.precision for variant in manifest.variants] == ["fp32"]
    assert not any(name.startswith("fp16/") for name in manifest.files)
    assert manifest.parity["passed"]
    cause = manifest.parity["left_out"]["fp16"]
    assert ": error" in cause
    with pytest.raises(ParityError, match=cause[:20]):
        export_model(model, tiny_tokenizer(), tmp_path / "named", ExportOptions(precisions=("fp32", "fp16")))


def test_an_encoder_that_overflows_in_fp16_is_exported_without_it(tmp_path):
    model = too_large_for_fp16(tiny_encoder("attention"))
    manifest = export_model(model, tiny_tokenizer(with_mask=True), tmp_path / "out", PLAIN)
    assert list(manifest.golden.vectors) == ["fp32"]
    assert "encode against PyTorch: error" in manifest.parity["left_out"]["fp16"]


def too_large_for_fp16(model):
    """A model with an activation above 65,504, after which a norm follows."""
    (*_, product) = [module for name, module in model.named_modules() if name.endswith("feed_forward.outer")]
    with torch.no_grad():
        product.weight *= 1e5
    return model


def test_fp16_without_an_answer_in_common_is_left_out(tmp_path, monkeypatch):
    common = "export.verification.verifier.common_golden"
    monkeypatch.setattr(common, lambda variants: common_golden(variants) if len(variants) == 1 else None)
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    manifest = export_model(model, tiny_tokenizer(), tmp_path / "out", PLAIN)
    assert [variant.precision for variant in manifest.variants] == ["fp32"]
    assert manifest.parity["left_out"]["fp16"] == (
        "golden answer: error 1 over 0 (no sample input has one that PyTorch and all precisions give)"
    )


def test_an_int8_that_loses_too_much_costs_the_others_nothing(tmp_path):
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    schemes = QuantizationOptions(scheme="w8a8-dynamic", max_loss=-10.0)
    options = ExportOptions(precisions=("int8", "fp32"), quantization=schemes, texts=TEXTS)
    manifest = export_model(model, tiny_tokenizer(), tmp_path / "out", options)
    assert [variant.precision for variant in manifest.variants] == ["fp32"]
    assert manifest.parity["passed"]
    cause = manifest.parity["left_out"]["int8"]
    assert re.search(r"no scheme is within -10 nats per token .*: w8a8-dynamic loses .* ± .*; fix: serve fp32", cause)
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {"fp32"}
    with pytest.raises(ExportError, match="int8: no scheme is within"):
        export_model(model, tiny_tokenizer(), tmp_path / "alone", dataclasses.replace(options, precisions=("int8",)))


def test_an_int8_that_fails_a_check_costs_the_others_nothing(tmp_path, monkeypatch):
    def quantize(graph, role, *arguments):
        made = actual(graph, role, *arguments)
        for tensor in made.graph.initializer:
            if tensor.name.endswith("feed_forward.inner.weight.int8.scale"):
                tensor.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), tensor.name))
        return made

    actual = passes.quantize
    monkeypatch.setattr(variants, "quantize", quantize)
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    schemes = QuantizationOptions(scheme="w8a8-dynamic", max_loss=100.0)
    options = ExportOptions(precisions=("int8", "fp32"), quantization=schemes, texts=TEXTS)
    manifest = export_model(model, tiny_tokenizer(), tmp_path / "out", options)
    assert [variant.precision for variant in manifest.variants] == ["fp32"]
    assert "weights against the checkpoint: error" in manifest.parity["left_out"]["int8"]


def test_fp16_that_cannot_be_traced_is_left_out(tmp_path, monkeypatch):
    def trace(model, **options):
        if next(model.parameters()).dtype == torch.float16:
            raise ExportError("decode: the graph must have 1 GroupQueryAttention nodes, got 0")
        return trace_model(model, **options)

    trace_model = variants.trace_model
    monkeypatch.setattr(variants, "trace_model", trace)
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    manifest = export_model(model, tiny_tokenizer(), tmp_path / "out", PLAIN)
    assert [variant.precision for variant in manifest.variants] == ["fp32"]
    assert "must have 1 GroupQueryAttention nodes" in manifest.parity["left_out"]["fp16"]


@pytest.mark.parametrize(
    ("precisions", "fix"),
    [(("fp32", "fp16"), "export each precision to a bundle of its own"), (("fp32",), "train the model further")],
)
def test_an_export_without_a_golden_answer_says_so(precisions, fix, tmp_path, monkeypatch):
    check = Check(name="a", precision="", inputs="", max_error=0.0, tolerance=0.0, passed=True, note="")
    monkeypatch.setattr(to_onnx, "save_variants", lambda *_, **__: variants.Saved((), {}, {}, {}))
    monkeypatch.setattr(to_onnx, "verify_variants", lambda *_, **__: Verified((), (check,), None, {}))
    with pytest.raises(
        NoGoldenError, match=f"golden answer: no sample input .* PyTorch.*{precisions[-1]}.*; fix: {fix}"
    ):
        export_model(
            tiny_model(tiny_config("decoder")), tiny_tokenizer(), tmp_path / "out", ExportOptions(precisions=precisions)
        )
    assert list(tmp_path.iterdir()) == []


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_without_room_is_named_before_anything_is_traced(tmp_path, monkeypatch):
    monkeypatch.setattr(to_onnx, "save_variants", None)
    monkeypatch.setattr("shutil.disk_usage", lambda path: DiskUsage(1 << 30, 1 << 30, 4096))
    model = tiny_model(tiny_config("decoder"))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    needed = weights_bytes(model, ExportOptions(precisions=("fp32",)))
    assert needed == 4 * parameters
    quantization = QuantizationOptions(development=Development(TEXTS))
    both = ExportOptions(precisions=("fp16", "int8"), quantization=quantization)
    assert weights_bytes(model, both) == (4 + 2 + 4 * 1) * parameters, "the baseline, fp16, four schemes to choose from"
    with pytest.raises(FullDiskError, match=rf"far/out: no room .* at least {needed} bytes are needed, 4096 are free"):
        export_model(model, tiny_tokenizer(), tmp_path / "far/out", ExportOptions(texts=TEXTS))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_while_it_is_written_to_is_named_with_the_bytes(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(to_onnx, "save_variants", fails)
    with pytest.raises(FullDiskError, match=rf"{tmp_path}/out: no room for the bundle: at least \d+ bytes are needed"):
        export_model(tiny_model(tiny_config("decoder")), tiny_tokenizer(), tmp_path / "out", ExportOptions(texts=TEXTS))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named_with_the_bundle_and_the_cause(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, "Input/output error", "fp32/decode.onnx")

    monkeypatch.setattr(to_onnx, "save_variants", fails)
    message = rf"{tmp_path}/out: cannot be written: Input/output error at fp32/decode.onnx; .* fix: check the disk"
    with pytest.raises(DiskError, match=message):
        export_model(tiny_model(tiny_config("decoder")), tiny_tokenizer(), tmp_path / "out", ExportOptions(texts=TEXTS))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "checkpoint"
    lineage = {"seed": 4, "git_commit": None, "data_sha256": "0" * 64}
    train, metrics = TrainConfig(steps=1), {"bleu": 12.5}
    model = tiny_model(tiny_config("decoder"))
    weights, tokenizer = weights_of(model), tiny_tokenizer()
    save_checkpoint(path, model.config, weights, tokenizer=tokenizer, train=train, metrics=metrics, lineage=lineage)
    return path


def test_a_bundle_knows_where_it_comes_from(checkpoint, tiny_generation_bundle, tmp_path, monkeypatch):
    without_tracing(monkeypatch, tiny_generation_bundle)
    manifest = export_bundle(checkpoint, tmp_path / "out", ExportOptions(texts=TEXTS))
    assert manifest.lineage["seed"] == 4
    assert manifest.lineage["metrics"] == {"bleu": 12.5}
    assert len(manifest.lineage["checkpoint_sha256"]) == 64
    assert load_bundle(tmp_path / "out") == manifest
    with pytest.raises(BundleExistsError):
        export_bundle(checkpoint, tmp_path / "out")
    assert export_bundle(checkpoint, tmp_path / "out", replace=True).golden == load_bundle(tmp_path / "out").golden


def test_an_export_reads_the_weights_once(checkpoint, tiny_generation_bundle, tmp_path, monkeypatch):
    read = mock.Mock(wraps=safetensors.torch.load)
    mapped = mock.Mock(wraps=safetensors.torch.load_file)
    monkeypatch.setattr(safetensors.torch, "load", read)
    monkeypatch.setattr(safetensors.torch, "load_file", mapped)
    without_tracing(monkeypatch, tiny_generation_bundle)
    export_bundle(checkpoint, tmp_path / "out", ExportOptions(texts=TEXTS))
    assert read.call_count + mapped.call_count == 1


def test_the_corpus_is_drawn_only_where_no_development_text_is_given(checkpoint, tmp_path, monkeypatch):
    drawn, exported = mock.Mock(return_value=None), mock.Mock()
    monkeypatch.setattr(to_onnx, "own_development", drawn)
    monkeypatch.setattr(to_onnx, "export_model", exported)
    given = Development(TEXTS)
    for development, draws in ((given, 0), (None, 1)):
        quantization = QuantizationOptions(development=development)
        export_bundle(checkpoint, tmp_path / "out", ExportOptions(precisions=("int8",), quantization=quantization))
        assert drawn.call_count == draws
        assert exported.call_args.args[3].quantization.development is development


def test_a_checkpoint_cut_short_is_refused(checkpoint, tmp_path):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"model.safetensors"):
        export_bundle(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()
