import random

import pytest

from model.tokenizer import Tokenizer
from model.training.data.labelled_spans import (
    LabelledSpan,
    labels_of,
    read_spans,
    span_scores,
    spans_of,
    word_labels,
    word_places,
    write_spans,
)
from service.edge.rpcs.tagging import Tagged, spans_of_words, words_of

TEXT = "An old cat sleeps in the small-town station."
SPANS = [LabelledSpan(3, 10, "animal"), LabelledSpan(25, 43, "place")]
TOKENIZER = Tokenizer.train([TEXT], kind="words", vocab_size=64)


def test_spans_are_written_and_read():
    assert read_spans(write_spans(SPANS), TEXT) == SPANS
    assert write_spans([]) == "-"
    assert read_spans("-", TEXT) == []
    assert read_spans("0:2:a:b", TEXT) == [LabelledSpan(0, 2, "a:b")]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("0:3", "must be START:END:LABEL"),
        ("a:3:x", "must be START:END:LABEL"),
        ("0:99:x", "must have 0 <= start < end <= 44"),
        ("3:3:x", "must have 0 <= start"),
        ("3:10:x 9:12:y", "must have 10 <= start"),
    ],
)
def test_a_malformed_span_is_refused(written, problem):
    with pytest.raises(ValueError, match=problem):
        read_spans(written, TEXT)


def test_each_word_has_the_label_of_its_span():
    labels = word_labels(TOKENIZER, TEXT, SPANS)
    words = [TEXT[start:end] for _, start, end in word_places(TOKENIZER, TEXT)]
    assert words == ["An", "old", "cat", "sleeps", "in", "the", "small", "-", "town", "station", "."]
    assert list(labels.values()) == [
        "O", "B-animal", "I-animal", "O", "O", "O", "B-place", "I-place", "I-place", "I-place", "O",
    ]  # fmt: skip
    assert spans_of(list(labels.values()), word_places(TOKENIZER, TEXT)) == SPANS
    assert labels_of(iter(["place", "animal", "place"])) == ("B-animal", "B-place", "I-animal", "I-place", "O")


def test_words_and_spans_are_those_that_a_server_makes():
    rng, words = random.Random(3), word_places(TOKENIZER, TEXT)
    starts, offsets = TOKENIZER.word_starts(TEXT), TOKENIZER.offsets(TEXT)
    for _ in range(100):
        labels = rng.choices(labels_of(["a", "b"]), k=len(starts))
        served = words_of(TEXT, offsets, starts, [(label, 0.5) for label in labels])
        assert [word.span for word in served] == [(start, end) for _, start, end in words]
        ours = spans_of([labels[place] for place, _, _ in words], words)
        assert spans_of_words(served) == [Tagged((start, end), label, 0.5) for start, end, label in ours]


def test_only_exact_spans_count():
    wrong = [SPANS[0], LabelledSpan(25, 43, "animal"), LabelledSpan(25, 35, "place")]
    assert span_scores([wrong], [SPANS]) == pytest.approx((1 / 3, 1 / 2, 2 / 5))
    assert span_scores([[]], [[]]) == (1.0, 1.0, 1.0)
    assert span_scores([[]], [SPANS]) == (1.0, 0.0, 0.0)
