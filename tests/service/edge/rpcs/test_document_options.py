"""Documents with a glossary, with marks, and with confidence."""

import dataclasses
import math
import re

import grpc
import pytest

from glossa.v1 import glossa_pb2 as pb
from service.errors import InvalidRequest
from tests.edge import RESULT, TOKENIZERS, answered, failure, manifest, running
from tests.service.edge.rpcs.test_documents import send, translated

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


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("https://example.org/a?b=1&c=2 .\n", {"urls": True}),
        ("{link}\n", {"placeholders": True}),
        ("<{link}>: {name}\n", {"placeholders": True}),
    ],
)
async def test_a_text_that_is_only_marks_is_copied(channel, edge, text, markup):
    segments, final = await translated(channel, f"a cat\n{text}a cat\n", markup=pb.Markup(**markup))
    assert [segment.text for segment in segments if not segment.is_copied] == ["zwei rote Häuser"] * 2
    assert text.strip() in [segment.text for segment in segments if segment.is_copied]
    assert (final.segments, final.failed, len(edge.pool.requests)) == (2, 0, 2)


@pytest.mark.parametrize(
    "page",
    [
        "<p>the house <img alt='{link}'> red house</p>",  # an attribute inside a sentence
        "<p>{link}</p><p>the house</p>",
        "<p><b>{link}</b></p><p>the house</p>",
        "<p><a title='{link}' href='{link}'>the house</a></p>",
    ],
)
async def test_texts_beside_one_that_is_only_marks_are_translated(channel, page):
    sent = {"format": pb.DOCUMENT_FORMAT_HTML, "markup": pb.Markup(placeholders=True)}
    segments, final = await translated(channel, page, **sent)
    assert final.failed == 0, [segment.error.message for segment in segments]
    text = "".join(segment.text for segment in segments)
    assert text.count("{link}") == page.count("{link}")
    assert "zwei rote Häuser" in re.sub("<img.*?> ", "", text)
    assert "house" not in text


async def test_marks_that_cannot_be_read_fail_their_own_segment(channel):
    text = "a cat\n" + "{a}" * 300 + " cat\n"
    segments, final = await translated(channel, text, markup=pb.Markup(placeholders=True))
    assert (segments[0].text, final.failed) == ("zwei rote Häuser", 1)
    assert "has a word of more tokens" in segments[2].error.message


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_tokens": 99}, "options.max_tokens: must be 1..16, "),
        ({"max_tokens": 99, "max_length_ratio": 0.1}, "options.max_tokens: must be 1..16, "),
        ({"max_tokens": 2, "prefix": "zwei rote Häuser"}, "options.prefix: must be at most 2 tokens"),
        ({"prefix": "drei"}, "options.prefix: the model's closed vocabulary does not know these words: drei"),
        ({"min_tokens": 17}, "options.min_tokens: must be 0..16"),
    ],
)
async def test_options_that_every_text_is_refused_for_end_the_call(channel, edge, options, problem):
    error, _ = await failure(send(channel, TEXT, options=pb.DecodingOptions(**options)))
    assert error.code().name == "INVALID_ARGUMENT"
    assert error.details().startswith(problem)
    assert edge.pool.requests == []


async def test_options_that_a_short_text_alone_is_refused_for_cost_its_segment(channel):
    options = pb.DecodingOptions(min_tokens=4, max_length_ratio=1.0)
    segments, final = await translated(channel, "cat\nthe small red house\n", options=options)
    assert "options.min_tokens: must be 0..2 here" in segments[0].error.message
    assert (segments[2].text, final.failed) == ("zwei rote Häuser", 1)


async def test_a_model_whose_example_is_no_text_translates_documents(edge, channel):
    edge.models["en-de"].manifest = manifest(golden=dataclasses.replace(manifest().golden, source=(2,)))
    assert (await translated(channel, TEXT))[1].failed == 0


@pytest.mark.parametrize(
    ("field", "fields", "ends"),
    [
        ("options.lark", {}, True),
        ("options.regex", {"options": pb.DecodingOptions(max_length_ratio=1.0)}, True),
        ("options.bad_words[0]", {"context_sentences": 0, "glossary": TERMS}, True),
        ("options.prefix", {}, True),
        ("options.prefix", {"options": pb.DecodingOptions(max_length_ratio=1.0)}, False),
        ("options.phrases", {"glossary": TERMS}, False),
        ("options.coverage_penalty", {}, False),
        ("text", {}, False),
    ],
)
async def test_options_that_an_engine_refuses_of_every_text_end_the_call(channel, edge, field, fields, ends):
    edge.pool.answer = (InvalidRequest(field, "is odd"),)
    if ends:
        error, _ = await failure(send(channel, TEXT, **fields))
        assert (error.code().name, error.details()) == ("INVALID_ARGUMENT", f"{field}: is odd")
    else:
        assert (await translated(channel, TEXT, **fields))[1].failed == 2


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
