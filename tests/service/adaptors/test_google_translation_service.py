from typing import Any

import grpc
import pytest

from service.adaptors.google_translation import translation_service_pb2 as google
from service.adaptors.google_translation_service import GoogleTranslation
from service.edge.security.access import GOOGLE
from service.errors import Overloaded
from service.request import Finished, FinishReason
from tests.edge import TIMINGS, failure, manifest, running

PARENT = "projects/any/locations/global"
TEXT = "the small red house"
TRANSLATION = "zwei rote Häuser"


@pytest.fixture
async def edge(edge):
    edge.models["en-de"].manifest = manifest(source_language="en", target_language="de")
    return edge


def ask(channel, name, message):
    described: Any = google.DESCRIPTOR.services_by_name["TranslationService"].methods_by_name[name]
    call: Any = channel.unary_unary(
        f"/{GOOGLE}/{name}",
        request_serializer=described.input_type._concrete_class.SerializeToString,
        response_deserializer=described.output_type._concrete_class.FromString,
    )
    return call(message, timeout=30)


def translate(channel, *contents, **fields):
    usual = {"parent": PARENT, "source_language_code": "en", "target_language_code": "de", "mime_type": "text/plain"}
    return ask(channel, "TranslateText", google.TranslateTextRequest(contents=contents, **{**usual, **fields}))


async def test_texts_are_translated_in_their_order(edge, channel):
    model = f"{PARENT}/models/en-de"
    response = await translate(channel, TEXT, "a black cat", model=model)
    assert [(one.translated_text, one.model) for one in response.translations] == [(TRANSLATION, model)] * 2
    assert not response.glossary_translations
    assert [request.source for request in edge.pool.requests] == [
        (*edge.models["en-de"].tokenizer.encode(text), 2) for text in (TEXT, "a black cat")
    ]


@pytest.mark.parametrize("model", ["", "projects/any/models/general/nmt"])
async def test_languages_choose_the_model(edge, channel, model):
    (translation,) = (await translate(channel, TEXT, model=model, source_language_code="en-US")).translations
    assert (translation.translated_text, translation.detected_language_code) == (TRANSLATION, "")


@pytest.mark.parametrize(
    ("content", "sources", "answer"),
    [
        (TEXT, [TEXT], "zwei &lt; rote &amp; Häuser"),
        (f"<p>{TEXT}</p>", [TEXT], "<p>zwei &lt; rote &amp; Häuser</p>"),
        (
            f"<ul><li>{TEXT}<li translate=no>a cat</ul>",
            [TEXT],
            "<ul><li>zwei &lt; rote &amp; Häuser<li translate=no>a cat</ul>",
        ),
        ("<br>", [], "<br>"),
    ],
)
async def test_html_is_the_default_and_stays_html(edge, channel, content, sources, answer):
    edge.pool.answer = (Finished(FinishReason.END_OF_SEQUENCE, "zwei < rote & Häuser", (5, 6, 7, 2), timings=TIMINGS),)
    (translation,) = (await translate(channel, content, mime_type="")).translations
    assert translation.translated_text == answer
    assert [edge.models["en-de"].tokenizer.decode(request.source[:-1]) for request in edge.pool.requests] == sources


async def test_the_language_of_each_text_is_detected(edge, channel):
    page = f'<p class="Meine Schwester geht mit dem Hund nach Hause">{TEXT}</p>'
    for contents, mime_type in (((TEXT, "black"), "text/plain"), ((page, "<b>black</b>"), "")):
        found = (await translate(channel, *contents, source_language_code="", mime_type=mime_type)).translations
        assert [one.detected_language_code for one in found] == ["en", "en"]  # a word alone that of all together
    error, details = await failure(translate(channel, "black", source_language_code=""))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert [one.field for one in details["BadRequest"].field_violations] == ["source_language_code"]
    request = google.DetectLanguageRequest(parent=PARENT, content=page)
    assert (await ask(channel, "DetectLanguage", request)).languages[0].language_code == "en"


async def test_texts_of_languages_that_different_models_translate_are_refused():
    async with running(models={"en-de": "/none", "fr-de": "/none"}, adaptors=("google-translation",)) as edge:
        for name, model in edge.models.items():
            model.manifest = manifest(source_language=name[:2], target_language="de")
        async with grpc.aio.insecure_channel(edge.address) as channel:
            texts = (TEXT, "la petite maison rouge est dans le jardin")
            error, details = await failure(translate(channel, *texts, source_language_code=""))
    assert [one.field for one in details["BadRequest"].field_violations] == ["contents"]
    assert "got en, fr; make a call for each" in error.details()


async def test_one_text_that_is_refused_fails_the_call_by_its_place(edge, channel):
    error, _ = await failure(translate(channel, TEXT, ""))
    assert (error.code(), error.details()[:12]) == (grpc.StatusCode.INVALID_ARGUMENT, "contents[1]:")
    error, _ = await failure(translate(channel, f"<b>{TEXT}</b>", "<b>unheard-of</b>", mime_type="text/html"))
    assert (error.code(), error.details()[:12]) == (grpc.StatusCode.INVALID_ARGUMENT, "contents[1]:")
    edge.pool.refuse = Overloaded("the queue is full", retry_after_s=0.5, limit=3)
    error, details = await failure(translate(channel, TEXT, "a black cat"))
    assert (error.code(), details["ErrorInfo"].reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"contents": ()}, "contents"),
        ({"contents": ("a",) * 1025}, "contents"),
        ({"parent": ""}, "parent"),
        ({"parent": "projects/a/b"}, "parent"),
        ({"mime_type": "text/xml"}, "mime_type"),
        ({"model": "en-de"}, "model"),
        ({"target_language_code": ""}, "target_language_code"),
        ({"target_language_code": "fr"}, "target_language_code"),
        ({"transliteration_config": {"enable_transliteration": True}}, "transliteration_config.enable_transliteration"),
        ({"glossary_config": {"glossary": "house"}}, "glossary_config.glossary"),
        ({"glossary_config": {"glossary": f"{PARENT}/glossaries/house"}}, "glossary_config.glossary"),
        ({"glossary_config": {"glossary": "x", "ignore_case": True}}, "glossary_config.ignore_case"),
        (
            {"glossary_config": {"contextual_translation_enabled": True}},
            "glossary_config.contextual_translation_enabled",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_by_its_name(edge, channel, fields, field):
    error, details = await failure(translate(channel, *fields.pop("contents", (TEXT,)), **fields))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert [one.field for one in details["BadRequest"].field_violations] == [field]


async def test_languages_are_listed(edge, channel):
    for model in ("", f"{PARENT}/models/en-de"):
        message = google.GetSupportedLanguagesRequest(parent=PARENT, model=model)
        found = (await ask(channel, "GetSupportedLanguages", message)).languages
        assert [(one.language_code, one.support_source, one.support_target) for one in found] == [
            ("de", False, True),
            ("en", True, False),
        ]
    message = google.GetSupportedLanguagesRequest(parent=PARENT, display_language_code="en")
    error, _ = await failure(ask(channel, "GetSupportedLanguages", message))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_all_methods_are_answered():
    (service,) = google.DESCRIPTOR.services_by_name.values()
    assert all(hasattr(GoogleTranslation, method.name) for method in service.methods)
