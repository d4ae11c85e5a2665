"""Judging and rendering of measurements. `FAST=1 make lectures` runs the experiments."""

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lectures.__main__ import main, measure, rounded, stored
from lectures.catalogue import CLAIMS
from lectures.claim import Claim, Finding, verdict_of
from lectures.claims.alignment import errors
from lectures.claims.extrapolation import FACTOR, TRAINED, lengthened
from lectures.claims.prefill import fit
from lectures.claims.recurrence import seconds_to
from lectures.claims.specialists import scores, specialists
from lectures.demo import Sentence
from lectures.lab import Training
from lectures.page import Section, anchor, closing, figures_of, page_of, present_sections, section, verdicts, write_page
from lectures.words import links
from model.architecture_config import EncoderDecoderConfig
from model.checkpoints.checkpoint import Checkpoint
from model.config import TrainConfig
from model.training.data.embedded import copy_examples
from tests.tiny import tiny_config, tiny_model, tiny_tokenizer

CONDITIONS = {"machine": "a machine", "processors": 2, "is_idle": True, "versions": {"python": "3"}}


def plain_claim(**changes):
    def draw(measured, figure):
        figure.subplots().plot(measured["values"])

    def judge(measured):
        return Finding(verdict="held", explanation="It is so.", header=("place", "value"), rows=[("1", "2")])

    claim = Claim(
        name="plain",
        title="A plain claim",
        statement="The statement.",
        experiment="The experiment.",
        measure=lambda lab: {"values": [1, 2]},
        judge=judge,
        draw=draw,
    )
    return dataclasses.replace(claim, **changes)


def test_page_shows_each_claim_with_its_plot(tmp_path):
    page = tmp_path / "page.md"
    write_page(page, [plain_claim()], {"plain": {"values": [1, 2], "seconds": 3.0, "conditions": CONDITIONS}})
    text = page.read_text()
    for part in (
        "## A plain claim",
        "**Claim.** The statement.",
        "**Result: the claim held.** It is so.",
        "[Experiment](../lectures/claims/plain.py), [all figures](page/plain.tsv)",
    ):
        assert part in text
    (figure,) = re.findall(r"!\[.*\]\((.+)\)", text)
    assert (tmp_path / figure).read_text().startswith("<?xml")
    assert (tmp_path / figure).with_suffix(".tsv").read_text().splitlines()[1] == "1\t2"


def section_of(verdict="held", conditions="On a machine", seconds=60):
    return Section("## A title", verdict, conditions, seconds)


def test_page_begins_with_the_number_of_claims_by_verdict():
    claims = [plain_claim(name=name) for name in "abc"]
    sections = {
        name: section_of(verdict) for name, verdict in zip("abc", ("held", "held", "held in part"), strict=True)
    }
    assert verdicts(claims, sections) == ("Of 3 claims 2 held, 1 held in part ([c](#a-plain-claim)), 0 did not hold.")


def test_equal_measurements_give_identical_files(tmp_path):
    measured = {"plain": {"values": [1, 2], "seconds": 3.0, "conditions": CONDITIONS}}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_page(tmp_path / name / "page.md", [plain_claim()], measured)
    for file in ("page.md", "page/plain.svg", "page/plain.tsv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_page_names_the_conditions_of_each_measurement():
    claims = [plain_claim(name=name) for name in ("one", "two", "three")]
    places = {"one": "On a machine, idle", "two": "On a machine, shared", "three": "On a machine, idle"}
    sections = {name: section_of(conditions=conditions) for name, conditions in places.items()}
    assert closing(claims, sections).split("\n\n")[1:] == [
        "On a machine, idle. Seconds: one 60, three 60.",
        "On a machine, shared. Seconds: two 60.",
        "3 minutes in all.",
    ]


def test_claims_without_a_measurement_keep_their_part_of_the_page(tmp_path):
    shared = {**CONDITIONS, "is_idle": False}
    claims = [
        plain_claim(name="one"),
        plain_claim(name="two", title="Another (claim)"),
        plain_claim(name="three", title="3"),
    ]
    measured = {
        claim.name: {"values": [1, 2], "seconds": seconds, "conditions": found}
        for claim, seconds, found in zip(claims, (59.6, 3.2, 7.0), (CONDITIONS, shared, CONDITIONS), strict=True)
    }
    page = tmp_path / "page.md"
    write_page(page, claims, measured)
    before = page.read_text()
    write_page(page, claims, {})
    assert page.read_text() == before
    changed = plain_claim(name="two", title="Another (claim)", statement="It changed.")
    write_page(page, [claims[0], changed, claims[2]], {"two": {**measured["two"], "seconds": 9.0}})
    expected = before.replace("two 3", "two 9")
    head, here, rest = expected.rpartition("## Another (claim)")
    assert page.read_text() == head + here + rest.replace("The statement.", "It changed.", 1)


def test_damaged_or_missing_sections_are_not_kept(tmp_path):
    page, claim = tmp_path / "page.md", plain_claim()
    assert present_sections(page, [claim]) == {}
    write_page(page, [claim], {"plain": {"values": [1, 2], "seconds": 3.0, "conditions": CONDITIONS}})
    text = page.read_text()
    assert set(present_sections(page, [claim])) == {"plain"}
    for damaged in (text.replace("the claim held", "the claim"), text.replace("plain 3", "other 3")):
        page.write_text(damaged)
        assert present_sections(page, [claim]) == {}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--anew", "--render"], "--anew deletes the models of all claims"),
        (["--anew", "--only", "norms"], "--anew deletes the models of all claims"),
        (["--only", "nrms"], "there is no claim nrms"),
        (["--render"], "no page yet: .*norms.* not measured"),
    ],
)
def test_a_command_that_cannot_be_carried_out_touches_nothing(arguments, problem, tmp_path, monkeypatch, capsys):
    keep = tmp_path / "keep"
    (keep / "models").mkdir(parents=True)
    page = tmp_path / "else" / "page.md"
    monkeypatch.setattr(sys, "argv", ["lectures", *arguments, "--keep", str(keep), "--page", str(page)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert re.search(problem, str(ended.value.code) + capsys.readouterr().err)
    assert (keep / "models").exists()
    assert not page.parent.exists()


def test_measurements_are_stored_with_their_conditions(tmp_path):
    measure([plain_claim(name="pooling")], tmp_path / "page", tmp_path / "models", is_fast=True)
    (found,) = stored(tmp_path / "page").values()
    assert found["values"] == [1, 2]
    assert found["conditions"]["processors"] > 0
    assert found["conditions"]["is_idle"] in (True, False)
    (tmp_path / "page" / "pooling.json").write_text('{"values": [1, 2], "seconds": 3.0}')
    assert stored(tmp_path / "page") == {}


def test_stored_figures_have_six_significant_digits():
    figures = {"a": [1 / 3, 123456789.0, 7], "b": {"c": 2.5e-7 / 3}, "d": ("text", None, True)}
    assert rounded(figures) == {"a": [0.333333, 123457000.0, 7], "b": {"c": 8.33333e-8}, "d": ["text", None, True]}


def test_committed_page_has_the_claims_and_verdicts_of_its_generator():
    page = Path(__file__).parents[2] / "docs" / "lectures.md"
    sections = present_sections(page, CLAIMS)
    assert set(sections) == {claim.name for claim in CLAIMS}
    for claim in CLAIMS:
        assert f"**Claim.** {claim.statement}\n" in sections[claim.name].text, claim.name
    assert page_of(CLAIMS, sections) == page.read_text(encoding="utf-8")


def test_committed_page_shows_its_measurements():
    page = Path(__file__).parents[2] / "docs" / "lectures.md"
    sections = present_sections(page, CLAIMS)
    for claim in CLAIMS:
        measured = stored(page.with_suffix("")).get(claim.name)
        if measured is not None:
            assert section(claim, measured, f"lectures/{claim.name}") == sections[claim.name]
            table = page.with_suffix("") / f"{claim.name}.tsv"
            assert table.read_text(encoding="utf-8") == figures_of(claim.judge(measured))


def test_heading_anchors():
    assert anchor("Attention costs n²") == "attention-costs-n²"
    assert anchor("Without positions, order is invisible") == "without-positions-order-is-invisible"


def test_finding_with_ragged_table_is_rejected():
    with pytest.raises(AssertionError, match="must have 2 cells"):
        Finding(verdict="held", explanation="", header=("a", "b"), rows=[("1",)])


@pytest.mark.parametrize(
    ("held", "verdict"),
    [([True, True], "held"), ([True, False], "held in part"), ([False, False], "did not hold")],
)
def test_verdict_depends_on_the_parts_that_held(held, verdict):
    assert verdict_of(held) == verdict


def test_each_claim_has_a_module_of_its_name():
    here = Path(__file__).parents[2] / "lectures" / "claims"
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert [claim.name for claim in CLAIMS if not (here / f"{claim.name}.py").exists()] == []


def test_training_digest_covers_everything_that_affects_the_result():
    model, data = EncoderDecoderConfig(d_model=32), copy_examples(10, seed=1)
    first = Training(model=model, train=TrainConfig(steps=5), data=data)
    others = [
        dataclasses.replace(first, train=TrainConfig(steps=5, seed=2)),
        dataclasses.replace(first, model=EncoderDecoderConfig(d_model=64)),
        dataclasses.replace(first, data=copy_examples(10, seed=2)),
        dataclasses.replace(first, validation=data),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 5
    assert Training(model=model, train=TrainConfig(steps=5), data=copy_examples(10, seed=1)).digest == first.digest


def test_fit_recovers_the_coefficients():
    lengths = [32, 64, 128, 256, 512]
    a, b, c = fit(lengths, [3e-4 * n * n + 0.02 * n + 1.5 for n in lengths])
    assert (a, b, c) == pytest.approx((3e-4, 0.02, 1.5), rel=1e-6)


def test_fit_has_no_negative_coefficients():
    lengths = [32, 64, 128, 256]
    a, b, c = fit(lengths, [3e-4 * n * n - 0.005 * n + 1.5 for n in lengths])
    assert a == pytest.approx(3e-4, rel=0.2)
    assert b == 0
    assert c > 0


def test_links_are_words_with_an_unambiguous_partner():
    english = ["The", "cow", "must", "sleep", "by", "a", "beautiful", "river", "."]
    german = ["Die", "Kuh", "muss", "an", "einem", "schönen", "Fluss", "schlafen", "."]
    assert links(english, german) == [(1, 1), (5, 6), (6, 7)]


def test_repeated_words_are_ambiguous():
    assert links(["The", "dog", "and", "the", "dog"], ["Der", "Hund", "und", "der", "Hund"]) == []


def sentence(cross_TS):
    """Two words each, the first with the second as partner. One layer, one head."""
    weights = {
        "encoder": np.eye(3)[None, None],
        "decoder": np.eye(3)[None, None],
        "cross": np.array(cross_TS)[None, None],
    }
    return Sentence(["a", "b"], ["x", "y"], weights, [(0, 1), (1, 0)])


def test_alignment_is_correct_where_the_partner_has_the_largest_weight():
    found = errors([sentence([[0.1, 0.6, 0.3], [0.2, 0.1, 0.7], [0.3, 0.3, 0.4]])])
    assert found["layer 1, mean, writing"] == 0.0  # the end token, with 0.7, is excluded
    assert found["layer 1, head 1, having written"] == 0.5  # of 0.3 and 0.3 the first counts
    assert found["diagonal"] == 1.0


def test_head_that_attends_to_partners_is_a_specialist():
    found = scores([sentence([[0.1, 0.9, 0.0], [0.8, 0.2, 0.0], [0.0, 0.0, 1.0]])])
    assert found["cross 1.1"]["partner"] == pytest.approx(0.85)
    place, share = specialists(found)["cross 1.1"]
    assert (place, share) == ("partner", found["cross 1.1"]["partner"])


def test_head_with_uniform_weights_is_not_a_specialist():
    found = scores([sentence([[1 / 3] * 3] * 3)])
    assert "cross 1.1" not in specialists(found)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi"])
def test_lengthened_model_agrees_on_the_trained_length(positions):
    model = tiny_model(tiny_config("decoder", positions=positions, max_target_len=TRAINED))
    longer = lengthened(Checkpoint(model, model.config, tiny_tokenizer(), {}, {}))
    tokens = torch.randint(4, model.config.vocab_size, (2, TRAINED), generator=torch.Generator().manual_seed(1))
    assert longer.config.max_target_len == FACTOR * TRAINED
    with torch.no_grad():
        torch.testing.assert_close(longer(tokens), model(tokens))
        assert longer(tokens.repeat(1, FACTOR)).isfinite().all()


def test_time_to_a_loss_lies_between_validations():
    curve = [[10.0, 1, 3.0], [20.0, 2, 2.0], [30.0, 3, 1.0]]
    assert seconds_to(curve, 1.5) == 25.0
    assert seconds_to(curve, 3.0) == 10.0
    assert seconds_to(curve, 0.5) == float("inf")
