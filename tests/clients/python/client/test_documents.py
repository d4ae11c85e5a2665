"""Documents by both clients: their messages, their pieces, and segments that fail."""

import asyncio

import pytest

from glossa.client import AsyncClient, Client, ClientError
from glossa.client.documents import CHARACTERS, document_requests
from tests.edge import running

GERMAN = "zwei rote Häuser"  # every answer


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


async def test_pieces_and_the_whole_document(edge):
    async with AsyncClient(edge.address) as client:
        pieces = [piece async for piece in client.stream_translate_document("a cat\n\na 😀 cat\n")]
        whole = await client.translate_document("a cat\n\na 😀 cat\n")
    assert "".join(segment.text for piece in pieces for segment in piece.segments) == whole.text
    assert whole.text == f"{GERMAN}\n\na 😀 cat\n"
    assert (whole.segments, whole.splitting, whole.splitter_language) == (2, "sentences", "en")
    (failed,) = whole.errors
    assert failed.error is not None
    assert (failed.error.code, failed.error.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert "does not know these words: 😀" in failed.error.message
    assert (failed.source.start, failed.source.end_byte) == (7, 17)
    assert [piece.document is None for piece in pieces[:-1]] == [True] * (len(pieces) - 1)


async def test_the_blocking_client_returns_the_same(edge):
    def use():
        with Client(edge.address) as client:
            whole = client.translate_document("<p>a cat</p>", format="html", max_tokens=9, splitter_language="en")
            with pytest.raises(ClientError, match="must not be empty") as caught:
                list(client.stream_translate_document(" "))
            assert caught.value.code == "INVALID_ARGUMENT"
            return whole

    whole = await asyncio.to_thread(use)
    assert (whole.text, whole.is_language_assumed) == (f"<p>{GERMAN}</p>", False)
    assert edge.pool.requests[0].max_tokens == 9


async def test_a_whole_document_has_the_confidence_of_its_segments(edge):
    edge.calibrate()
    async with AsyncClient(edge.address) as client:
        document = "a cat\n\na 😀 cat\n\na black cat\n"
        pieces = [piece async for piece in client.stream_translate_document(document, confidence=True)]
        whole = pieces[-1].document
        assert (await client.translate_document("a cat")).confidences == ()
    assert whole is not None
    segments = [segment for piece in pieces for segment in piece.segments if segment.confidence is not None]
    assert [document[one.source.start : one.source.end] for one in whole.confidences] == ["a cat", "a black cat"]
    assert [whole.text[one.target.start : one.target.end] for one in whole.confidences] == [GERMAN] * 2
    assert [one.confidence for one in whole.confidences] == [segment.confidence for segment in segments]


async def test_leaving_a_document_early_ends_it(edge):
    edge.pool.hold = True

    def leave():
        with Client(edge.address) as client:
            stream = client.stream_translate_document("a cat\n" * 20, timeout_s=0.5)
            with pytest.raises(ClientError, match="DEADLINE_EXCEEDED"):
                next(stream)

    await asyncio.to_thread(leave)
    await edge.pool.until(lambda: len(edge.pool.cancelled) == len(edge.pool.requests) > 0)


def test_a_document_comes_in_messages_below_the_servers_limit():
    text = "😀é a" * CHARACTERS
    messages = list(document_requests(text, "html", "de", {"model": "m"}))
    assert "".join(message.text for message in messages) == text
    assert max(message.ByteSize() for message in messages) < 1 << 18
    assert [message.model for message in messages] == ["m", *[""] * (len(messages) - 1)]


def test_a_document_asks_for_its_context():
    (message,) = document_requests("a", "text", "", {}, context_sentences=2)
    assert (message.context_sentences, message.text) == (2, "a")


def test_an_unknown_format_is_refused_before_sending():
    with pytest.raises(ValueError, match="format must be one of text, html, xliff, srt, vtt, po, got 'pdf'"):
        document_requests("a", "pdf", "", {})  # type: ignore[arg-type]
