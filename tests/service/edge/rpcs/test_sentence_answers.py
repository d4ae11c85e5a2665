"""The confidence of a text, from those of its sentences."""

import pytest

from glossa.v1 import glossa_pb2 as pb
from service.edge.rpcs.sentence_answers import joined
from service.options import DecodingOptions
from service.text.mark_scanner import Kinds
from service.text.segmentation import splitter_for
from service.text.source_sentences import split
from tests.edge import ANSWER


def answer(text, sentence, *words):
    confidence = pb.Confidence(sentence=sentence, calibrated=True)
    for start, end in words:
        confidence.words.add(span=pb.Span(start=start, end=end), confidence=0.5)
    return pb.TranslateResponse(text=text, confidence=confidence)


def test_an_answer_without_words_lowers_the_confidence_of_the_text():
    text = split("I slept. I ate.", splitter_for("en"), Kinds(), lambda _: True)
    assert text is not None
    message = pb.TranslateRequest(text="I slept. I ate.", include_confidence=True)
    parts = answer("Ich schlief", 0.9, (0, 3), (4, 11)), answer("", 0.0)
    found = joined(text, parts, message, DecodingOptions(), ANSWER[-1]).confidence
    assert found.sentence == pytest.approx((2 * 0.9 + 0.0) / 3)
    assert len(found.words) == 2
    nothing = joined(text, (answer("", 0.0), answer("", 0.0)), message, DecodingOptions(), ANSWER[-1]).confidence
    assert nothing.sentence == 0.0
