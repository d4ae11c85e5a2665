"""Confidences of two answers as one, by hand."""

import numpy as np
import pytest

from glossa.v1 import glossa_pb2 as pb
from service.edge.models.pivot_confidence import HARMLESS, composed_confidence


def confidence(sentence, *words):
    """words: start, end and confidence of each."""
    return pb.Confidence(
        sentence=sentence,
        words=[pb.WordConfidence(span=pb.Span(start=start, end=end), confidence=sure) for start, end, sure in words],
        calibrated=True,
    )


FIRST = confidence(0.5, (0, 3, 0.9), (4, 8, 0.4))  # of "der Hund"
SECOND = confidence(0.8, (0, 2, 0.6), (3, 7, 0.8))  # of "le chat", in three tokens and the end
TARGETS, SOURCES = [(0, 2), (2, 5), (5, 7), (7, 7)], [(0, 3), (3, 8), (8, 8)]


def composed(first=FIRST, second=SECOND, weights=((1, 0, 0), (0, 1, 0), (0.5, 0, 0.5), (0, 0, 1)), adequacy=1.0):
    return composed_confidence(first, second, np.array(weights), TARGETS, SOURCES, adequacy=adequacy, threshold=0.6)


def test_each_word_is_lowered_by_the_words_that_it_attends_to():
    found = composed()
    kept = [HARMLESS + (1 - HARMLESS) * via for via in (0.9, (0.4 + 0.5 * 0.9) / 1.5)]  # the end has no words
    assert [word.confidence for word in found.words] == pytest.approx([0.6 * kept[0], 0.8 * kept[1]])
    assert found.sentence == pytest.approx(0.8 * (0.6 * kept[0] + 0.8 * kept[1]) / 1.4)
    assert [word.is_uncertain for word in found.words] == [True, False]
    assert [(span.start, span.end) for span in found.uncertain] == [(0, 2)]
    assert not found.calibrated


def test_a_text_between_that_lacks_something_lowers_the_sentence_alone():
    whole, half = composed(), composed(adequacy=0.5)
    assert half.sentence == pytest.approx(whole.sentence / 2)
    assert half.words == whole.words


def test_a_word_that_attends_to_no_words_is_lowered_by_their_mean():
    found = composed(weights=((0, 0, 1),) * 4)
    assert [word.confidence for word in found.words] == pytest.approx(
        [one * (HARMLESS + (1 - HARMLESS) * 0.65) for one in (0.6, 0.8)]
    )


def test_an_answer_without_words_has_none():
    found = composed(second=confidence(0.0))
    assert (found.sentence, len(found.words)) == (0.0, 0)
