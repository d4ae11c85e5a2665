"""The dataclasses against messages written by hand."""

import dataclasses
from typing import Any

import pytest

from glossa.client import types
from glossa.client.types import Answer, Attended, Classification, Score, Stream, attended_of, attention_kind, read
from glossa.v1 import glossa_pb2 as pb

USAGE = pb.Usage(prompt_tokens=3, generated_tokens=2)
TIMINGS = pb.Timings()
TIMINGS.queue.FromMilliseconds(1)
TIMINGS.prefill.FromMilliseconds(20)
TIMINGS.first_token.FromMilliseconds(25)
TIMINGS.total.FromMilliseconds(1500)
COST: Any = {"prompt_tokens": 3, "generated_tokens": 2, "queue_s": 0.001, "prefill_s": 0.02, "total_s": 1.5}
ALIGNMENT = pb.Alignment(
    source_spans=[pb.Span(start=0, end=2), pb.Span(start=2, end=2)],
    target_spans=[pb.Span(start=0, end=4)],
    rows=[pb.AlignmentRow(weights=[0.25, 0.75])],
    positions=[1],
)
LOGPROB = pb.TokenLogprob(token=7, text="a", logprob=-0.5, top_logprobs=[{"token": 8, "text": "b", "logprob": -1}])


def test_an_answer_has_every_field_of_its_message():
    hypothesis = pb.Hypothesis(
        text="a", tokens=[7], finish_reason=pb.FINISH_REASON_LENGTH, score=-1, token_logprobs=[LOGPROB]
    )
    hypothesis.alignment.CopyFrom(ALIGNMENT)
    message = pb.TranslateResponse(text="a", tokens=[7, 2], usage=USAGE, timings=TIMINGS, seed=0)
    message.finish_reason = pb.FINISH_REASON_STOP_STRING
    message.hypotheses.extend([hypothesis, pb.Hypothesis()])
    answer = read(Answer, message)
    assert {name: getattr(answer, name) for name in COST} == COST
    assert (answer.text, answer.tokens, answer.finish_reason) == ("a", (7, 2), "stop_string")
    assert (answer.first_token_s, answer.seed) == (0.025, 0)
    first, second = answer.hypotheses
    token = types.TokenLogprob(7, "a", -0.5, (types.TokenAlternative(8, "b", -1.0),))
    alignment = types.Alignment(((0, 2), (2, 2)), ((0, 4),), ((0.25, 0.75),), (1,))
    assert first == types.Hypothesis("a", "length", -1.0, 0.0, (7,), (token,), alignment)
    assert (second.alignment, second.finish_reason) == (None, "")


def test_an_answer_has_the_confidence_of_its_words():
    word = pb.WordConfidence(span=pb.Span(start=0, end=4), confidence=0.25, is_uncertain=True)
    sure = pb.Confidence(sentence=0.75, words=[word], calibrated=True, uncertain=[word.span])
    expected = types.Confidence(0.75, (types.WordConfidence((0, 4), 0.25, True),), ((0, 4),), True)
    answer = read(Answer, pb.TranslateResponse(confidence=sure, hypotheses=[pb.Hypothesis(confidence=sure)]))
    assert (answer.confidence, answer.hypotheses[0].confidence) == (expected, expected)
    last = Stream().piece(pb.StreamTranslateResponse(final=pb.Completion(confidence=sure)))
    assert last.answer is not None
    assert last.answer.confidence == expected
    assert read(Answer, pb.TranslateResponse()).confidence is None


def test_fields_that_a_message_lacks_are_none_or_empty():
    answer = read(Answer, pb.GenerateResponse())
    assert (answer.seed, answer.hypotheses, answer.tokens, answer.finish_reason, answer.total_s) == (
        None,
        (),
        (),
        "",
        0,
    )
    assert read(Score, pb.ScoreResponse()).alignment is None


def test_a_stream_ends_with_the_whole_answer():
    stream = Stream()
    final = pb.Completion(finish_reason=pb.FINISH_REASON_END_OF_SEQUENCE, usage=USAGE, timings=TIMINGS, seed=9)
    first = stream.piece(pb.StreamTranslateResponse(text="ab", tokens=[5]))
    last = stream.piece(pb.StreamTranslateResponse(text="c", tokens=[6, 2], final=final))
    assert (first.text, first.tokens, first.answer) == ("ab", (5,), None)
    assert (last.text, last.tokens) == ("c", (6, 2))
    assert last.answer is not None
    assert (last.answer.text, last.answer.tokens, last.answer.seed) == ("abc", (5, 6, 2), 9)


def test_weights_of_tokens_have_spans():
    message = pb.ClassifyResponse(
        labels=[{"label": "good", "probability": 0.75}],
        token_weights=[{"span": {"start": 1, "end": 4}, "weight": 0.5}],
        usage=USAGE,
        timings=TIMINGS,
    )
    found = read(Classification, message)
    assert found == Classification(
        labels=(types.LabelProbability("good", 0.75),), token_weights=(types.TokenWeight((1, 4), 0.5),), **COST
    )


def test_candidates_of_masks():
    first = pb.TokenCandidate(token=4, text="a", probability=0.5)
    message = pb.FillMaskResponse(masks=[pb.MaskPrediction(candidates=[first]), pb.MaskPrediction()])
    assert types.mask_candidates_of(message) == [(types.TokenCandidate(4, "a", 0.5),), ()]


def test_attention_weights_become_rows_of_key_tokens():
    tokens = [pb.AttentionToken(token=number, text=str(number), span=pb.Span(end=number)) for number in range(5)]
    message = pb.AttendResponse(source=tokens[:3], target=tokens[:2], predicted=tokens[2:4], target_text="t")
    message.matrices.add(kind=pb.ATTENTION_KIND_CROSS, layer=2, head=1, weights=range(6))
    message.matrices.add(kind=pb.ATTENTION_KIND_DECODER, weights=range(4))
    attended = attended_of(message)
    assert isinstance(attended, Attended)
    cross, own = attended.matrices
    assert (cross.kind, cross.layer, cross.head, cross.rows) == ("cross", 2, 1, ((0, 1, 2), (3, 4, 5)))
    assert (own.kind, own.rows) == ("decoder", ((0, 1), (2, 3)))
    assert attended.source[2] == types.AttentionToken(2, "2", (0, 2))
    assert attended.rows("cross") == attended.predicted
    assert attended.rows("encoder") == attended.columns("encoder") == attended.columns("cross") == attended.source
    assert attended.rows("decoder") == attended.columns("decoder") == attended.target
    assert attention_kind(pb.ATTENTION_KIND_ENCODER) == "encoder"


@pytest.mark.parametrize("kind", ["TokenAlternative", "TokenLogprob", "Alignment", "Hypothesis", "TokenCandidate"])
def test_a_dataclass_has_the_fields_of_its_message(kind):
    fields = {field.name for field in dataclasses.fields(getattr(types, kind))}
    assert fields == {field.name for field in getattr(pb, kind).DESCRIPTOR.fields}
