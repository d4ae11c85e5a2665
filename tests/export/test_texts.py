"""Which text of a file a model of each kind reads."""

import pytest

from export.texts import Development, own_development, read_development, read_pairs
from model.checkpoints.checkpoint import Checkpoint
from model.config import DEFAULT_LANGUAGES, ConfigError, LanguagePair, TrainConfig
from tests.tiny import tiny_config, tiny_tokenizer


def checkpoint(architecture, *, documents=None, **changes):
    train = None if documents is None else TrainConfig(steps=1, documents=documents)
    return Checkpoint(None, tiny_config(architecture, **changes), tiny_tokenizer(), {}, {"data": "other"}, train)


@pytest.fixture
def tsv(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a cat\tein Kater\nthe dog\tder Hund\n")
    return path


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("a cat\nthe dog\n\nbirds\n")
    return path


def test_a_model_that_translates_reads_pairs_and_sources(tsv, lines):
    model = checkpoint("encoder_decoder")
    assert list(read_pairs(tsv, model)) == [("a cat", "ein Kater"), ("the dog", "der Hund")]
    assert ("birds", "") in read_pairs(lines, model)
    assert read_pairs(None, model) == ()


def test_a_model_that_continues_text_reads_the_first_column_and_documents_as_it_was_trained(tsv, lines):
    model = checkpoint("decoder")
    assert list(read_pairs(tsv, model)) == [("", "a cat"), ("", "the dog")]
    assert [text for _, text in read_pairs(lines, model)] == ["a cat", "the dog", "birds"]
    joined = [text for _, text in read_pairs(lines, checkpoint("decoder", documents="stream"))]
    assert joined == ["a cat\nthe dog\n\nbirds\n"]


def test_development_text_has_references_where_the_file_has_both_columns(tsv, lines):
    model = checkpoint("encoder_decoder")
    assert read_development(None, DEFAULT_LANGUAGES, model) is None
    found = read_development(tsv, DEFAULT_LANGUAGES, model)
    assert found == Development(["a cat", "the dog"], ["ein Kater", "der Hund"], "pairs.tsv")
    for file, other in ((lines, model), (tsv, checkpoint("decoder"))):
        found = read_development(file, DEFAULT_LANGUAGES, other)
        assert found is not None
        assert found.texts
        assert not found.references


def test_languages_that_the_model_does_not_have_are_refused_before_the_file_is_read(tmp_path):
    with pytest.raises(ConfigError, match="source_language: must be left out"):
        read_development(tmp_path / "missing.tsv", LanguagePair("de", ""), checkpoint("encoder_decoder"))


def test_only_an_embedded_corpus_is_development_text_of_its_own():
    assert own_development(checkpoint("decoder")) is None
