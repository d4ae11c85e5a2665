"""What `glossa export` prints and refuses."""

import json
import re
from unittest import mock

import pytest

from cli.export import show_parity
from export.bundle import directory as bundle
from tests.cli.command import run


def test_a_checkpoint_cut_short_is_not_exported(trained, tmp_path):
    cut = tmp_path / "cut"
    cut.mkdir()
    for file in trained.iterdir():
        if file.is_file():
            data = file.read_bytes()
            (cut / file.name).write_bytes(data[:-10] if file.name == "model.safetensors" else data)
    assert "model.safetensors" in run("export", cut, tmp_path / "bundle", fails=True)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.slow
def test_a_quantized_bundle_reports_the_measured_loss_of_its_scheme(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("cli.export.measure_serving", lambda *_: {})
    out = tmp_path / "bundle"
    report = json.loads(
        run("export", trained, out, "--precision", "int8", "--scheme", "w8a8-dynamic", "--max-loss", 100, "--json")
    )
    assert report["passed"]
    int8 = report["quantized"]["int8"]
    assert int8["quantization"]["scheme"] == "w8a8-dynamic"
    assert [(figures["scheme"], figures["chosen"]) for figures in int8["comparison"]] == [
        ("fp32", False),
        ("w8a8-dynamic", True),
    ]
    assert sorted(path.name for path in out.iterdir()) == ["int8", "manifest.json", "manifest.sha256", "tokenizer.json"]
    shown = run("verify", out)
    assert "int8: w8a8-dynamic, 8-bit weights" in " ".join(shown.split())


def test_a_precision_that_is_missing_is_an_error_beside_a_bundle_of_the_others(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("cli.export.measure_serving", lambda *_: {})
    out = tmp_path / "bundle"
    flags = ("--precision", "fp32,int8", "--scheme", "w8a8-dynamic", "--max-loss", -100)
    told = run("export", trained, out, *flags, fails=True)
    assert re.search(r"error: .*bundle was written with fp32 alone, without int8: no scheme is within -100 BLEU", told)
    assert [variant.precision for variant in bundle.load_bundle(out).variants] == ["fp32"]


def test_verify_hashes_each_file_once(tiny_generation_bundle, monkeypatch):
    checked = mock.Mock(wraps=bundle.verify_files)
    monkeypatch.setattr(bundle, "verify_files", checked)
    monkeypatch.setattr("cli.export.measure_serving", lambda *_: {})
    assert json.loads(run("verify", tiny_generation_bundle, "--json"))["passed"]
    assert checked.call_count == 1


def test_invalid_precisions_and_schemes_are_rejected(trained, tmp_path):
    out = tmp_path / "bundle"
    assert "must be auto, or of fp32, fp16, int8, int4" in run(
        "export", trained, out, "--precision", "int2", fails=True
    )
    refusal = run("export", trained, out, "--precision", "fp32", "--scheme", "w8a8-static", fails=True)
    assert "static is one of int8, which is not among the precisions fp32" in refusal
    assert "scheme: must be auto, w8a8-dynamic or" in run(
        "export", trained, out, "--precision", "int8", "--scheme", "x", fails=True
    )
    for twice in (("--precision", "int8,int8"), ("--precision", "int8", "--precision", "int8")):
        assert "different ones, got int8, int8" in run("export", trained, out, *twice, fails=True)


def test_development_text_must_name_the_languages_that_the_model_needs(tmp_path):
    pytest.importorskip("transformers")
    from tests.pretrained_languages import imported

    multilingual, _ = imported("m2m100", tmp_path / "multilingual")
    (tmp_path / "text.tsv").write_text("a\tb\n" * 20)
    for name in ("--development", "--calibrate"):
        options = (tmp_path / "bundle", name, tmp_path / "text.tsv", "--source-language", "de")
        assert "error: --target-language: must be given" in run("export", multilingual, *options, fails=True)
    assert not (tmp_path / "bundle").exists()


def test_a_plain_export_serves_on_both_devices(export_report):
    _, report = export_report
    assert report["passed"]
    assert {check["precision"] for check in report["checks"]} == {"fp32", "fp16"}


def test_a_variant_that_was_left_out_is_named_with_its_cause(tiny_generation_bundle, monkeypatch, capsys):
    manifest = bundle.load_manifest(tiny_generation_bundle)
    monkeypatch.setattr("cli.export.measure_serving", lambda *_: {})
    report = {**manifest.parity, "left_out": {"fp16": "prefill against PyTorch: error 1 over 0.03 (logits)"}}
    show_parity(report, manifest, tiny_generation_bundle, as_json=True)
    written = capsys.readouterr()
    assert json.loads(written.out)["left_out"] == report["left_out"]
    assert written.err == (
        "warning: no fp16 graphs, so this bundle does not serve on CUDA: "
        "prefill against PyTorch: error 1 over 0.03 (logits)\n"
    )


def test_text_that_cannot_calibrate_is_named_with_its_fix(trained, tmp_path, test_set):
    out, lines = tmp_path / "bundle", tmp_path / "lines.txt"
    refused = run("export", trained, out, "--precision", "fp32", "--calibrate", test_set, fails=True)
    assert "test.tsv: must have at least 200 sentences to calibrate confidence with, got 2 of 2 sentences" in refused
    lines.write_text("a b c\n" * 300)
    refused = run("export", trained, out, "--precision", "fp32", "--calibrate", lines, fails=True)
    assert "lines.txt: has no references; fix: give lines source<TAB>reference" in refused
    assert not out.exists()


def test_a_calibration_is_reported(calibrated_bundle, monkeypatch):
    monkeypatch.setattr("cli.export.measure_serving", lambda *_: {})
    bundle, _ = calibrated_bundle
    report = json.loads(run("verify", bundle, "--json"))
    assert set(report["calibrations"]) == {"fp32", "int8"}
    shown = " ".join(run("verify", bundle).split())
    assert "calibrated on 279 sentences of recombined words" in shown
