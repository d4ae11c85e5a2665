"""Documents whose sentences are translated with those before them, on a real port and a fake engine."""

import asyncio
import dataclasses

import grpc
import pytest

from export.bundle.manifest import Context
from glossa.v1 import glossa_pb2 as pb
from model.tokenizer import Tokenizer
from service.edge.admission.request_memory import CALL_BYTES, Reservation
from service.edge.calls.items import ITEM_BYTES
from service.edge.rpcs import documents
from service.edge.rpcs.documents import DOCUMENT_FACTOR
from service.edge.rpcs.model_calls import TRIES
from service.errors import DeadlineExceeded, EngineUnavailable
from service.request import FinishReason
from tests.edge import TEXTS, answered, failure, manifest, method, running
from tests.service.edge.calls.test_batches import limit_memory, memory_given_back
from tests.service.edge.rpcs.test_documents import send, translated

SEPARATOR = 4
GERMAN = "zwei rote Häuser"  # every answer
RED, CAT = "The small red house.", "A black cat."


@pytest.fixture
async def edge():
    async with running() as edge:
        model = edge.models["en-de"]
        model.tokenizer = Tokenizer.train([*TEXTS, RED, CAT], kind="words", vocab_size=64, with_separator=True)
        limits = dataclasses.replace(model.manifest.limits, max_source_len=24, max_target_len=40, vocab_size=64)
        model.manifest = manifest(limits=limits, context=Context(sentences=2, separator=SEPARATOR))
        yield edge


@pytest.fixture
async def channel(edge):
    async with grpc.aio.insecure_channel(edge.address) as channel:
        yield channel


@pytest.fixture
def tokens(edge):
    """The source and the prompt of the request for a text after some sentences."""
    encode = edge.models["en-de"].tokenizer.encode

    def tokens(text, *before):
        source, prompt = [], [1]
        for sentence in before:
            source += [*encode(sentence), SEPARATOR]
            prompt += [*encode(GERMAN), SEPARATOR]
        return (*source, *encode(text), 2), tuple(prompt)

    return tokens


def sent(edge):
    return [(request.source, request.prompt) for request in edge.pool.requests]


async def test_a_sentence_is_read_after_those_before_it_and_their_translations(edge, channel, tokens):
    segments, final = await translated(channel, f"{RED} {CAT} {CAT} {RED}", context_sentences=2)
    assert sent(edge) == [tokens(RED), tokens(CAT, RED), tokens(CAT, RED, CAT), tokens(RED, CAT, CAT)]
    assert "".join(segment.text for segment in segments) == " ".join([GERMAN] * 4)
    assert (final.segments, final.failed) == (4, 0)
    edge.pool.requests.clear()
    await translated(channel, f"{RED} {CAT} {CAT}", context_sentences=1)
    assert sent(edge) == [tokens(RED), tokens(CAT, RED), tokens(CAT, CAT)]
    edge.pool.requests.clear()
    await translated(channel, f"{RED} {CAT}")
    assert sorted(sent(edge)) == sorted([tokens(RED), tokens(CAT)])


HTML = f"<p>{RED} <img alt='{CAT}'> {CAT}</p><p>{CAT}</p>"
INSIDE = f"<p>The red <img alt='{CAT}' src=x> house. {RED}</p>"
UNIT = "<trans-unit><source>{}</source></trans-unit>"
XLIFF = "<xliff version='1.2'>{}</xliff>".format(
    "".join(f"<file>{UNIT.format(RED)}{UNIT.format(CAT)}</file>" for _ in range(2))
)


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        (f"{RED} {CAT}\n\n{CAT} {RED}\n", {}, [(RED,), (CAT, RED), (CAT,), (RED, CAT)]),
        (f"{RED} 7! {CAT}\n{CAT}", {}, [(RED,), (CAT, RED), (CAT,)]),
        (HTML, {"format": pb.DOCUMENT_FORMAT_HTML}, [(RED,), (CAT,), (CAT, RED), (CAT,)]),
        (
            INSIDE,
            {"format": pb.DOCUMENT_FORMAT_HTML},
            [("The red house.",), (CAT,), (RED, "The red house.")],
        ),
        (XLIFF, {"format": pb.DOCUMENT_FORMAT_XLIFF}, [(RED,), (CAT, RED)] * 2),
    ],
)
async def test_a_context_ends_with_its_paragraph(edge, channel, tokens, text, fields, expected):
    """Of an XLIFF file with the file; attributes of HTML are in no paragraph."""
    _, final = await translated(channel, text, context_sentences=2, **fields)
    assert sorted(sent(edge)) == sorted(tokens(*one) for one in expected)
    assert final.failed == 0


async def test_paragraphs_run_together_and_the_sentences_of_each_in_order(edge, channel):
    edge.pool.hold = True
    call = send(channel, f"{RED} {CAT}\n\n" * 3, context_sentences=1)
    await edge.pool.until(lambda: len(edge.pool.requests) == 3)
    assert [request.prompt for request in edge.pool.requests] == [(1,)] * 3
    edge.pool.send(edge.pool.sinks[1], edge.pool.answer)
    await edge.pool.until(lambda: len(edge.pool.requests) == 4)
    assert len(edge.pool.requests[3].prompt) > 1
    call.cancel()
    await edge.pool.until(lambda: len(edge.pool.cancelled) == 3)


async def test_the_context_begins_anew_after_a_sentence_that_failed(edge, channel, tokens):
    segments, final = await translated(channel, f"{RED} A dragon. {CAT} {RED}", context_sentences=2)
    assert sent(edge) == [tokens(RED), tokens(CAT), tokens(RED, CAT)]
    assert [segment.HasField("error") for segment in segments if not segment.is_copied] == [False, True, False, False]
    assert final.failed == 1


async def test_the_context_begins_anew_after_a_sentence_that_cannot_be_cut(edge, channel, tokens, monkeypatch):
    monkeypatch.setattr(documents, "parts_that_fit", lambda text, fits: None)
    long = " ".join(["The small red house"] * 7) + "."
    _, final = await translated(channel, f"{RED} {long} {CAT} {RED}", context_sentences=2)
    assert sent(edge) == [tokens(RED), tokens(CAT), tokens(RED, CAT)]
    assert final.failed == 1


async def test_a_sentence_that_ends_before_it_begins_keeps_none_waiting(edge, channel, tokens, monkeypatch):
    """The first one finds no memory until its deadline."""
    grow, refused = Reservation.grow, list[int]()

    def limited(reservation, size):
        if size == ITEM_BYTES and not refused:
            refused.append(size)
            raise DeadlineExceeded("the deadline passed")
        grow(reservation, size)

    monkeypatch.setattr(Reservation, "grow", limited)
    _, final = await translated(channel, f"{RED} {CAT} {RED}", context_sentences=2)
    assert sent(edge) == [tokens(CAT), tokens(RED, CAT)]
    assert (final.segments, final.failed) == (3, 1)


async def test_a_failing_engine_keeps_no_sentence_waiting(edge, channel):
    edge.pool.answer = (EngineUnavailable("gone", retry_after_s=0.01),)
    _, final = await translated(channel, f"{RED} {CAT} {CAT}", context_sentences=2)
    assert (final.segments, final.failed) == (3, 3)
    assert [request.prompt for request in edge.pool.requests] == [(1,)] * 3 * TRIES


async def test_sentences_that_wait_for_others_hold_no_memory(edge, channel):
    """Room for the document, the items of half a window, and no answer beside them."""
    text = " ".join([RED] * 40)
    await translated(channel, text, context_sentences=1)
    await memory_given_back(edge)
    for count in range(4, 40, 5):
        limit_memory(edge, answers=0, item_bytes=CALL_BYTES + DOCUMENT_FACTOR * len(text), count=count)
        async with asyncio.timeout(20):
            _, final = await translated(channel, text, context_sentences=1)
        assert (final.segments, final.failed) == (40, 0)
        await memory_given_back(edge)


async def test_least_tokens_and_a_prefix_keep_their_room(edge, channel, tokens):
    """A target has 40 tokens: 25 of the answer and 16 of the context do not fit."""
    long = " ".join([RED.removesuffix(".")] * 4) + "."
    for options in (pb.DecodingOptions(min_tokens=1), pb.DecodingOptions(min_tokens=30)):
        await translated(channel, f"{CAT} {CAT} {long}", context_sentences=2, options=options)
        assert sent(edge)[2] == tokens(long)
        edge.pool.requests.clear()
    options = pb.DecodingOptions(prefix=" ".join(["zwei rote Häuser"] * 12))
    await translated(channel, f"{CAT} {CAT}", context_sentences=2, options=options)
    assert sent(edge)[1] == tokens(CAT)


async def test_sentences_that_leave_no_room_are_left_out(edge, channel, tokens):
    """A source has 24 tokens; a target 40, of which the answer needs max_tokens, or twice the text's and eight."""
    long = " ".join([RED.removesuffix(".")] * 4) + "."  # with its end 18 tokens, and 5 for each sentence before
    options = pb.DecodingOptions(max_tokens=20)
    await translated(channel, f"{CAT} {CAT} {long}", context_sentences=2, options=options)
    assert sent(edge)[2] == tokens(long, CAT)
    edge.pool.requests.clear()
    await translated(channel, f"{CAT} {CAT} {long}", context_sentences=2)
    assert sent(edge)[2] == tokens(long)
    edge.pool.requests.clear()
    options = pb.DecodingOptions(max_tokens=35)
    await translated(channel, f"{CAT} {CAT} {RED}", context_sentences=2, options=options)
    assert sent(edge)[2] == tokens(RED, CAT)
    assert [request.max_tokens for request in edge.pool.requests] == [35] * 3
    edge.pool.requests.clear()
    options = pb.DecodingOptions(max_length_ratio=1.0)
    await translated(channel, f"{CAT} {RED}", context_sentences=2, options=options)
    assert [request.max_tokens for request in edge.pool.requests] == [5, 6], "of the text's own tokens"


async def test_marks_and_terms_are_no_part_of_the_context(edge, channel, tokens):
    page = "<p>The small <b>red</b> house. A black cat.</p>"
    await translated(channel, page, format=pb.DOCUMENT_FORMAT_HTML, context_sentences=1)
    assert sent(edge) == [tokens(RED), tokens(CAT, RED)]
    edge.pool.requests.clear()
    edge.pool.answer = answered(
        dataclasses.replace(edge.pool.answer[-1].hypotheses[0], text=GERMAN, reason=FinishReason.END_OF_SEQUENCE)
    )
    glossary = pb.Glossary(terms=[pb.GlossaryTerm(source="house", targets=["rote Häuser"])])
    await translated(channel, f"{RED} {CAT}", glossary=glossary, context_sentences=1)
    assert sent(edge) == [tokens(RED), tokens(CAT, RED)]


@pytest.mark.parametrize(
    ("context", "sentences", "problem"),
    [
        (None, 1, "context_sentences: must be 0: model 'en-de' was trained without context, got 1; train one with"),
        (2, 3, "context_sentences: must be 0..2 for model 'en-de', got 3"),
        (2, -1, "context_sentences: must be 0..2 for model 'en-de', got -1"),
    ],
)
async def test_more_context_than_a_model_was_trained_with_is_refused(edge, channel, context, sentences, problem):
    known = context and Context(sentences=context, separator=SEPARATOR)
    edge.models["en-de"].manifest = dataclasses.replace(edge.models["en-de"].manifest, context=known)
    error, _ = await failure(send(channel, RED, context_sentences=sentences))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert problem in error.details()
    assert edge.pool.requests == []


async def test_a_model_names_its_context(edge, channel):
    response = await method(channel, "GetModel")(model="en-de")
    assert response.model.context_sentences == 2
    assert (await method(channel, "GetModel")(model="en")).model.context_sentences == 0
