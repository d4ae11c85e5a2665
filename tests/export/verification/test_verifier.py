"""The reports of verification on graphs and on finished bundles."""

import hashlib
import json
from pathlib import Path

import pytest

from export.bundle.directory import DamagedFileError, ShortlistError, load_bundle
from export.bundle.manifest import SESSION_CONFIG, Variant
from export.passes.quantization_scheme import SCHEMES
from export.variants import save_variant, trace_model
from export.verification import verifier
from export.verification.checks import Check
from export.verification.inputs import sample_inputs
from export.verification.torch_reference import Expectations
from export.verification.verifier import Verification, make_report, verify_bundle, verify_graphs
from model.checkpoints.checkpoint import save_checkpoint, weights_of
from model.config import TrainConfig
from tests.sealed_manifest import read_manifest, write_manifest
from tests.tiny import tiny_config, tiny_model, tiny_tokenizer


def editable(bundle, tmp_path):
    """A copy of a bundle."""
    for file in (f for f in bundle.rglob("*") if f.is_file()):
        copy = tmp_path / "copy" / file.relative_to(bundle)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    return tmp_path / "copy"


def save(model, path):
    weights, tokenizer, train = weights_of(model), tiny_tokenizer(), TrainConfig(steps=1)
    save_checkpoint(path, model.config, weights, tokenizer=tokenizer, train=train, metrics={}, lineage={})


@pytest.mark.parametrize("kind", ["translation", "generation"])
def test_a_finished_bundle_repeats_its_golden_answer(kind, request):
    report = verify_bundle(request.getfixturevalue(f"tiny_{kind}_bundle"))
    assert [(check["name"], check["passed"]) for check in report["checks"]] == [
        ("files", True),
        ("golden answer", True),
    ]
    assert report["passed"] is True


def test_a_shortlist_with_ids_outside_the_vocabulary_is_refused(tiny_attention_bundle, tmp_path):
    names = [check["name"] for check in verify_bundle(tiny_attention_bundle)["checks"]]
    assert names == ["files", "shortlist", "golden answer"]
    bundle = editable(tiny_attention_bundle, tmp_path)
    (bundle / "shortlist.json").write_text(data := '{"always":[27],"by_source":{}}')
    manifest = read_manifest(bundle)
    digest = {"sha256": hashlib.sha256(data.encode()).hexdigest(), "bytes": len(data)}
    manifest["files"]["shortlist.json"] = digest
    write_manifest(bundle, manifest)
    with pytest.raises(ShortlistError, match=r"always must be a list of ids of 0\.\.26, got \[27\]"):
        verify_bundle(bundle)


def test_a_wrong_golden_answer_fails(tiny_generation_bundle, tmp_path):
    bundle = editable(tiny_generation_bundle, tmp_path)
    manifest = read_manifest(bundle)
    manifest["golden"]["output"][-1] ^= 1
    write_manifest(bundle, manifest)
    report = verify_bundle(bundle)
    assert report["passed"] is False
    assert report["checks"][1]["note"].startswith("expected (")


def test_a_damaged_bundle_is_not_run(tiny_generation_bundle, tmp_path):
    bundle = editable(tiny_generation_bundle, tmp_path)
    (bundle / "fp32/decode.onnx").write_bytes(b"")
    with pytest.raises(DamagedFileError):
        verify_bundle(bundle)


def test_a_bundle_passes_all_checks_of_its_checkpoint_only(tiny_generation_bundle, tmp_path):
    save(tiny_model(tiny_config("decoder")), tmp_path / "checkpoint")
    bundle = editable(tiny_generation_bundle, tmp_path)
    manifest = read_manifest(bundle)
    manifest["lineage"]["checkpoint_sha256"] = verifier.checkpoint_digest(tmp_path / "checkpoint")
    write_manifest(bundle, manifest)
    report = verify_bundle(bundle, tmp_path / "checkpoint")
    assert report["passed"] is True
    # every check a served decoder is exported with is made again, besides those of the files and of the checkpoint
    exported = {check["name"] for check in manifest["parity"]["checks"]}
    assert exported | {"files", "made from this checkpoint"} == {check["name"] for check in report["checks"]}
    assert len(report["checks"]) == 17
    save(tiny_model(tiny_config("decoder"), seed=2), tmp_path / "other")
    failed = [check["name"] for check in verify_bundle(bundle, tmp_path / "other")["checks"] if not check["passed"]]
    assert failed[0] == "made from this checkpoint"
    assert "prefill against PyTorch" in failed


def test_the_report_of_a_bundle_is_of_the_session_a_server_makes(tiny_translation_bundle):
    parity = load_bundle(tiny_translation_bundle).parity
    assert parity["provider"] == "CPUExecutionProvider"
    assert parity["session"] == {"threads": 1, "optimization": "ORT_ENABLE_ALL", **SESSION_CONFIG}
    assert [check["name"] for check in parity["checks"]] == [
        "encode against PyTorch",
        "encode in a batch as alone",
        "cached steps against the full sequence",
        "caches against PyTorch",
        "caches written nowhere else",
        "steps in a batch as alone",
        "normaliser against PyTorch",
        "probabilities of a row add up to one",
        "best tokens are those of the sorted row",
        "last position against PyTorch",
        "greedy answers against the reference",
        "golden answer",
    ]
    assert all(check["max_error"] <= check["tolerance"] for check in parity["checks"])
    assert parity["checks"][0]["inputs"] == "12 sources of 1..40 tokens, 12 targets of 1..23 tokens"


def test_a_graph_that_cannot_be_loaded_fails_every_check(tiny_generation_bundle, tmp_path):
    variant = load_bundle(tiny_generation_bundle).variant("fp32")
    (tmp_path / "fp32").mkdir()
    (tmp_path / "fp32/decode.onnx").write_bytes(b"not a graph")
    model = tiny_model(tiny_config("decoder"))
    verification = verify_graphs(tmp_path, variant, model, sample_inputs(model.config))
    assert not any(check.passed for check in verification.checks)
    assert verification.answers == ()
    assert "INVALID_PROTOBUF" in verification.checks[0].note or "Fail" in verification.checks[0].note
    json.dumps(make_report(verification.checks), allow_nan=False)


def test_a_report_without_checks_has_not_passed():
    assert make_report([])["passed"] is False
    good = Check(name="a", precision="fp32", inputs="", max_error=0.0, tolerance=0.0, passed=True)
    assert make_report([good])["passed"] is True


def test_a_model_with_room_for_one_token_can_be_verified(tmp_path):
    model = tiny_model(tiny_config("decoder", max_target_len=1, num_decoder_layers=1))
    variant = save_variant(trace_model(model), tmp_path, SCHEMES["fp32"])
    verification = verify_graphs(tmp_path, variant, model, sample_inputs(model.config))
    assert [check for check in verification.checks if not check.passed] == []


def test_variants_share_the_outputs_of_the_model(monkeypatch):
    found = {}

    def verify(_directory, variant, *_, plain, tell):
        found[variant.precision] = plain
        return Verification((), ())

    monkeypatch.setattr(verifier, "verify_graphs", verify)
    model = tiny_model(tiny_config("decoder"))
    kinds = {"int8": SCHEMES["w8a8-static"].quantization(batch_invariant=True), "fp32": None, "fp16": None}
    variants = [Variant(precision=name, graphs={}, states=(), quantization=kind) for name, kind in kinds.items()]
    plain = Expectations(model)
    verifier.verify_variants(Path(), variants, plain, sample_inputs(model.config))
    assert found == dict.fromkeys(kinds, plain)
