"""Labels of tokens become words and spans: by IOB2, and as the pipelines of `transformers` do."""

import random

import numpy as np
import pytest

from service.edge.rpcs.tagging import Tagged, spans_of_words, token_labels, words_of


def tagged(*labels):
    """Words of one character each, with the probability 1/2, 1/4, ..."""
    return [Tagged((place, place + 1), label, 0.5 ** (place + 1)) for place, label in enumerate(labels)]


@pytest.mark.parametrize(
    ("labels", "spans"),
    [
        (("O", "O"), []),
        (("B-a", "I-a", "O", "B-a"), [(0, 2, "a"), (3, 4, "a")]),
        (("B-a", "B-a"), [(0, 1, "a"), (1, 2, "a")]),
        (("I-a", "I-a", "I-b"), [(0, 2, "a"), (2, 3, "b")]),
        (("B-a", "I-b", "I-a"), [(0, 1, "a"), (1, 2, "b"), (2, 3, "a")]),
        (("I-a", "O", "I-a"), [(0, 1, "a"), (2, 3, "a")]),
        (("a", "a", "b", "O", "b"), [(0, 2, "a"), (2, 3, "b"), (4, 5, "b")]),
        (("B-O", "I-O", "O", "B-I-x", "B-B-"), [(0, 2, "O"), (3, 4, "I-x"), (4, 5, "B-")]),
    ],
)
def test_words_of_one_name_in_a_row_are_a_span(labels, spans):
    found = spans_of_words(tagged(*labels))
    assert [(*one.span, one.label) for one in found] == spans


def test_a_span_has_the_mean_probability_of_its_words():
    (span,) = spans_of_words(tagged("B-a", "I-a", "I-a"))
    assert span.probability == pytest.approx((0.5 + 0.25 + 0.125) / 3)


def test_a_word_has_the_label_of_its_first_token():
    text = " a  housecat."
    spans = [(0, 2), (2, 9), (9, 12), (12, 13), (12, 13)]
    labels = [("O", 0.5), ("B-x", 0.75), ("I-y", 0.9), ("B-z", 0.8), ("O", 0.1)]
    words = words_of(text, spans, [True, True, False, True, False], labels)
    assert [(text[slice(*word.span)], word.label, word.probability) for word in words] == [
        ("a", "O", 0.5),
        ("housecat", "B-x", 0.75),
        (".", "B-z", 0.8),
    ]


def test_the_most_likely_label_has_its_softmax():
    logits = np.array([[1000.0, 999.0], [-5.0, -5.0]], np.float32)
    (first, high), (second, half) = token_labels(logits, ("x", "y"))
    assert (first, second) == ("x", "x")
    assert (high, half) == pytest.approx((1 / (1 + np.exp(-1.0)), 0.5))


def test_spans_are_those_of_the_pipeline_of_transformers():
    transformers = pytest.importorskip("transformers")
    group = transformers.TokenClassificationPipeline.group_entities
    pipeline = transformers.TokenClassificationPipeline.__new__(transformers.TokenClassificationPipeline)
    pipeline.tokenizer = type("Joiner", (), {"convert_tokens_to_string": staticmethod(" ".join)})()
    rng = random.Random(5)
    for _ in range(200):
        words = tagged(*rng.choices(("B-a", "I-a", "B-b", "I-b", "O", "c"), k=8))
        entities = [
            {"word": "w", "entity": word.label, "score": word.probability, "start": word.span[0], "end": word.span[1]}
            for word in words
        ]
        expected = [one for one in group(pipeline, entities) if one["entity_group"] != "O"]
        found = spans_of_words(words)
        assert [(*one.span, one.label) for one in found] == [
            (one["start"], one["end"], one["entity_group"]) for one in expected
        ]
        assert [one.probability for one in found] == pytest.approx([one["score"] for one in expected])
