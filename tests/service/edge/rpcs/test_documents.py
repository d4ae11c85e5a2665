"""Documents on a real port: their segments, how they end, and what they cost."""

import asyncio
import contextlib
import re
from typing import Any

import grpc
import pytest

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.items import ItemLimits, ItemRunner
from service.edge.observability.metrics import Method, Metrics
from service.edge.rpcs import documents
from service.edge.rpcs.documents import DOCUMENT_FACTOR, text_of
from service.edge.rpcs.model_calls import TRIES
from service.errors import DeadlineExceeded, DeadlineTooSoon, EngineUnavailable, Overloaded
from service.text.spans import Cursor
from tests.edge import ANSWER, TEXTS, a_call, failure, method, running
from tests.virtual_time import run_virtually

CODES = grpc.StatusCode
RPC = Method("bidi_stream", "glossa.v1.TranslationService", "TranslateDocument")
GERMAN = "zwei rote Häuser"  # every answer
TEXT = "the small red house\n\n* * *\na black cat 😀\r\n"


@pytest.fixture
async def edge():
    async with running(max_document_bytes=2000) as edge:
        yield edge


@pytest.fixture
async def channel(edge):
    async with grpc.aio.insecure_channel(edge.address) as channel:
        yield channel


def messages(text, size=None, **fields):
    parts = [text[start : start + size] for start in range(0, len(text), size)] if size else [text]
    first = pb.TranslateDocumentRequest(text=parts[0], **fields)
    return [first, *(pb.TranslateDocumentRequest(text=part) for part in parts[1:])]


def send(channel, text, size=None, **fields):
    return method(channel, "TranslateDocument")(iter(messages(text, size, **fields)))


async def translated(channel, text, size=None, **fields):
    """The segments, whose ranges must tile both texts, and the summary."""
    segments, final = [], None
    async for message in send(channel, text, size, **fields):
        assert final is None
        segments += message.segments
        final = message.final if message.HasField("final") else None
    source, target = Cursor(), Cursor()
    for index, segment in enumerate(segments):
        assert segment.index == index
        part = text[segment.source.start : segment.source.end]
        for cursor, place, content in ((source, segment.source, part), (target, segment.target, segment.text)):
            assert cursor.move(content) == (place.start, place.end, place.start_byte, place.end_byte)
    assert source.position == len(text)
    assert final is not None
    return segments, final


async def test_what_a_format_changes_beside_texts_is_changed(channel):
    start = '<meta charset="{}"><p>'
    segments, _ = await translated(channel, f"{start.format('latin-1')}a cat", format=pb.DOCUMENT_FORMAT_HTML)
    assert "".join(segment.text for segment in segments) == f"{start.format('utf-8')}{GERMAN}"


@pytest.mark.parametrize("size", [None, 1, 7])
async def test_segments_tile_the_document_whatever_its_messages(channel, size):
    text = TEXT.replace("😀", "").replace("cat ", "cat")
    segments, final = await translated(channel, text, size)
    assert "".join(segment.text for segment in segments) == f"{GERMAN}\n\n* * *\n{GERMAN}\r\n"
    assert [segment.is_copied for segment in segments] == [False, True, False, True]
    assert (final.segments, final.failed) == (2, 0)
    assert (final.usage.prompt_tokens, final.usage.generated_tokens) == (8, 10)
    assert final.timings.total.nanos > 0


async def test_a_segment_that_fails_is_copied_and_the_others_go_on(channel):
    segments, final = await translated(channel, TEXT)
    assert "".join(segment.text for segment in segments) == f"{GERMAN}\n\n* * *\na black cat 😀\r\n"
    assert [segment.index for segment in segments if segment.HasField("error")] == [2]
    assert segments[2].error.code == CODES.INVALID_ARGUMENT.value[0]
    assert "does not know these words: 😀" in segments[2].error.message
    assert (final.segments, final.failed) == (2, 1)


async def test_a_text_that_is_too_long_is_cut_and_joined(channel, edge):
    """The model reads 8 tokens, one of them the end."""
    segments, final = await translated(channel, " ".join(TEXTS[:2] * 2))
    assert [segment.text for segment in segments] == [f"{GERMAN} {GERMAN}"]
    assert len(edge.pool.requests) == 2
    assert final.segments == 1


async def test_inline_tags_do_not_count_as_words_of_a_sentence(channel, edge):
    page = "<p>the <b class='a b c d e f'>small red</b> house"
    segments, _ = await translated(channel, page, format=pb.DOCUMENT_FORMAT_HTML)
    assert segments[1].text == "zwei <b class='a b c d e f'>rote</b> Häuser"
    assert len(edge.pool.requests) == 1
    page = page.replace("house", "house the small red house the small red house")
    segments, _ = await translated(channel, page, format=pb.DOCUMENT_FORMAT_HTML)
    assert segments[1].text.startswith(f"{GERMAN} <b class='a b c d e f'>{GERMAN}</b> {GERMAN}")


async def test_tags_that_are_no_xml_are_translated_and_copied(channel):
    page = "<p>the <B class=a?b=c>small</b > <![if !x]>red house"
    segments, final = await translated(channel, page, format=pb.DOCUMENT_FORMAT_HTML)
    found = segments[1].text
    for tag in ("<B class=a?b=c>", "</b >", "<![if !x]>"):
        assert found.count(tag) == 1
        found = found.replace(tag, "")
    assert " ".join(found.split()) == GERMAN
    assert final.failed == 0


async def test_a_word_that_is_too_long_has_an_error(edge, channel, monkeypatch):
    monkeypatch.setattr(documents, "parts_that_fit", lambda text, fits: None)
    segments, final = await translated(channel, " ".join(TEXTS[:2] * 2) + "\na cat")
    assert "has a word of more tokens" in segments[0].error.message
    assert (segments[-1].text, final.failed) == (GERMAN, 1)


async def test_a_unit_with_a_malformed_message_fails_alone(channel):
    unit = "<trans-unit><source>{}</source></trans-unit>"
    units = unit.format("{n, plural, one {a cat} other {cats}") + unit.format("a cat")
    file = f'<xliff version="1.2"><file source-language="en">{units}</file></xliff>'
    segments, final = await translated(channel, file, format=pb.DOCUMENT_FORMAT_XLIFF)
    failed, good = (one for one in segments if not one.is_copied)
    assert "well-formed message of ICU" in failed.error.message
    assert failed.text == "<source>{n, plural, one {a cat} other {cats}</source>"
    assert GERMAN in good.text
    assert (final.segments, final.failed) == (2, 1)


@pytest.mark.parametrize(
    ("fields", "splitting", "language", "is_assumed"),
    [
        ({}, "SENTENCES", "en", True),
        ({"splitter_language": "de-AT"}, "SENTENCES", "de", False),
        ({"splitter_language": "und"}, "PARAGRAPHS", "", False),
        ({"text": '<html lang="fr">a cat', "format": pb.DOCUMENT_FORMAT_HTML}, "SENTENCES", "fr", False),
    ],
)
async def test_the_summary_reports_how_texts_were_split(channel, fields, splitting, language, is_assumed):
    _, final = await translated(channel, **{"text": "a cat", **fields})
    assert final.splitting == pb.DocumentSplitting.Value(f"DOCUMENT_SPLITTING_{splitting}")
    assert (final.splitter_language, final.is_language_assumed) == (language, is_assumed)


async def test_formats_keep_their_markup(channel):
    page = "<p class='x'>a cat</p><code>a cat</code>"
    segments, _ = await translated(channel, page, format=pb.DOCUMENT_FORMAT_HTML)
    assert "".join(segment.text for segment in segments) == f"<p class='x'>{GERMAN}</p><code>a cat</code>"
    unit = '<xliff version="1.2"><trans-unit><source>a cat</source></trans-unit></xliff>'
    segments, _ = await translated(channel, unit, format=pb.DOCUMENT_FORMAT_XLIFF)
    assert f'<target state="needs-review-translation">{GERMAN}</target>' in segments[1].text


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"text": " \n"}, "text: must not be empty or blank"),
        ({"text": "é" * 1001}, "text: must be at most 2000 bytes in all messages, got 2002"),
        ({"format": 9}, "format: must be one of DOCUMENT_FORMAT_TEXT, .*, got 9"),
        ({"format": pb.DOCUMENT_FORMAT_HTML, "text": "<b>" * 300}, "text: must have at most 256 elements"),
        ({"format": pb.DOCUMENT_FORMAT_XLIFF, "text": "<a/>"}, "text: must be XLIFF: its root is <a>"),
        ({"options": pb.DecodingOptions(num_hypotheses=2, beam_size=2)}, "options.num_hypotheses: must be left out"),
        ({"options": pb.DecodingOptions(token_logprobs=True)}, "options.token_logprobs: must be left out"),
        ({"options": pb.DecodingOptions(temperature=-1)}, "options.temperature: must be"),
        ({"source_language": "en"}, "source_language: must be left out"),
    ],
)
async def test_documents_that_cannot_be_translated_are_refused(channel, edge, fields, problem):
    error, _ = await failure(send(channel, **{"text": "a cat", **fields}))
    assert error.code() == CODES.INVALID_ARGUMENT
    assert re.match(problem, error.details()), error.details()
    assert not edge.pool.requests


@pytest.mark.parametrize("code", ["th", "xx", "english", "x" * 1000, " "])
async def test_a_language_without_rules_is_refused_where_it_is_named_for_splitting(channel, code):
    error, details = await failure(send(channel, TEXT, splitter_language=code))
    assert error.code() == CODES.INVALID_ARGUMENT
    (violation,) = details["BadRequest"].field_violations
    assert violation.field == "splitter_language"
    assert violation.description.startswith("must be one of af, am, ar, az, ")
    assert f"got '{code[:8]}" in violation.description
    assert len(violation.description) < 600


async def test_fields_of_later_messages_are_refused(channel):
    sent = [pb.TranslateDocumentRequest(text="a "), pb.TranslateDocumentRequest(text="cat", model="en-de")]
    error, _ = await failure(method(channel, "TranslateDocument")(iter(sent)))
    assert error.details() == "model: must be set in the first message of a call only"


async def test_a_client_that_does_not_end_its_messages_is_not_waited_for():
    async def endless():
        yield pb.TranslateDocumentRequest(text="a cat")
        await asyncio.Event().wait()

    async with running(message_timeout_s=0.2) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        error, _ = await failure(method(channel, "TranslateDocument")(endless()))
        assert (error.code(), error.details()[:27]) == (CODES.DEADLINE_EXCEEDED, "no text came within 0.2 s; ")
        await edge.server.calls.idle()


def reading(messages, *, answer_s=600.0):
    """`text_of` of messages, of a call by itself."""
    runner = ItemRunner(Metrics([RPC]), ItemLimits(answer_s, 10.0), lambda: 0.0, lambda call: contextlib.nullcontext())
    return text_of(pb.TranslateDocumentRequest(text="a"), messages, a_call(RPC), runner, limit=100)


def test_a_text_that_never_ends_is_not_read_for_ever():
    async def endless():
        while True:
            await asyncio.sleep(1)
            yield pb.TranslateDocumentRequest(text="b")

    with pytest.raises(DeadlineExceeded, match=r"the text took over 20 s; end the stream of requests"):
        run_virtually(reading(endless(), answer_s=20.0))


def test_messages_without_text_do_not_keep_a_document_waiting():
    read = 0

    async def endless(text):
        nonlocal read
        while read < 100:
            await asyncio.sleep(1)
            read += 1
            yield pb.TranslateDocumentRequest(text=text if read < 20 else "")

    with pytest.raises(DeadlineExceeded, match=r"no text came within 10 s; end the stream of requests"):
        run_virtually(reading(endless("b")))
    assert read in (28, 29), "ten seconds after the last one with text"


async def test_a_document_that_is_cancelled_as_a_message_comes_is_not_read_on():
    for turns in range(6):
        came = asyncio.Event()

        async def messages(came=came):
            await came.wait()
            yield pb.TranslateDocumentRequest(text="b")
            await asyncio.Event().wait()

        task = asyncio.create_task(reading(messages()))
        for _ in range(5):
            await asyncio.sleep(0)
        came.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled(), turns


@pytest.mark.parametrize(
    "refusal",
    [
        Overloaded("the queue is full", retry_after_s=0.01, limit=1),
        DeadlineTooSoon("an answer may take too long", retry_after_s=0.01),
    ],
)
async def test_segments_wait_while_others_would_be_refused(channel, edge, refusal):
    submit, refused = edge.pool.submit, asyncio.Event()

    def refuse(*_):
        refused.set()
        raise refusal

    edge.pool.submit = refuse
    call = asyncio.create_task(translated(channel, "a cat\na cat"))
    async with asyncio.timeout(60):
        await refused.wait()
    edge.pool.submit = submit
    _, final = await call
    assert (final.segments, final.failed) == (2, 0)


@pytest.mark.parametrize("times", [1, TRIES])
async def test_an_item_whose_engine_is_lost_is_begun_again(channel, edge, times):
    edge.pool.hold = True
    call = asyncio.create_task(translated(channel, "a cat\n" * 30))
    await edge.pool.until(lambda: len(edge.pool.sinks) == edge.pool.window)
    lost = (EngineUnavailable("the engine's process ended", retry_after_s=0.01),)
    edge.pool.send(edge.pool.sinks[0], lost)
    for again in range(1, times):
        await edge.pool.until(lambda again=again: len(edge.pool.sinks) == edge.pool.window + again)
        edge.pool.send(edge.pool.sinks[-1], lost)
    edge.pool.hold = False
    for sink in edge.pool.sinks[1 : edge.pool.window]:
        edge.pool.send(sink, ANSWER)
    segments, final = await call
    failed = [segment for segment in segments if segment.HasField("error")]
    assert [segment.index for segment in failed] == [0] * (times == TRIES)
    assert all(segment.error.code == CODES.UNAVAILABLE.value[0] for segment in failed)
    assert (final.segments, final.failed) == (30, times == TRIES)


async def test_an_item_waits_for_an_engine(channel, edge, monkeypatch):
    refused, submit = list[Any](), edge.pool.submit

    def gone(*arguments):
        if len(refused) < 3:
            refused.append(arguments)
            raise EngineUnavailable("no engine of model en-de runs", retry_after_s=0.01)
        return submit(*arguments)

    monkeypatch.setattr(edge.pool, "submit", gone)
    _, final = await translated(channel, "a cat\na cat")
    assert (final.segments, final.failed, len(refused)) == (2, 0, 3)


async def test_the_first_segment_is_sent_before_later_ones_are_translated(channel, edge):
    edge.pool.hold = True
    stream = send(channel, "a cat\n" * 30)
    reading = asyncio.ensure_future(stream.read())
    await edge.pool.until(lambda: len(edge.pool.sinks) >= edge.pool.window)
    edge.pool.send(edge.pool.sinks[0], ANSWER)
    message = await reading
    assert [segment.text for segment in message.segments] == [GERMAN, "\n"]
    stream.cancel()


async def test_a_client_that_leaves_ends_all_requests_and_frees_the_memory(channel, edge):
    edge.pool.hold = True
    stream = send(channel, "a cat\n" * 30)
    reading = asyncio.ensure_future(stream.read())
    await edge.pool.until(lambda: len(edge.pool.sinks) == edge.pool.window)
    assert edge.server.calls.memory.reserved_bytes > DOCUMENT_FACTOR * 180
    stream.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await edge.pool.until(lambda: len(edge.pool.cancelled) == len(edge.pool.requests))
    await edge.server.calls.idle()
    assert len(edge.pool.requests) == edge.pool.window, "no more than the window had begun"


async def test_documents_and_segments_are_counted(channel, edge):
    await translated(channel, TEXT)
    registry = edge.server.metrics.registry

    def count(code):
        labels = {"method": "TranslateDocument", "code": code}
        return registry.get_sample_value("glossa_batch_items_total", labels)

    assert (count("OK"), count("InvalidArgument")) == (1, 1)
