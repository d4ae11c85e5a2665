"""Options and models that cannot be exported are refused before tracing."""

import pytest

from export.export_errors import ExportError
from export.options import AUTOMATIC, ExportOptions, QuantizationOptions, scheme_names
from export.texts import Development
from export.to_onnx import export_model
from model.ensemble import ensemble_config
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer


def test_a_model_without_a_source_has_no_shortlist(tmp_path):
    model, parallel = tiny_model(tiny_config("decoder")), [("a", "b")]
    with pytest.raises(ExportError, match="shortlist: only models that translate have it"):
        export_model(model, tiny_tokenizer(), tmp_path / "out", ExportOptions(parallel=parallel))
    assert list(tmp_path.iterdir()) == []


def test_an_ensemble_has_no_shortlist(tmp_path):
    model = tiny_model(ensemble_config([tiny_config(), tiny_config()]))
    with pytest.raises(ExportError, match=r"shortlist: not of an ensemble, .* export it without shortlist"):
        export_model(model, tiny_tokenizer(), tmp_path / "out", ExportOptions(parallel=[("a", "b")]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"compression_stride": 3, "sliding_window": 4},
            "scheme: w8a8-dynamic-kv8 keeps int8 keys and values, and those of a model with compr",
        ),
        (
            {"qk_norm": True},
            "w8a8-dynamic-kv8 keeps int8 keys and values, and those of a model with qk_norm .*; take w8a8-dynamic$",
        ),
    ],
)
def test_int8_caches_of_what_no_calibration_sees_are_refused_and_not_tried(changes, message, tmp_path):
    model = tiny_model(tiny_config("decoder", **changes))
    schemes = QuantizationOptions(scheme="w8a8-dynamic-kv8")
    options = ExportOptions(precisions=("int8",), quantization=schemes, texts=TEXTS)
    with pytest.raises(ExportError, match=message):
        export_model(model, tiny_tokenizer(), tmp_path / "out", options)
    assert scheme_names("int8", "auto", model.config) == ("w8a8-static", "w8a8-dynamic")
    assert scheme_names("int8", "auto", tiny_config()) == AUTOMATIC["int8"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 8}, r"head_dim: must be a multiple of 8 .* got 4; train with another"),
        ({"vocab_size": 20}, "vocab_size: the model has 20, its tokenizer 27"),
        (
            {"source_vocab_size": 27, "share_embeddings": False},
            "source_vocab_size: the model has two vocabularies, its tokenizer one",
        ),
    ],
)
def test_a_model_that_cannot_run_is_refused_before_it_is_traced(changes, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        export_model(tiny_model(tiny_config(**changes)), tiny_tokenizer(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_training_mode_is_refused(tmp_path):
    with pytest.raises(ExportError, match="training mode"):
        export_model(tiny_model(tiny_config()).train(), tiny_tokenizer(), tmp_path / "out")


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("decoder", {}, "confidence: only models that translate have it; export this one without --calibrate"),
        ("encoder_decoder", {"confidence_samples": 199}, "confidence_samples: must be at least 200, got 199"),
    ],
)
def test_confidence_is_of_translations_and_needs_enough_of_them(architecture, changes, message, tmp_path):
    options = ExportOptions(confidence=Development(["a"], ["b"]), **changes)
    with pytest.raises(ExportError, match=message):
        export_model(tiny_model(tiny_config(architecture)), tiny_tokenizer(), tmp_path / "out", options)
    assert list(tmp_path.iterdir()) == []
