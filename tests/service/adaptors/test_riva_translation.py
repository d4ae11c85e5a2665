from typing import Any

import grpc
import pytest

from service.adaptors.riva import riva_translation_pb2 as riva
from service.adaptors.riva_translation import fixed_phrases, without_tags
from service.edge.security.access import RIVA
from service.errors import InvalidRequest, Overloaded
from tests.edge import failure

TEXT = "the small red house"
TRANSLATION = "zwei rote Häuser"


def translate(channel, *texts, model="en-de", **fields):
    call: Any = channel.unary_unary(
        f"/{RIVA}/TranslateText",
        request_serializer=riva.TranslateTextRequest.SerializeToString,
        response_deserializer=riva.TranslateTextResponse.FromString,
    )
    return call(riva.TranslateTextRequest(texts=texts, model=model, **fields), timeout=30)


async def test_texts_are_translated_in_their_order(edge, channel):
    response = await translate(channel, TEXT, "a black cat", id={"value": "seven"})
    assert [one.text for one in response.translations] == [TRANSLATION, TRANSLATION]
    assert response.id.value == "seven"
    assert [request.source for request in edge.pool.requests] == [
        (*edge.models["en-de"].tokenizer.encode(text), 2) for text in (TEXT, "a black cat")
    ]


async def test_one_text_that_is_refused_fails_the_call_by_its_place(edge, channel):
    error, _ = await failure(translate(channel, TEXT, ""))
    assert (error.code(), error.details()[:9]) == (grpc.StatusCode.INVALID_ARGUMENT, "texts[1]:")
    edge.pool.refuse = Overloaded("the queue is full", retry_after_s=0.5, limit=3)
    error, details = await failure(translate(channel, TEXT, "a black cat"))
    assert (error.code(), details["ErrorInfo"].reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"texts": ()}, "texts"),
        ({"texts": (TEXT,) * 1025}, "texts"),
        ({"max_len_variation": "20"}, "max_len_variation"),
        ({"dnt_phrases": ["##Haus"]}, "dnt_phrases[0]"),
        ({"dnt_phrases": ["red##rot", "red##rote"]}, "dnt_phrases[1]"),
        ({"dnt_phrases": ["Washington, DC##Washington"]}, "dnt_phrases[0]"),
        ({"texts": (TEXT, "the <dnt>red house")}, "texts[1]"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_its_name(channel, fields, field):
    error, details = await failure(translate(channel, *fields.pop("texts", (TEXT,)), **fields))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert [one.field for one in details["BadRequest"].field_violations] == [field]


async def test_fields_of_later_versions_are_refused(channel):
    message = riva.TranslateTextRequest(texts=[TEXT], model="en-de").SerializeToString()
    call: Any = channel.unary_unary(
        f"/{RIVA}/TranslateText",
        request_serializer=lambda data: data,
        response_deserializer=riva.TranslateTextResponse.FromString,
    )
    error, _ = await failure(call(message + b"\x38\x01", timeout=30))  # the number 1 in field 7
    assert (error.code(), error.details()[:8]) == (grpc.StatusCode.INVALID_ARGUMENT, "field 7:")


@pytest.mark.parametrize(
    ("entries", "phrases"),
    [
        ([], {}),
        (["red house##Haus, cat ##"], {"red house": "Haus", "cat": "cat"}),
        (["Glossa, ONNX", "old##alt,old##alt"], {"Glossa": "Glossa", "ONNX": "ONNX", "old": "alt"}),
        (["a##b##c"], {"a": "b##c"}),
    ],
)
def test_phrases_with_and_without_translations(entries, phrases):
    assert fixed_phrases(entries) == phrases


@pytest.mark.parametrize(
    ("text", "plain", "kept"),
    [
        ("no tags, a < b", "no tags, a < b", []),
        ("<dnt>Big Ben</dnt> and <dnt> it </dnt>", "Big Ben and  it ", ["Big Ben", "it"]),
    ],
)
def test_tags_leave_a_text(text, plain, kept):
    assert without_tags(text, "texts[0]") == (plain, kept)


@pytest.mark.parametrize(
    ("text", "place"),
    [("a </dnt>", 3), ("<dnt>a <dnt>b</dnt>", 8), ("a <dnt>b", 3), ("a <dnt> </dnt>", 3)],
)
def test_tags_without_partners_are_refused_with_their_place(text, place):
    with pytest.raises(InvalidRequest, match=f"at character {place}\\b"):
        without_tags(text, "texts[0]")
