from typing import Any

import pytest

from model.tokenizer import Tokenizer
from service.decoding.grammar import Grammar
from service.decoding.lexical_constraints import LexicalConstraints
from service.decoding.request_processors import SLOW_OPTIONS, processors_of
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest
from service.options import DecodingOptions
from service.request import Request

TEXTS = ("the small red house", "a black cat", "zwei rote Häuser")
WORDS = Tokenizer.train(TEXTS, kind="words", vocab_size=64)
BYTES = Tokenizer.train(TEXTS, kind="bpe", vocab_size=300)


def processors(tokenizer=WORDS, prefix="", max_tokens=16, **options):
    """Those of a request whose forced prefix is a text."""
    request = Request(
        request_id="r",
        prompt=(1,),
        max_tokens=max_tokens,
        prefix=tuple(tokenizer.encode(prefix)),
        options=DecodingOptions(prefix=prefix, **options),
    )
    return processors_of(request, Vocabulary.of(tokenizer, eos_ids=(2,)), tokenizer)


def test_processors_are_ordered_and_end_with_lexical_constraints():
    rules = processors(
        bad_words=("black",), ignore_eos=True, repetition_penalty=1.5, phrases=("red house",), beam_size=4
    )
    assert [type(rule).__name__ for rule in rules] == [
        "RepetitionPenalty",
        "MinLength",
        "BannedTexts",
        "LexicalConstraints",
    ]
    assert isinstance(rules[-1], LexicalConstraints)
    assert processors() == ()


def test_a_grammar_is_compiled_for_the_models_tokens():
    for options in ({"regex": "(red|black) cat"}, {"lark": "start: /cat|house/"}):
        (rule,) = processors(**options)
        assert isinstance(rule, Grammar)
    for options, field in (({"regex": "("}, "regex"), ({"json_schema": "{"}, "json_schema"), ({"lark": "x"}, "lark")):
        with pytest.raises(InvalidRequest) as caught:
            processors(BYTES, **options)
        assert caught.value.field == f"options.{field}"


def test_a_preferred_prefix_is_a_penalty():
    request = Request(
        request_id="r",
        prompt=(1,),
        max_tokens=5,
        preferred_prefix=(5, 6),
        options=DecodingOptions(prefix_tokens=(5, 6), prefix_bias=0.5),
    )
    (rule,) = processors_of(request, Vocabulary.of(WORDS, eos_ids=(2,)), WORDS)
    assert type(rule).__name__ == "PrefixBias"


def test_phrases_must_fit_after_the_part_that_the_prefix_contains():
    options: dict[str, Any] = {"phrases": ("red house", "black cat"), "beam_size": 2}
    assert processors(max_tokens=5, **options)
    with pytest.raises(InvalidRequest, match=r"options\.phrases: must need at most 4 tokens, .* got 5"):
        processors(max_tokens=4, **options)
    assert processors(max_tokens=5, prefix="red house", **options)
    with pytest.raises(InvalidRequest, match=r"options\.phrases: .* got 6"):
        processors(max_tokens=5, prefix="zwei", **options)
    with pytest.raises(InvalidRequest, match=r"options\.phrases\[1\]: .* does not know unicorn"):
        processors(phrases=("cat", "unicorn"), beam_size=2)


def test_a_mark_that_is_known_only_after_words_may_be_a_phrase():
    tokenizer = Tokenizer.train(("zwei, rote Häuser!",), kind="words", vocab_size=64)
    assert processors(tokenizer, phrases=(",",), beam_size=2)


@pytest.mark.parametrize(
    ("prefix", "options", "problem"),
    [
        ("black", {"bad_words": ("black",)}, "token 0 is excluded"),
        ("cat", {"allowed_tokens": (2,)}, "token 0 is excluded by another constraint"),
        ("cat cat", {"regex": "cat"}, "token 1 is excluded by another constraint"),
    ],
)
def test_a_prefix_that_another_constraint_excludes_is_rejected(prefix, options, problem):
    with pytest.raises(InvalidRequest, match=rf"options\.prefix: {problem}"):
        processors(prefix=prefix, **options)
    assert processors(**options)


def test_the_name_of_the_rejected_prefix_is_that_of_its_option():
    request = Request(
        request_id="r",
        prompt=(1,),
        max_tokens=5,
        prefix=(6,),
        options=DecodingOptions(prefix_tokens=(6,), bad_words=(WORDS.decode([6]),)),
    )
    with pytest.raises(InvalidRequest, match=r"options\.prefix_tokens: token 0 is excluded"):
        processors_of(request, Vocabulary.of(WORDS, eos_ids=(2,)), WORDS)


def test_slow_options_are_attributes_of_options():
    assert all(hasattr(DecodingOptions(), name) for name in SLOW_OPTIONS)
