"""Documents with a glossary, with marks, and with confidence."""

import dataclasses
import math

import grpc
import pytest

from glossa.v1 import glossa_pb2 as pb
from tests.edge import RESULT, TOKENIZERS, answered, failure, running
from tests.service.edge.test_documents import send, translated

TEXT = "the small red house\n\na black cat\n"
TERMS = pb.Glossary(
    terms=[pb.GlossaryTerm(source="house", targets=["Häuser"]), pb.GlossaryTerm(source="cat", targets=["Katze"])]
)


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


@pytest.fixture
async def channel(edge):
    async with grpc.aio.insecure_channel(edge.address) as channel:
        yield channel


async def test_the_summary_has_the_terms_of_all_sentences(channel):
    _, final = await translated(channel, TEXT * 2, glossary=TERMS)
    assert (final.glossary.terms, final.glossary.met, list(final.glossary.unmet)) == (4, 2, ["cat"])
    _, final = await translated(channel, TEXT)
    assert not final.HasField("glossary")


async def test_placeholders_are_kept_in_every_format(channel):
    markup = pb.Markup(placeholders=True)
    segments, _ = await translated(channel, "the {size} red house\n", markup=markup)
    text = "".join(segment.text for segment in segments)
    assert text.count("{size}") == 1
    assert " ".join(text.replace("{size}", " ").split()) == "zwei rote Häuser"
    html = "<p>the <b>small</b> red {what} house</p>"
    segments, _ = await translated(channel, html, format=pb.DOCUMENT_FORMAT_HTML, markup=markup)
    text = "".join(segment.text for segment in segments)
    assert all(text.count(mark) == 1 for mark in ("<p>", "<b>", "</b>", "{what}", "</p>")), text


async def test_segments_have_the_confidence_of_their_translation(edge, channel):
    edge.calibrate()
    tokens, logprobs = TOKENIZERS["translation"].encode(RESULT.text), tuple(map(math.log, (0.75, 0.5, 0.25, 0.9)))
    edge.pool.answer = answered(dataclasses.replace(RESULT, tokens=(*tokens, 2), token_logprobs=logprobs))
    segments, _ = await translated(channel, TEXT, include_confidence=True)
    assert [segment.HasField("confidence") for segment in segments] == [True, False, True, False]
    assert all(0 < segment.confidence < 1 for segment in segments if segment.HasField("confidence"))
    segments, _ = await translated(channel, TEXT)
    assert not any(segment.HasField("confidence") for segment in segments)


@pytest.mark.parametrize(
    ("fields", "code", "problem"),
    [
        (
            {"markup": pb.Markup(tags=True)},
            "INVALID_ARGUMENT",
            "markup.tags: must be false: tags are those of the format",
        ),
        ({"markup": pb.Markup()}, "INVALID_ARGUMENT", "markup: must name at least one of"),
        ({"glossary": pb.Glossary(name="x")}, "INVALID_ARGUMENT", "glossary.name: no glossary 'x'"),
        ({"glossary": pb.Glossary()}, "INVALID_ARGUMENT", "glossary: must have terms"),
        ({"include_confidence": True}, "FAILED_PRECONDITION", "has no calibrated confidence"),
    ],
)
async def test_what_no_sentence_could_have_is_refused_of_the_document(channel, edge, fields, code, problem):
    error, _ = await failure(send(channel, TEXT, **fields))
    assert error.code().name == code
    assert problem in error.details()
    assert edge.pool.requests == []
