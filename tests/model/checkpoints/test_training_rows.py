"""Digests of training rows: what counts as the same row, and that no corpus has test rows among its training rows."""

import hashlib
import json
from typing import Any

import pytest
import torch

from model.checkpoints.atomic_write import size_of
from model.checkpoints.checkpoint import CheckpointError, save_checkpoint, weights_of
from model.checkpoints.ensemble_checkpoint import save_ensemble
from model.checkpoints.training_rows import FILE, TrainingRows, read_training_rows
from model.training.data.embedded import EMBEDDED, embedded_examples, unseen_examples
from model.training.data.examples import split
from model.training.data.text_files import read_tsv
from tests.tiny import tiny_config, tiny_model, tiny_tokenizer

PAIRS = [("The man sings.", "Der Mann singt."), ("A dog", "Ein Hund"), ("A cat", "Eine Katze")]


@pytest.mark.parametrize("share", [10, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", EMBEDDED)
def test_training_held_out_and_unseen_rows_of_an_embedded_corpus_are_disjoint(kind, share, monkeypatch):
    name, count, draw = EMBEDDED[kind]
    monkeypatch.setitem(EMBEDDED, kind, (name, count // share, draw))
    training, held_out = split(embedded_examples(kind), size=3000 // share, seed=1)
    unseen = unseen_examples(name, 3000 // share)
    assert unseen is not None
    rows = training.rows
    assert len(rows.sources) > 400
    assert rows.overlap(training.pairs, training.sizes).sources == list(range(len(training.sizes or training.pairs)))
    assert rows.overlap(held_out.pairs, held_out.sizes).sources == []
    if kind == "copy":  # which documents that its short texts recur
        assert all(len(unseen.pairs[place][0]) <= 7 for place in rows.overlap(unseen.pairs).sources)
        return
    if kind == "article-ends":  # so short that some recur, of articles with other summaries
        assert rows.overlap(unseen.pairs).pairs == held_out.rows.overlap(unseen.pairs).pairs == []
        return
    assert rows.overlap(unseen.pairs, unseen.sizes).sources == []
    assert held_out.rows.overlap(unseen.pairs, unseen.sizes).sources == []


def test_rows_that_were_put_into_the_training_data_are_found(tmp_path):
    training, test = tmp_path / "training.tsv", tmp_path / "test.tsv"
    texts = [(f"text {number}", f"Text {number}") for number in range(200)]
    planted = [("text 7", "Text 7"), ("text  150", "something else"), ("TEXT 199", "text 199")]
    new = [(f"new {number}", f"Text {number}") for number in range(10)]  # of known targets
    training.write_text("".join(f"{source}\t{target}\n" for source, target in texts))
    test.write_text("".join(f"{source}\t{target}\n" for source, target in [*new, *planted]))
    overlap = read_tsv([training]).rows.overlap(read_tsv([test]).pairs)
    assert (overlap.sources, overlap.pairs) == ([10, 11, 12], [10, 12])
    assert overlap.describe("test") == (
        "warning: 3 of 13 test sources were in the training data, 2 with the same target; "
        "the first: row 11 'text 7', row 12 'text 150', row 13 'TEXT 199'"
    )
    clean = read_tsv([training]).rows.overlap(new)
    assert clean.describe("test") == "0 of 10 test sources were in the training data"


@pytest.mark.parametrize("other", ["the  MAN sings. ", "The man\u00a0sings.", "The\nman sings."])
def test_case_and_white_space_do_not_matter(other):
    assert TrainingRows.of(PAIRS).overlap([(other, "der mann singt.")]).pairs == [0]


@pytest.mark.parametrize("other", ["The man sings", "Theman sings.", "The men sing.", ""])
def test_other_characters_do(other):
    assert TrainingRows.of(PAIRS).overlap([(other, "Der Mann singt.")]).sources == []


def test_composition_of_characters_does_not_matter():
    assert TrainingRows.of([("Grün", "green")]).overlap([("Gru\u0308n", "green")]).pairs == [0]


def test_a_digest_is_the_beginning_of_a_sha256():
    rows = TrainingRows.of([("A  Dog", "Ein Hund"), ("a dog", "ein Hund")])
    for found, text in ((rows.sources, "a dog"), (rows.pairs, "a dog\tein hund")):
        assert found.tolist() == [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)]


def test_digests_ascend_and_many_cost_16_bytes_a_pair():
    rows = TrainingRows.of([(f"a {number}", f"b {number}") for number in range(1000)])
    assert all((digests.diff() > 0).all() for digests in (rows.sources, rows.pairs))
    assert size_of(rows.files()[FILE]) - 16 * 1000 < 200


def test_text_counts_by_its_lines_as_sources_alone():
    rows = TrainingRows.of([("", "one line\nanother\n\n"), ("", "a third")])
    assert (len(rows.sources), len(rows.pairs)) == (3, 0)
    overlap = rows.overlap([("", "Another\nnew\na third\n")])
    assert (overlap.sources, overlap.pairs) == ([0, 2], [])
    assert "2 of 3 test texts were in the training data; the first: row 1 'Another', row 3" in overlap.describe("test")


def test_documents_are_compared_as_wholes_and_their_sentences_as_rows():
    rows = TrainingRows.of([("The dog.", "a"), ("It is red.", "b"), ("The cat.", "c"), ("It is red.", "d")], [2, 2])
    new = [("The cow.", "a"), ("It is red.", "b"), ("The cat.", "c"), ("It is red.", "e")]
    assert rows.overlap(new, [2, 2]).sources == [1]
    assert rows.overlap(new, [2, 2]).pairs == []
    assert rows.overlap(new).sources == [1, 2, 3]
    assert "documents" in rows.overlap(new, [2, 2]).describe("test")


def test_no_rows_have_no_overlap():
    nothing = TrainingRows.of([])
    assert nothing.overlap(PAIRS).sources == []
    assert TrainingRows.of(PAIRS).overlap([]).sources == []


def saved(path, rows, seed=1):
    config, lineage = tiny_config(), {"seed": seed, **(rows.lineage() if rows else {})}
    save_checkpoint(
        path, config, weights_of(tiny_model(config, seed=seed)), tokenizer=tiny_tokenizer(), train=None, metrics={},
        lineage=lineage, extra=rows.files() if rows else None,
    )  # fmt: skip
    return path


def test_a_checkpoint_keeps_them(tmp_path):
    rows = TrainingRows.of(PAIRS).joined(None, "the base b")
    found: Any = read_training_rows(saved(tmp_path / "checkpoint", rows))
    assert torch.equal(found.sources, rows.sources)
    assert torch.equal(found.pairs, rows.pairs)
    assert found.unknown == ("the base b",)
    assert "as far as it is known; not recorded: the rows of the base b" in found.overlap(PAIRS).describe("test")
    assert read_training_rows(saved(tmp_path / "old", None)) is None


def test_a_file_of_something_else_is_refused(tmp_path):
    path = saved(tmp_path / "checkpoint", None)
    (path / FILE).write_bytes((path / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=rf"{FILE}: sources must be int64 digests"):
        read_training_rows(path)


@pytest.mark.parametrize(("second", "unknown"), [(PAIRS[1:], ()), (None, ("the member two",))])
def test_an_ensemble_has_those_of_its_members(tmp_path, second, unknown):
    one = saved(tmp_path / "one", TrainingRows.of(PAIRS[:1]))
    two = saved(tmp_path / "two", TrainingRows.of(second) if second else None, seed=2)
    save_ensemble([one, two], tmp_path / "both")
    rows: Any = read_training_rows(tmp_path / "both")
    overlap = rows.overlap(PAIRS)
    assert overlap.sources == ([0, 1, 2] if second else [0])
    assert overlap.unknown == unknown


def test_an_ensemble_of_members_without_any_has_none(tmp_path):
    members = [saved(tmp_path / str(seed), None, seed) for seed in (1, 2)]
    save_ensemble(members, tmp_path / "both")
    assert read_training_rows(tmp_path / "both") is None
    assert "training_rows" not in json.loads((tmp_path / "both" / "lineage.json").read_bytes())


def test_rows_without_a_text_shift_no_places():
    rows = TrainingRows.of([("hello", "x"), (" ", "y"), ("a b", "c")])
    found = rows.overlap([("\u3000", "q"), ("nope", "z"), ("hello", "x"), ("a b", "d")])
    assert (found.sources, found.pairs) == ([2, 3], [2])


def test_lines_of_text_that_recur_are_no_warning():
    rows = TrainingRows.of([("", "ROMEO:\nAy me!")])
    described = rows.overlap([("", "ROMEO:\nSpeak on.")]).describe("validation")
    assert described == "1 of 2 validation texts were in the training data; the first: row 1 'ROMEO:'"
