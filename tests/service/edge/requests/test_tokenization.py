"""Languages among the special tokens: a count does not need them, special tokens do."""

import dataclasses

import pytest

from export.bundle.manifest import Encoding
from service.edge.requests.prompt_encoder import NO_LANGUAGES, LanguagePair
from service.edge.requests.tokenization import Count, Tokenization
from service.errors import InvalidRequest
from tests.edge import GENERATION, LIMITS, TRANSLATION, decoding_request, manifest
from tests.service.edge.requests.test_prompt_encoder import FRAMED

LANGUAGES = LanguagePair("eng_Latn", "deu_Latn")


def tokens(model, text, languages=NO_LANGUAGES, *, is_target=False, has_special=True):
    return Tokenization(model, LIMITS).tokens(text, languages, is_target=is_target, has_special=has_special)


def test_a_count_includes_the_languages_without_knowing_them():
    request = decoding_request(FRAMED, "a black cat", languages=LANGUAGES)
    assert Tokenization(FRAMED, LIMITS).count("a black cat") == Count(len(request.source), False, [])
    found = tokens(FRAMED, "a black cat", has_special=False)
    assert (len(found.ids), found.length.tokens) == (3, 5)
    Tokenization(FRAMED, LIMITS).check_texts(["a"], LanguagePair("eng_Latn"))
    Tokenization(FRAMED, LIMITS).check_texts(["a"], LanguagePair("en"))
    with pytest.raises(InvalidRequest, match="source_language: unknown code 'fr'"):
        Tokenization(FRAMED, LIMITS).check_texts(["a"], LanguagePair("fr"))


def test_a_count_includes_a_prompt():
    assert Tokenization(TRANSLATION, LIMITS).count("black cat", "a ") == Count(4, False, [])
    assert Tokenization(TRANSLATION, LIMITS).count("cat " * 7, "a ") == Count(9, True, [])


def test_special_tokens_include_the_languages():
    request = decoding_request(FRAMED, "a black cat", languages=LANGUAGES)
    found = tokens(FRAMED, "a black cat", LANGUAGES)
    assert found.ids == request.source
    assert found.max_new_tokens == request.max_tokens
    target = tokens(FRAMED, "a black cat", LANGUAGES, is_target=True)
    assert target.ids == (*request.prompt, *FRAMED.tokenizer.encode("a black cat"), 2)
    with pytest.raises(InvalidRequest, match="source_language: must be given: one of"):
        tokens(FRAMED, "a black cat")


def test_the_room_is_what_requests_get():
    for model in (TRANSLATION, GENERATION):
        for text in ("a", "a cat", "a black cat"):
            assert tokens(model, text).max_new_tokens == decoding_request(model, text).max_tokens


def test_an_encoder_has_no_room_for_new_tokens():
    own = manifest(encoding=Encoding(width=4))
    limits = dataclasses.replace(own.limits, max_target_len=0)
    encoder = dataclasses.replace(TRANSLATION, manifest=dataclasses.replace(own, task="encoding", limits=limits))
    assert tokens(encoder, "a cat").max_new_tokens == 0
    with pytest.raises(InvalidRequest, match="target: must be empty"):
        tokens(encoder, "a cat", is_target=True)
