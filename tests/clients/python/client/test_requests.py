import re
from typing import Any

import pytest

from glossa.client import CallOptions, Options, ScoreOptions, closest
from glossa.client.requests import enum_number, model_fields, text_fields, translation_fields
from glossa.v1 import glossa_pb2 as pb
from tests.clients.python.client.conftest import TEXT


def test_every_option_of_the_message_is_an_option_of_the_client():
    assert {field.name for field in pb.DecodingOptions.DESCRIPTOR.fields} < set(Options.__annotations__)
    assert set(ScoreOptions.__annotations__) < set(Options.__annotations__)


async def test_names_and_choices_that_are_none_are_refused_here(client):
    with pytest.raises(TypeError, match="unknown option 'beem_size'; did you mean beam_size"):
        await client.translate(TEXT, beem_size=4)
    with pytest.raises(ValueError, match="early_stopping must be one of true, false, never, got 'maybe'"):
        await client.translate(TEXT, early_stopping="maybe")
    for call in (client.embed, client.classify, client.fill_mask, client.tag, client.embed_tokens, client.tokenize):
        with pytest.raises(TypeError, match="unknown option 'timeout'; did you mean timeout_s"):
            await call(TEXT, timeout=3)
    with pytest.raises(TypeError, match="unknown option 'normalise'; known: model, source_language"):
        await client.similarity([TEXT], normalise=True)
    with pytest.raises(TypeError, match="texts must be a list of texts, got the text 'a cat'; put it in a list"):
        await client.count_tokens("a cat")


def test_options_become_the_fields_of_a_request():
    fields = text_fields("a cat", {"model": "m", "beam_size": 4, "early_stopping": "never", "timeout_s": 1.0})
    decoding = pb.DecodingOptions(beam_size=4, early_stopping=pb.EARLY_STOPPING_NEVER)
    assert fields == {"text": "a cat", "model": "m", "options": decoding}


async def test_confidence_is_an_option_of_translations_alone(edge, client):
    edge.calibrate()
    fields = translation_fields("a cat", {"confidence": True, "uncertain_below": 0.0, "beam_size": 2})
    decoding = pb.DecodingOptions(beam_size=2)
    expected = {"text": "a cat", "options": decoding, "include_confidence": True, "uncertain_below": 0.0}
    assert fields == expected
    assert translation_fields("a cat", {}) == {"text": "a cat", "options": pb.DecodingOptions()}
    with pytest.raises(TypeError, match="unknown option 'confidence'"):
        await client.generate(TEXT, confidence=True)
    with pytest.raises(TypeError, match="unknown option 'confidenc'; did you mean confidence"):
        await client.translate(TEXT, confidenc=True)
    answer = await client.translate(TEXT, model="en-de", confidence=True, uncertain_below=1.0)
    assert answer.confidence.words[0].is_uncertain
    assert answer.confidence.uncertain == ((0, 16),)


def test_empty_languages_are_left_out():
    options = CallOptions(model="", source_language="de", target_language="", timeout_s=2.0)
    assert model_fields(options) == {"model": "", "source_language": "de"}


def test_a_choice_is_found_by_its_short_name():
    assert enum_number("pooling", pb.Pooling.DESCRIPTOR, "cls") == pb.POOLING_CLS
    with pytest.raises(
        ValueError,
        match="pooling must be one of mean, cls, pooler, max, last, mean_sqrt_len, weighted_mean, got 'unspecified!'",
    ):
        enum_number("pooling", pb.Pooling.DESCRIPTOR, "unspecified!")


@pytest.mark.parametrize(("name", "hint"), [("mdoel", "did you mean model?"), ("zzz", "known: beam_size, model, text")])
def test_an_unknown_name_gets_a_hint(name, hint):
    assert closest(name, ("text", "model", "beam_size")) == hint


def test_a_single_kind_of_mark_is_no_list():
    with pytest.raises(TypeError, match="markup must be a list of kinds of marks, got the text 'placeholders'; put it"):
        translation_fields("a", {"markup": "placeholders"})  # type: ignore[typeddict-item]
    with pytest.raises(ValueError, match="markup must be some of tags, placeholders, urls, numbers, got 'tag'"):
        translation_fields("a", {"markup": ["tag"]})  # type: ignore[list-item]


def test_a_glossary_is_a_name_terms_or_messages():
    house = pb.GlossaryTerm(source="house", targets=["Haus", "Schloss"])
    given: Any
    for given in ({"house": ("Haus", "Schloss")}, [house], iter([house])):
        assert translation_fields("a", {"glossary": given})["glossary"] == pb.Glossary(terms=[house])
    assert translation_fields("a", {"glossary": "estate"})["glossary"] == pb.Glossary(name="estate")


@pytest.mark.parametrize(
    ("glossary", "problem"),
    [
        (3, "glossary must be a name, terms with their translations, or a list of GlossaryTerm, got int"),
        ([("house", "Haus")], "glossary must have items of GlossaryTerm, got tuple; or give a dictionary"),
        ({"house": 3}, "glossary must map a term to a translation or a list of them, got 'house': 3"),
        ({"house": ["Haus", None]}, "glossary must map a term to a translation or a list of them, got 'house': "),
        ({"house": b"Haus"}, "glossary must map a term to a translation or a list of them, got 'house': b'Haus'"),
        ({3: "Haus"}, "glossary must map a term to a translation or a list of them, got 3: 'Haus'"),
    ],
)
def test_a_glossary_of_other_types_is_refused(glossary, problem):
    with pytest.raises(TypeError, match=re.escape(problem)):
        translation_fields("a", {"glossary": glossary})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["the house", ["the house"]], "items must be a list of texts or vectors, got 'the house'; put it in a list"),
        ([["the house"], "the house"], "others must be a list of texts or vectors, got 'the house'; put it in a list"),
        ([3], "items must be a list of texts or vectors, got 3; put it in a list"),
        ([[1.0, 2.0]], "items[0] must be a text or a vector, got float; a vector is a list of numbers"),
        ([["a cat", b"a cat"]], "items[1] must be a text or a vector, got bytes"),
        ([[[1.0], ["a"]]], "items[1] must be a text or a list of numbers: must be real number, not str"),
    ],
)
async def test_only_lists_of_texts_and_vectors_are_compared(client, arguments, problem):
    with pytest.raises(TypeError, match=re.escape(problem)):
        await client.similarity(*arguments)


async def test_a_number_beyond_floats_is_in_no_vector(client):
    with pytest.raises(ValueError, match=re.escape("items[0] must have numbers of at most 3.4e38")):
        await client.similarity([[10**400], [1]])
