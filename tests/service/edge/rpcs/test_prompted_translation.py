"""Translations by a model without an encoder over real gRPC, without engines: prompts, options, refusals."""

import dataclasses
from typing import Any

import grpc
import pytest

from export.bundle.manifest import Limits
from glossa.v1 import glossa_pb2 as pb
from model.prompts.translation_prompts import TranslationPrompts
from model.prompts.translation_template import TranslationTemplate
from tests.edge import GENERATION, RESULT, answered, failure, method

VALUES = {
    "name": "plain",
    "prompt": "{% for pair in context %}{{ pair.source }}={{ pair.translation }}|{% endfor %}"
    "{% for term in terms %}{{ term.source }}>{{ term.target }}|{% endfor %}"
    "{{ source }}: {{ text }} {{ target }}:",
    "languages": {"en": "English", "de": "German", "fr": "French"},
    "before_answer": " ",
    "stop": ["\n"],
    "context_sentences": 2,
}
EN_DE: Any = {"model": "en", "source_language": "en", "target_language": "de"}
LONG = " ".join(["cat"] * 30)


def ids(text):
    return (1, *GENERATION.tokenizer.encode(text))


def translate_by(model, **changed):
    template = TranslationTemplate.from_values({**VALUES, **changed})
    model.translation = TranslationPrompts(template, model.tokenizer, model.chat)
    return model


@pytest.fixture
def model(edge):
    model = edge.models["en"]
    wide = Limits(vocab_size=model.manifest.limits.vocab_size, max_source_len=0, max_target_len=160, max_block=0)
    model.manifest = dataclasses.replace(model.manifest, limits=wide)
    return translate_by(model)


async def test_the_text_stands_in_the_prompt_of_the_model(edge, channel, model):
    response = await method(channel, "Translate")(text="a cat", **EN_DE)
    assert response.text == "zwei rote Häuser"
    request = edge.pools["en"].requests[-1]
    assert request.prompt == ids("English: a cat German:")
    assert (request.source, request.stop, request.trims_text) == ((), ("\n",), True)
    assert (request.continued_text, request.prefix) == ("", ())
    stream = [one async for one in method(channel, "StreamTranslate")(text="a cat", **EN_DE)]
    assert "".join(one.text for one in stream) == "zwei rote Häuser"
    assert edge.pools["en"].requests[-1].prompt == request.prompt


async def test_it_still_continues_texts(edge, channel, model):
    await method(channel, "Generate")(model="en", text="a cat")
    request = edge.pools["en"].requests[-1]
    assert (request.prompt, request.stop, request.trims_text) == (ids("a cat"), (), False)


async def test_options_are_those_of_a_translation(edge, channel, model):
    options = pb.DecodingOptions(prefix="rote", stop=["x"], max_length_ratio=2.0)
    await method(channel, "Translate")(text="a cat", options=options, **EN_DE)
    request = edge.pools["en"].requests[-1]
    assert request.prefix == tuple(model.tokenizer.encode(" rote"))
    assert request.stop == ("x", "\n")
    assert request.max_tokens == 2 * len(model.tokenizer.encode("a cat"))


async def test_batches_and_documents_are_translated(edge, channel, model):
    request = pb.TranslateBatchRequest(
        defaults=pb.TranslateRequest(**EN_DE),
        items=[pb.TranslateBatchItem(id=text, request=pb.TranslateRequest(text=text)) for text in ("a cat", "a house")],
    )
    results = [one async for message in method(channel, "TranslateBatch")(iter([request])) for one in message.results]
    assert {one.id: one.response.text for one in results} == dict.fromkeys(("a cat", "a house"), "zwei rote Häuser")
    document = pb.TranslateDocumentRequest(text="a cat. A house.\n\nthe small", context_sentences=1, **EN_DE)
    segments = [
        one async for message in method(channel, "TranslateDocument")(iter([document])) for one in message.segments
    ]
    assert "".join(one.text for one in segments) == "zwei rote Häuser zwei rote Häuser\n\nzwei rote Häuser"
    prompts = [one.prompt for one in edge.pools["en"].requests[2:]]
    assert sorted(prompts) == sorted(
        [
            ids("English: a cat. German:"),
            ids("a cat.=zwei rote Häuser|English: A house. German:"),
            ids("English: the small German:"),
        ]
    )


async def test_terms_stand_in_the_prompt_and_unmet_ones_are_told(edge, channel, model):
    terms = [pb.GlossaryTerm(source="cat", targets=["Katze"]), pb.GlossaryTerm(source="red", targets=["rote"])]
    response = await method(channel, "Translate")(text="a red cat", glossary=pb.Glossary(terms=terms), **EN_DE)
    assert edge.pools["en"].requests[-1].prompt == ids("red>rote|cat>Katze|English: a red cat German:")
    assert (response.glossary.terms, response.glossary.met, list(response.glossary.unmet)) == (2, 1, ["cat"])
    translate_by(model, prompt="{{ source }}: {{ text }} {{ target }}:", context_sentences=0)
    response = await method(channel, "Translate")(text="a red cat", glossary=pb.Glossary(terms=terms), **EN_DE)
    assert edge.pools["en"].requests[-1].prompt == ids("English: a red cat German:")
    assert response.glossary.met == 1


async def test_terms_are_left_out_where_they_leave_no_room(edge, channel, model):
    terms = [pb.GlossaryTerm(source="cat", targets=["Katze, " * 20 + "Katze"])]
    response = await method(channel, "Translate")(text="a cat", glossary=pb.Glossary(terms=terms), **EN_DE)
    assert edge.pools["en"].requests[-1].prompt == ids("English: a cat German:")
    assert list(response.glossary.unmet) == ["cat"]


async def test_scores_and_counts_are_those_of_the_prompt(edge, channel, model):
    edge.pools["en"].answer = answered(RESULT)
    await method(channel, "Score")(text="a cat", target="rote", **EN_DE)
    request = edge.pools["en"].requests[-1]
    assert (request.prompt, request.prefix) == (ids("English: a cat German:"), tuple(model.tokenizer.encode(" rote")))
    await method(channel, "Score")(model="en", text="a cat", target=" rote")
    request = edge.pools["en"].requests[-1]
    assert (request.prompt, request.prefix) == (ids("a cat"), (*model.tokenizer.encode(" rote"), 2))
    translate_by(model, stop=[])
    await method(channel, "Score")(text="a cat", target="rote", **EN_DE)
    assert edge.pools["en"].requests[-1].prefix == (*model.tokenizer.encode(" rote"), 2)
    counted = await method(channel, "CountTokens")(texts=["a cat"], **EN_DE)
    assert counted.counts[0].tokens == len(ids("English: a cat German:"))
    counted = await method(channel, "CountTokens")(model="en", texts=["a cat"])
    assert counted.counts[0].tokens == len(ids("a cat"))


async def test_the_model_says_how_it_translates(edge, channel, model):
    shown = (await method(channel, "GetModel")(model="en")).model
    assert (shown.translation_template, list(shown.languages), shown.context_sentences) == (
        "plain",
        ["de", "en", "fr"],
        2,
    )
    assert shown.task == pb.TASK_GENERATION
    assert (await method(channel, "GetModel")(model="en-de")).model.translation_template == ""


@pytest.mark.parametrize(
    ("name", "fields", "code", "problem"),
    [
        ("Translate", {"target_language": ""}, "INVALID_ARGUMENT", "target_language: must be given: one of de, en, fr"),
        (
            "Translate",
            {"target_language": "xx"},
            "INVALID_ARGUMENT",
            "target_language: unknown code 'xx'; must be one of",
        ),
        ("Translate", {"target_language": "d"}, "INVALID_ARGUMENT", "unknown code 'd'; did you mean 'de'?"),
        ("Translate", {"source_language": ""}, "INVALID_ARGUMENT", "source_language: must be given: one of de, en, fr"),
        ("Translate", {"text": " "}, "INVALID_ARGUMENT", "text: must not be empty or blank"),
        (
            "Translate",
            {"text": LONG * 3},
            "INVALID_ARGUMENT",
            "text: with the prompt that it stands in must be",
        ),
        ("Translate", {"options": {"echo": True}}, "INVALID_ARGUMENT", "options.echo: must be false for a translation"),
        ("Translate", {"options": {"alignment": 3}}, "FAILED_PRECONDITION", "only models with an encoder have it"),
        ("Translate", {"include_confidence": True}, "FAILED_PRECONDITION", "has no calibrated confidence"),
        ("Score", {"target": "a", "source_language": ""}, "INVALID_ARGUMENT", "source_language: must be given"),
        ("CountTokens", {"target_language": "xx"}, "INVALID_ARGUMENT", "target_language: unknown code 'xx'"),
    ],
)
async def test_what_it_cannot_do_is_refused(channel, model, name, fields, code, problem):
    own = {"texts": ["a cat"]} if name == "CountTokens" else {"text": "a cat"}
    if "options" in fields:
        fields = {"options": pb.DecodingOptions(**fields["options"])}
    error, _ = await failure(method(channel, name)(**{**EN_DE, **own, **fields}))
    assert error.code() is grpc.StatusCode[code]
    assert problem in error.details()


async def test_a_model_without_a_template_is_told_the_fix(channel):
    error, _ = await failure(method(channel, "Translate")(text="a cat", **EN_DE))
    assert "serves generation, not translation; call GenerationService" in error.details()
    assert "import this one with --translate-as" in error.details()


async def test_a_source_language_may_be_left_out_where_the_prompt_needs_none(edge, channel, model):
    translate_by(model, prompt="{{ text }} {{ target }}:", needs_source=False, context_sentences=0)
    await method(channel, "Translate")(model="en", text="a cat", target_language="de")
    assert edge.pools["en"].requests[-1].prompt == ids("a cat German:")
    await method(channel, "Translate")(text="a cat", **EN_DE)
    error, _ = await failure(method(channel, "Translate")(text="a", **{**EN_DE, "source_language": "x"}))
    assert "source_language: unknown code 'x'" in error.details()


async def test_only_a_model_of_the_task_is_meant_without_a_name(edge, channel, model):
    error, _ = await failure(method(channel, "Translate")(text="a cat"))
    assert "model: must be named when several fit; one of: en, en-de" in error.details()
