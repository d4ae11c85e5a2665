"""The confidence in responses: the numbers of the definitions, returned on request, and what is refused."""

import dataclasses
import math
import random
import re
from typing import Any

import grpc
import pytest

from export.bundle.confidence import word_spans
from export.bundle.manifest import Tokens
from glossa.v1 import glossa_pb2 as pb
from model.tokenizer import Tokenizer
from service.edge.admission.preparation import Preparation
from service.edge.models import answer_confidence as answer_confidence_module
from service.edge.models.answer_cache import AnswerCache
from service.edge.models.answer_confidence import (
    AnswerConfidence,
    answer_confidence,
    as_asked,
    is_like_calibrated,
    with_logprobs,
    words_per_token,
)
from service.edge.requests.request_limits import answer_size, response_size
from service.options import DecodingOptions
from service.request import Finished, FinishReason
from tests.calibrated import CALIBRATION, SOFT, WITH_ADEQUACY
from tests.edge import (
    ANSWER,
    RESULT,
    TEXTS,
    TIMINGS,
    TOKENIZERS,
    FakePool,
    answered,
    decoding_request,
    failure,
    manifest,
    method,
    served,
)

TEXT = "the small red house"
WORDS = TOKENIZERS["translation"]
PROBABILITIES = (0.75, 0.5, 0.25, 0.9)  # of zwei, rote, Häuser and the end token
SURE = dataclasses.replace(
    RESULT,
    tokens=(*WORDS.encode("zwei rote Häuser"), 2),
    token_logprobs=tuple(map(math.log, PROBABILITIES)),
)


@pytest.fixture
def calibrated(edge):
    edge.calibrate()
    edge.pool.answer = answered(SURE)
    return edge


def check(confidence):
    assert [(word.span.start, word.span.end) for word in confidence.words] == [(0, 4), (5, 9), (10, 16)]
    assert [word.confidence for word in confidence.words] == pytest.approx([0.875, 0.5, 0.125])
    assert confidence.sentence == pytest.approx(0.5), "the mean of the words, which the temperature keeps"


async def test_a_response_has_the_confidence_of_its_words_and_the_sentence(calibrated, channel):
    response = await method(channel, "Translate")(text=TEXT, include_confidence=True)
    check(response.confidence)
    assert [word.is_uncertain for word in response.confidence.words] == [False, False, True], "0.5 is not below 0.5"
    assert list(response.confidence.uncertain) == [pb.Span(start=10, end=16)]
    assert response.confidence.calibrated
    assert not response.hypotheses, "log-probabilities were computed, but not requested"
    assert calibrated.pool.requests[0].options == DecodingOptions(token_logprobs=True)


async def test_a_sentence_has_the_adequacy_of_its_answer_and_its_words_have_not(edge, channel):
    """To the 4 tokens of the text 6 with a deviation of 1 are expected, and its 19 characters are usual."""
    edge.calibrate(calibration=WITH_ADEQUACY)
    edge.pool.answer = answered(SURE)
    found = (await method(channel, "Translate")(text=TEXT, include_confidence=True)).confidence
    assert [word.confidence for word in found.words] == pytest.approx([0.875, 0.5, 0.125])
    end = 4 * (1 - PROBABILITIES[-1])
    adequacy = 1 / (1 + math.exp(-4 + 3 + end))
    assert found.sentence == pytest.approx(SOFT.map(0.5 * adequacy))
    assert found.sentence < 0.5


async def test_adequacy_knows_the_text_without_its_marks(edge, channel):
    edge.calibrate(calibration=WITH_ADEQUACY)
    edge.pool.answer = answered(SURE)
    plain = await method(channel, "Translate")(text=TEXT, include_confidence=True)
    marked = f"<b>{TEXT}</b>"
    found = await method(channel, "Translate")(text=marked, include_confidence=True, markup=pb.Markup(tags=True))
    assert found.confidence == plain.confidence


async def test_uncertain_neighbours_are_one_span(calibrated, channel):
    ask = method(channel, "Translate")
    found = await ask(text=TEXT, include_confidence=True, uncertain_below=0.6)
    assert list(found.confidence.uncertain) == [pb.Span(start=5, end=16)]
    for threshold, count in ((0.0, 0), (1.0, 3)):
        found = await ask(text=TEXT, include_confidence=True, uncertain_below=threshold)
        assert sum(word.is_uncertain for word in found.confidence.words) == count


async def test_a_stream_has_it_at_its_end(calibrated, channel):
    calibrated.pool.answer = (*ANSWER[:2], dataclasses.replace(ANSWER[2], hypotheses=(SURE,)))
    *_, last = [message async for message in method(channel, "StreamTranslate")(text=TEXT, include_confidence=True)]
    check(last.final.confidence)
    assert not last.final.hypotheses


async def test_each_hypothesis_has_its_own_and_only_the_best_is_calibrated(calibrated, channel):
    second = dataclasses.replace(SURE, text="zwei", tokens=(SURE.tokens[0], 2), token_logprobs=(-3.0, -1.0))
    calibrated.pool.answer = answered(SURE, second)
    options = {"beam_size": 2, "num_hypotheses": 2}
    response = await method(channel, "Translate")(text=TEXT, include_confidence=True, options=options)
    best, other = response.hypotheses
    assert best.confidence == response.confidence
    assert [word.confidence for word in other.confidence.words] == pytest.approx([0.125])
    assert (best.confidence.calibrated, other.confidence.calibrated) == (True, False)
    assert not best.token_logprobs


async def test_requested_log_probabilities_stay(calibrated, channel):
    options = {"token_logprobs": True}
    response = await method(channel, "Translate")(text=TEXT, include_confidence=True, options=options)
    assert [token.logprob for token in response.hypotheses[0].token_logprobs] == pytest.approx(SURE.token_logprobs)
    check(response.confidence)


async def test_it_costs_nothing_and_is_absent_without_a_request(calibrated, channel):
    response = await method(channel, "Translate")(text=TEXT)
    assert not response.HasField("confidence")
    assert calibrated.pool.requests[0].options == DecodingOptions()


async def test_long_answers_are_converted_in_a_thread(calibrated, channel, monkeypatch):
    converted = []
    plain = Preparation.convert

    async def convert(self, caller, build):
        converted.append(build)
        return await plain(self, caller, build)

    monkeypatch.setattr(Preparation, "convert", convert)
    for tokens, count in ((3, 0), (1000, 1)):
        calibrated.pool.answer = (
            Finished(FinishReason.LENGTH, "", (), generated_tokens=tokens, timings=TIMINGS, hypotheses=(SURE,)),
        )
        check((await method(channel, "Translate")(text=TEXT, include_confidence=True)).confidence)
        assert len(converted) == count


@pytest.mark.parametrize("name", ["Translate", "StreamTranslate"])
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"uncertain_below": 1.5, "include_confidence": True}, "uncertain_below: must be 0..1, got 1.5"),
        ({"uncertain_below": -0.1, "include_confidence": True}, "uncertain_below: must be 0..1, got -0.1"),
        ({"uncertain_below": math.nan, "include_confidence": True}, "uncertain_below: must be 0..1, got nan"),
        (
            {"uncertain_below": 0.5},
            "uncertain_below: must be left out without include_confidence; set include_confidence",
        ),
    ],
)
async def test_a_threshold_that_is_none_is_refused(calibrated, channel, name, fields, problem):
    error, details = await failure(method(channel, name)(text=TEXT, **fields))
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, problem)
    assert details["BadRequest"].field_violations[0].field == "uncertain_below"
    assert calibrated.pool.requests == []


async def test_a_bundle_without_a_calibration_is_named_with_the_fix(edge, channel):
    error, _ = await failure(method(channel, "Translate")(text=TEXT, include_confidence=True))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert error.details().startswith("model 'en-de' has no calibrated confidence; export it with --calibrate, or ")
    edge.calibrate("int8")
    error, _ = await failure(method(channel, "Translate")(text=TEXT, include_confidence=True))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, "the graphs in use are those of fp32"


async def test_a_model_describes_its_calibration(calibrated, channel):
    get = method(channel, "GetModel")
    assert not (await get(model="en")).model.HasField("calibration")
    assert (await get(model="en-de")).model.calibration == pb.Calibration(
        ece_before=0.25,
        ece_after=0.125,
        samples=200,
        method="isotonic",
        sentence_ece_before=0.5,
        sentence_ece_after=0.0625,
        sentence_method="temperature",
        data="dev.tsv",
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"beam_size": 4, "length_penalty": 0.6, "max_tokens": 9, "stop": (".",), "top_logprobs": 2}, True),
        ({"temperature": 0.7}, False),
        ({"prefix": "das"}, False),
        ({"repetition_penalty": 1.2}, False),
        ({"use_shortlist": True}, False),
        ({"num_beam_groups": 2, "beam_size": 4, "diversity_penalty": 1.0}, False),
        ({"ignore_eos": True}, False),
        ({"return_alternatives": True, "num_hypotheses": 2}, False),
    ],
)
def test_answers_are_like_calibrated_ones_without_anything_that_influences_the_search(options, expected):
    assert is_like_calibrated(DecodingOptions(**options)) is expected


def test_an_answer_without_words_has_a_sentence_alone():
    model = served("en-de", FakePool())
    empty = dataclasses.replace(SURE, text="", tokens=(2,), token_logprobs=(-0.5,))
    found = AnswerConfidence(model, CALIBRATION, 0.5).of(empty, source=(5, 2), text="a", options=DecodingOptions())
    assert (len(found.words), len(found.uncertain)) == (0, 0)
    assert found.sentence == 0.0


@pytest.mark.parametrize("count", [1, 3])
def test_the_size_of_an_answer_is_below_its_estimate(count):
    """A threshold at which every other word is uncertain has the most spans, in a text of many words per token."""
    texts = ["?!... (日本語日本語) «a-b» 1,000.50", *TEXTS]
    tokenizer, draw = Tokenizer.train(texts * 50, kind="bpe", vocab_size=330), random.Random(3)
    most = words_per_token(tokenizer)
    assert most > 2, "a token of several words"
    model = dataclasses.replace(served("en-de", FakePool()), tokenizer=tokenizer, words_per_token=most)
    dense = [max(range(len(tokenizer.pieces)), key=lambda token: len(word_spans(tokenizer.decode([token]))))]
    for tokens in [dense * 300, *([draw.randrange(4, tokenizer.vocab_size) for _ in range(300)] for _ in range(20))]:
        text = tokenizer.decode(tokens)
        logprobs = tuple(draw.choice((-0.01, -5.0)) for _ in tokens)
        result = dataclasses.replace(SURE, text=text, tokens=tuple(tokens), token_logprobs=logprobs)
        sure = AnswerConfidence(model, CALIBRATION, 0.5)
        found = sure.of(result, source=(5, 2), text="a", options=DecodingOptions())
        assert len(found.words) <= most * len(tokens)
        size = pb.TranslateResponse(hypotheses=[pb.Hypothesis(confidence=found)] * count, confidence=found).ByteSize()
        options = DecodingOptions(beam_size=4, num_hypotheses=count)
        plain, whole = (response_size(model.manifest, options, 300, 5, words_per_token=n).message for n in (0, most))
        assert size <= whole - plain, (text, size)
        assert len(found.words) < 200 or whole - plain < 20 * most * size, "not far above it either"


async def test_the_answer_reserves_memory_for_it(calibrated, channel):
    manifest, sizes = calibrated.models["en-de"].manifest, []
    for include in (False, True):
        await method(channel, "Translate")(text=TEXT, include_confidence=include)
        request = calibrated.pool.requests[-1]
        sizes.append(answer_size(manifest, request).message)
        assert request.words_per_token == include
    await method(channel, "Translate")(
        text=TEXT, include_confidence=True, markup=pb.Markup(tags=True), options={"beam_size": 2}
    )
    assert calibrated.pool.requests[-1].words_per_token == 1
    assert sizes[1] - sizes[0] >= 2 * 16 * 29, "of 16 tokens"


def test_messages_of_generation_request_none():
    assert answer_confidence(pb.GenerateRequest(text="a"), served("en", FakePool(), "generation")) is None


def counted(edge):
    """The number of confidences in the metric, and their sum."""
    text = edge.server.metrics.render().decode()
    found = re.findall(r'glossa_answer_confidence_ratio_(count|sum){model="en-de",version="\w+"} (\S+)', text)
    return tuple(float(value) for _, value in sorted(found))


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(answer_confidence_module, "SAMPLED_ONE_OF", 1)


async def test_confidence_that_is_requested_is_counted_if_it_is_of_the_calibrated_kind(
    calibrated, channel, monkeypatch
):
    monkeypatch.setattr(answer_confidence_module, "SAMPLED_ONE_OF", 1 << 40)
    translate = method(channel, "Translate")
    await translate(text=TEXT, include_confidence=True)
    await translate(text=TEXT, include_confidence=True, options=pb.DecodingOptions(temperature=0.5))
    await translate(text=TEXT)
    assert counted(calibrated) == (1, pytest.approx(0.5))
    assert [one.options.token_logprobs for one in calibrated.pool.requests] == [True, True, False]


async def test_in_a_sampled_second_confidence_is_counted_and_the_answer_stays_the_same(calibrated, channel, always):
    response = await method(channel, "Translate")(text=TEXT)
    assert calibrated.pool.requests[0].options == DecodingOptions(token_logprobs=True)
    assert not response.hypotheses
    assert not response.HasField("confidence")
    assert response.text == "zwei rote Häuser"
    streamed = [one async for one in method(channel, "StreamTranslate")(text=TEXT)]
    assert not streamed[-1].final.hypotheses
    assert counted(calibrated) == (2, pytest.approx(1.0))
    options = pb.DecodingOptions(token_logprobs=True)
    assert (await method(channel, "Translate")(text=TEXT, options=options)).hypotheses[0].token_logprobs
    await method(channel, "Translate")(text=TEXT, options=pb.DecodingOptions(temperature=0.5))
    assert counted(calibrated)[0] == 2, "the client's own, and an answer of another kind"


async def test_a_model_without_calibration_is_not_sampled(edge, channel, always):
    await method(channel, "Translate")(text=TEXT)
    assert edge.pool.requests[0].options == DecodingOptions()
    assert counted(edge) == (0, 0)


def test_one_second_of_128_is_sampled():
    model = served("en-de", FakePool())
    model.manifest = dataclasses.replace(model.manifest, calibrations={"fp32": CALIBRATION})
    request = decoding_request(model, TEXT)

    def is_sampled(now_s):
        return with_logprobs(request, model, now_s).options.token_logprobs

    sampled = [second for second in range(20_000) if is_sampled(second + 0.25)]
    assert [is_sampled(second + 0.99) for second in sampled] == [True] * len(sampled)
    assert 120 < len(sampled) < 195, "156 are expected"
    probed = with_logprobs(request, model, sampled[0])
    assert as_asked(probed, pb.TranslateRequest()) == request
    for message in (
        pb.TranslateRequest(include_confidence=True),
        pb.TranslateRequest(options=pb.DecodingOptions(token_logprobs=True)),
    ):
        assert as_asked(probed, message) is probed


@pytest.mark.parametrize("name", ["Translate", "StreamTranslate"])
async def test_answers_are_kept_by_what_clients_ask_whether_their_second_is_sampled_or_not(
    calibrated, channel, monkeypatch, name
):
    model = calibrated.models["en-de"]
    series = calibrated.server.metrics.model(model.name).versions[model.version].series
    model.kept_answers = AnswerCache(1 << 22, calibrated.server.metrics.answer_cache).answers(series)

    async def ask(text, *, is_sampled):
        monkeypatch.setattr(answer_confidence_module, "SAMPLED_ONE_OF", 1 if is_sampled else 1 << 40)
        call = method(channel, name)(text=text)
        final = [one async for one in call][-1].final if name == "StreamTranslate" else await call
        assert not final.hypotheses
        return final.finish_reason, len(calibrated.pool.requests), counted(calibrated)[0]

    calibrated.pool.answer = answered(dataclasses.replace(SURE, token_logprobs=()))
    assert await ask(TEXT, is_sampled=False) == (pb.FINISH_REASON_END_OF_SEQUENCE, 1, 0)
    assert (await ask(TEXT, is_sampled=True))[1:] == (1, 0), "an answer that was kept has no confidence"
    calibrated.pool.answer = answered(SURE)
    assert (await ask("a black cat", is_sampled=True))[1:] == (2, 1)
    assert (await ask("a black cat", is_sampled=False))[1:] == (2, 1)
    options = pb.DecodingOptions(token_logprobs=True)
    assert (await method(channel, "Translate")(text=TEXT, options=options)).hypotheses[0].token_logprobs
    assert len(calibrated.pool.requests) == 3


async def test_unknown_tokens_of_answered_requests_are_counted(edge, channel):
    edge.models["en-de"].manifest = dataclasses.replace(
        manifest(), tokens=Tokens(pad=0, bos=1, eos=2, unk=WORDS.encode("red")[0])
    )
    for _ in range(2):
        await method(channel, "Translate")(text="the red red house")
    text = edge.server.metrics.render().decode()
    assert re.search(r'glossa_request_unknown_tokens_total{model="en-de",version="\w+"} 4\.0', text)


@pytest.mark.parametrize("role", ["pad", "bos", "eos"])
def test_an_unknown_token_with_another_role_is_not_counted(role):
    model = served("en-de", FakePool())
    assert model.count_unknown((3, 4, 3), [3]) == 3
    tokens: dict[str, Any] = {"pad": 0, "bos": 1, "eos": 2, "unk": 3, role: 3}
    model.manifest = manifest(tokens=Tokens(**tokens))
    assert model.count_unknown((3, 4, 3), [3]) == 0
