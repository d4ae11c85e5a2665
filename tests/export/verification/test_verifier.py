"""What verification says of a bundle, and of answers that part where two choices are as good as equal."""

import hashlib
import json
from unittest import mock

import onnxruntime
import pytest
import torch

from export.bundle import DamagedFileError, ShortlistError, load_bundle
from export.manifest import SESSION_CONFIG, Golden
from export.variants import save_variant
from export.verification import answer_checks, verifier
from export.verification.answer_checks import AnswerChecks
from export.verification.case import Case
from export.verification.golden import Answer, RightAnswer, Verification, common_golden
from export.verification.inputs import sample_inputs
from export.verification.measure import TOLERANCES, Check, ErrorTracker
from export.verification.ort_graphs import OrtGraphs
from export.verification.verifier import make_report, verify_bundle, verify_graphs
from model.checkpoint import save_checkpoint
from model.config import TrainConfig
from model.reference.greedy import greedy
from tests.tiny import tiny_config, tiny_model, tiny_tokenizer


def editable(bundle, tmp_path):
    """A copy of a bundle."""
    for file in (f for f in bundle.rglob("*") if f.is_file()):
        copy = tmp_path / "copy" / file.relative_to(bundle)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    return tmp_path / "copy"


def save(model, path):
    save_checkpoint(path, model, tokenizer=tiny_tokenizer(), train=TrainConfig(steps=1), metrics={}, lineage={})


@pytest.mark.parametrize("kind", ["translation", "generation"])
def test_a_finished_bundle_repeats_its_golden_answer(kind, request):
    report = verify_bundle(request.getfixturevalue(f"tiny_{kind}_bundle"))
    assert [(check["name"], check["passed"]) for check in report["checks"]] == [
        ("files", True),
        ("golden answer", True),
    ]
    assert report["passed"] is True


def test_a_shortlist_of_ids_that_no_word_has_is_noticed(tiny_attention_bundle, tmp_path):
    names = [check["name"] for check in verify_bundle(tiny_attention_bundle)["checks"]]
    assert names == ["files", "shortlist", "golden answer"]
    bundle = editable(tiny_attention_bundle, tmp_path)
    (bundle / "shortlist.json").write_text(data := '{"always":[27],"by_source":{}}')
    manifest = json.loads((bundle / "manifest.json").read_text())
    digest = {"sha256": hashlib.sha256(data.encode()).hexdigest(), "bytes": len(data)}
    manifest["files"]["shortlist.json"] = digest
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ShortlistError, match=r"always must be a list of ids of 0\.\.26, got \[27\]"):
        verify_bundle(bundle)


def test_another_golden_answer_is_noticed(tiny_generation_bundle, tmp_path):
    bundle = editable(tiny_generation_bundle, tmp_path)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["golden"]["output"][-1] ^= 1
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    report = verify_bundle(bundle)
    assert report["passed"] is False
    assert report["checks"][1]["note"].startswith("expected (")


def test_a_damaged_bundle_is_not_run(tiny_generation_bundle, tmp_path):
    bundle = editable(tiny_generation_bundle, tmp_path)
    (bundle / "fp32/decode.onnx").write_bytes(b"")
    with pytest.raises(DamagedFileError):
        verify_bundle(bundle)


def test_with_its_checkpoint_everything_is_compared_and_with_another_refused(tiny_generation_bundle, tmp_path):
    save(tiny_model(tiny_config("decoder")), tmp_path / "checkpoint")
    bundle = editable(tiny_generation_bundle, tmp_path)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["lineage"]["checkpoint_sha256"] = verifier.checkpoint_digest(tmp_path / "checkpoint")
    (bundle / "manifest.json").write_text(json.dumps(manifest))
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


def test_sessions_are_made_with_the_settings_of_the_bundle(tiny_translation_bundle):
    manifest = load_bundle(tiny_translation_bundle)
    sessions = OrtGraphs(tiny_translation_bundle, manifest.variant("fp32"), manifest.limits).sessions
    for session in sessions.values():
        options = session.get_session_options()
        assert options.intra_op_num_threads == options.inter_op_num_threads == 1
        assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        for key, value in SESSION_CONFIG.items():
            assert options.get_session_config_entry(key) == value


def test_a_graph_that_cannot_be_loaded_fails_every_check(tiny_generation_bundle, tmp_path):
    variant = load_bundle(tiny_generation_bundle).variant("fp32")
    (tmp_path / "fp32").mkdir()
    (tmp_path / "fp32/decode.onnx").write_bytes(b"not a graph")
    model = tiny_model(tiny_config("decoder"))
    verification = verify_graphs(tmp_path, variant, model, sample_inputs(model.config))
    assert not any(check.passed for check in verification.checks)
    assert verification.golden is None
    assert "INVALID_PROTOBUF" in verification.checks[0].note or "Fail" in verification.checks[0].note
    json.dumps(make_report(verification.checks), allow_nan=False)


def test_a_report_without_checks_has_not_passed():
    assert make_report([])["passed"] is False
    good = Check(name="a", precision="fp32", inputs="", max_error=0.0, tolerance=0.0, passed=True)
    assert make_report([good])["passed"] is True


@pytest.mark.parametrize(("distance", "is_tie"), [(1e-7, True), (0.05, False)])
def test_where_two_words_are_as_good_as_equal_either_is_right(distance, is_tie, monkeypatch):
    """Two rows of the output matrix are nearly the same; the answers below take the other one at their last step."""
    model = tiny_model(tiny_config("decoder", tie_embeddings=False))
    prompt = (1, 5, 9)
    best = greedy(model, prompt, max_tokens=1)[0]
    twin = 4 if best != 4 else 5
    with torch.no_grad():
        head = model.decoder.unembedding.weight
        head[twin] = head[best] * (1 - distance)
    case = Case(mock.Mock(spec=OrtGraphs), "fp32", model, sample_inputs(model.config))
    case.targets, case.sources = (prompt,), ((),)
    suite = AnswerChecks(case)
    monkeypatch.setattr(answer_checks, "GREEDY_TOKENS", 1)
    assert greedy(model, prompt, max_tokens=1) == [best]
    monkeypatch.setattr(answer_checks, "answer_greedily", lambda *_: [Answer((twin,), 0.0)])
    wrong, note = suite.greedy()
    assert wrong == (0.0 if is_tie else 1.0)
    assert ("near-ties: " in note) == is_tie
    assert ("wrong choices by: " in note) != is_tie
    assert suite.answers == []


def test_errors_are_measured_as_a_share_of_the_output():
    worst = ErrorTracker()
    expected = torch.tensor([100.0, -1.0]).numpy()
    worst.add("small", expected + 0.001, expected)
    assert worst.error == pytest.approx(1e-5, rel=0.1)
    worst.add("nothing", expected[:0], expected[:0])
    assert worst.note == "worst in small"
    worst.add("undefined", expected * float("nan"), expected)
    assert worst.error == float("inf")
    assert not worst.error <= TOLERANCES["fp32"]
    worst = ErrorTracker()
    worst.add("shape", expected[:1], expected)
    assert worst.error == float("inf")


def test_a_model_with_room_for_one_token_can_be_verified(tmp_path):
    model = tiny_model(tiny_config("decoder", max_target_len=1, num_decoder_layers=1))
    variant = save_variant(model, tmp_path, "fp32")
    verification = verify_graphs(tmp_path, variant, model, sample_inputs(model.config))
    assert [check for check in verification.checks if not check.passed] == []


def test_errors_of_rounded_rows_are_measured_as_a_share_of_their_deviation():
    worst = ErrorTracker(by_deviation=True)
    expected = torch.tensor([-101.0, -99.0]).numpy()
    worst.add("row", expected + 0.1, expected)
    assert worst.error == pytest.approx(0.1, rel=1e-4)
    worst.add("one value", expected[:1] * 1.2, expected[:1])
    assert worst.error == pytest.approx(0.2, rel=1e-5)


def answered(*outputs, is_sure=True):
    """What one variant answered to the questions 4, 5, …"""
    answers = [
        RightAnswer(Golden(source=(4 + i, 2), prompt=(1,), output=output), is_sure, 0.5)
        for i, output in enumerate(outputs)
        if output
    ]
    return Verification((), tuple(answers))


def test_the_golden_answer_is_one_that_all_variants_give():
    golden = common_golden([answered((5, 6, 7, 2), (8, 9, 2)), answered((5, 6, 8, 2), (8, 9, 2))])
    assert golden == Golden(source=(5, 2), prompt=(1,), output=(8, 9, 2))


def test_where_variants_part_everywhere_the_golden_answer_ends_before_they_do():
    golden = common_golden([answered((5, 6, 7, 2), (8, 9, 2)), answered((5, 6, 8, 2), (9, 2))])
    assert golden == Golden(source=(4, 2), prompt=(1,), output=(5, 6))


def test_what_one_variant_answered_wrongly_is_not_golden():
    assert common_golden([answered((5, 6, 7, 2), ()), answered((), (8, 9, 2))]) is None


def test_a_clear_short_answer_is_preferred_to_a_rich_one_that_another_processor_might_not_give():
    sure, unsure = answered((), (8, 2)), answered((5, 6, 7, 2), is_sure=False)
    both = Verification((), (*sure.answers, *unsure.answers))
    golden = common_golden([both, both])
    assert golden is not None
    assert golden.output == (8, 2)
