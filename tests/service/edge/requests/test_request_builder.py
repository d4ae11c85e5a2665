import dataclasses
import pickle
from typing import Any

import pytest

from export.bundle.manifest import AttentionMaps, Tokens
from export.bundle.target_shortlist import Shortlist
from model.tokenizer import Tokenizer
from service.attention_request import AttentionChoice
from service.edge.requests.request_builder import RequestBuilder
from service.errors import InvalidRequest, Unsupported
from service.options import DecodingOptions
from tests.edge import (
    CALL,
    GENERATION,
    LIMITS,
    TRANSLATION,
    FakePool,
    decoding_request,
    manifest,
    scoring_request,
    served,
)

SEEN = tuple(AttentionMaps(kind=kind, layers=2, heads=4) for kind in ("encoder", "decoder", "cross"))
SEEING = dataclasses.replace(TRANSLATION, manifest=manifest(attention_maps=SEEN))
SEEING_GENERATION = dataclasses.replace(GENERATION, manifest=manifest("generation", attention_maps=SEEN[1:2]))


def attention_request(model, text, target=None, *, text_only=False, max_tokens=0, **choice):
    """A request for attention, and its selection."""
    builder = RequestBuilder(model, LIMITS, *CALL)
    return builder.attention(text, target, AttentionChoice(**choice), text_only=text_only, max_tokens=max_tokens)


def test_options_and_a_prefix_become_part_of_the_request():
    request = decoding_request(TRANSLATION, "cat", prefix="zwei rote", beam_size=4, max_tokens=5)
    assert request.prefix == tuple(TRANSLATION.tokenizer.encode("zwei rote"))
    assert (request.options.beam_size, request.max_tokens, request.seed) == (4, 5, 0)
    assert decoding_request(TRANSLATION, "cat", prefix_tokens=(5, 6)).prefix == (5, 6)
    assert decoding_request(TRANSLATION, "cat", prefix_tokens=(5,) * 16).max_tokens == 16


def test_a_preferred_prefix_is_not_forced():
    request = decoding_request(TRANSLATION, "cat", prefix="zwei rote", prefix_bias=0.5)
    assert (request.prefix, request.preferred_prefix) == ((), tuple(TRANSLATION.tokenizer.encode("zwei rote")))


def test_only_a_generation_continues_its_text():
    assert decoding_request(TRANSLATION, "a cat").continued_text == ""
    assert decoding_request(GENERATION, "a cat").continued_text == "a cat"


def test_a_request_is_plain_data():
    options: dict[str, Any] = {"phrases": ("cat",), "beam_size": 2, "regex": "(a |b )*", "logit_bias": {5: 1.0}}
    request = decoding_request(TRANSLATION, "a cat", **options)
    assert pickle.loads(pickle.dumps(request)) == request


def test_a_shortlist_allows_what_it_lists_for_the_source():
    listed = Shortlist(always=(7,), by_source={4: (8, 9)})
    model = dataclasses.replace(TRANSLATION, shortlist=listed)
    request, plain = decoding_request(model, "cat", use_shortlist=True), decoding_request(model, "cat")
    assert request.shortlist == tuple(sorted({*listed.allowed(plain.source), 2}))
    assert plain.shortlist == ()


def test_prefix_tokens_are_always_in_the_shortlist():
    model = dataclasses.replace(TRANSLATION, shortlist=Shortlist(always=(7,), by_source={}))
    for bias in (0.0, 0.5):
        request = decoding_request(model, "cat", use_shortlist=True, prefix_tokens=(9, 6), prefix_bias=bias)
        assert {6, 7, 9} < set(request.shortlist)


def test_tokens_of_required_phrases_are_always_in_the_shortlist():
    model = dataclasses.replace(TRANSLATION, shortlist=Shortlist(always=(7,), by_source={}))
    options: dict[str, Any] = {"use_shortlist": True, "beam_size": 2, "phrases": ("rote", "zwei Häuser")}
    given = {token for text in options["phrases"] for token in TRANSLATION.tokenizer.encode(text)}
    assert len(given) == 3
    plain, request = decoding_request(model, "cat", use_shortlist=True), decoding_request(model, "cat", **options)
    assert not given & set(plain.shortlist)
    assert set(request.shortlist) == {*plain.shortlist, *given}
    red = TRANSLATION.tokenizer.encode("rote")
    only_red = decoding_request(model, "cat", **options, allowed_tokens=(7, *red))
    assert set(only_red.shortlist) == {*plain.shortlist, *red}, "nothing can have the other phrase"


def test_a_phrase_without_tokens_is_refused_beside_a_shortlist():
    model = dataclasses.replace(TRANSLATION, shortlist=Shortlist(always=(7,), by_source={}))
    with pytest.raises(InvalidRequest, match=r"phrases\[1\]: the model's closed vocabulary does not know blau"):
        decoding_request(model, "cat", use_shortlist=True, beam_size=2, phrases=("rote", "blau"))


@pytest.mark.parametrize(("ratio", "most"), [(5e-324, 1), (0.1, 1), (1.0, 4), (1.5, 6), (0.26, 2), (100.0, 16)])
def test_length_may_be_bounded_by_the_source(ratio, most):
    assert decoding_request(TRANSLATION, "cat cat cat", max_length_ratio=ratio).max_tokens == most
    assert decoding_request(TRANSLATION, "cat cat cat", max_length_ratio=ratio, max_tokens=1).max_tokens == 1


def test_a_seed_is_drawn_when_it_is_needed_and_not_given():
    assert decoding_request(TRANSLATION, "cat", seed=2**64 - 1).seed == 2**64 - 1
    assert decoding_request(TRANSLATION, "cat").seed == 0
    drawn = {decoding_request(TRANSLATION, "cat", temperature=1.0).seed for _ in range(8)}
    assert len(drawn) == 8
    assert max(drawn) < 2**53


def test_a_target_to_score_is_a_forced_prefix():
    request = scoring_request(TRANSLATION, "a black cat", "zwei Häuser", length_penalty=0.5)
    tokens = tuple(TRANSLATION.tokenizer.encode("zwei Häuser"))
    assert request.prefix == (*tokens, 2)
    assert (request.max_tokens, request.options.token_logprobs, request.options.length_penalty) == (3, True, 0.5)
    assert scoring_request(TRANSLATION, "cat", "zwei Häuser", omit_eos=True).prefix == tokens
    assert scoring_request(TRANSLATION, "cat", (5, 6)).prefix == (5, 6)
    assert scoring_request(TRANSLATION, "cat", (5, 2)).prefix == (5, 2)
    assert scoring_request(GENERATION, "", "cat").prompt == (1,)


@pytest.mark.parametrize("given", [(5, 2, 6), (5, 6, 5)])
def test_a_target_ends_with_every_token_that_ends_an_answer(given):
    model = dataclasses.replace(
        TRANSLATION, manifest=manifest(tokens=Tokens(pad=0, bos=1, eos=2, unk=3, extra_eos=(6,)))
    )
    assert scoring_request(model, "cat", (5, 6)).prefix == (5, 6)
    with pytest.raises(InvalidRequest, match=r"target_tokens\[1\]: must not be an end token, got (2|6)"):
        scoring_request(model, "cat", given)
    with pytest.raises(InvalidRequest, match=r"prefix_tokens\[1\]: must not be an end token, got 6"):
        decoding_request(model, "cat", prefix_tokens=(5, 6))


@pytest.mark.parametrize(
    ("model", "text", "given", "field", "problem"),
    [
        (TRANSLATION, "", "cat", "text", "must not be empty"),
        (TRANSLATION, "cat", " ", "target", "must not be empty or blank"),
        (TRANSLATION, "cat", "cat " * 16, "target", "must be 1..16 tokens, got 17"),
        (TRANSLATION, "cat", "cat" + " " * 4000, "target", "at most 4000 bytes"),
        (TRANSLATION, "cat", "green", "target", "does not know these words: green"),
        (TRANSLATION, "cat", (5, 2, 5), "target_tokens[1]", "must not be an end token"),
        (TRANSLATION, "cat", (5, 99), "target_tokens[1]", "must be a token 0..13, got 99"),
        (TRANSLATION, "cat", (5,) * 17, "target_tokens", "must be 1..16 tokens, got 17"),
        (GENERATION, "x" * 10, "y" * 10, "target", "must be 1..6 tokens, got 11"),
    ],
)
def test_a_target_that_cannot_be_scored_is_rejected(model, text, given, field, problem):
    with pytest.raises(InvalidRequest) as caught:
        scoring_request(model, text, given)
    assert caught.value.field == field
    assert problem in caught.value.problem


def test_omit_eos_is_rejected_with_target_tokens():
    with pytest.raises(InvalidRequest, match="omit_eos: must be false with target_tokens"):
        scoring_request(TRANSLATION, "cat", (5, 6), omit_eos=True)


def test_without_a_target_the_model_generates_one():
    request, choice = attention_request(SEEING, "a black cat")
    words = TRANSLATION.tokenizer.encode("a black cat")
    assert (request.source, request.prompt, request.forced_target, request.max_tokens) == ((*words, 2), (1,), (), 16)
    assert request.attention_kinds == choice.kinds == ("encoder", "decoder", "cross")
    assert attention_request(SEEING, "a black cat", max_tokens=3)[0].max_tokens == 3
    request, _ = attention_request(SEEING_GENERATION, "a cat")
    assert (request.forced_target, request.max_tokens) == ((), 16 - len(request.prompt) + 1)


def test_a_given_target_is_forced_and_nothing_is_generated():
    words = tuple(TRANSLATION.tokenizer.encode("the red"))
    for target in ("the red", (*words, 2)):
        request, _ = attention_request(SEEING, "a black cat", target)
        assert (request.forced_target, request.prompt, request.max_tokens) == ((1, *words), (1,), 1)
    request, _ = attention_request(SEEING_GENERATION, "a", text_only=True)
    assert request.forced_target == (1, *GENERATION.tokenizer.encode("a"))
    request, choice = attention_request(SEEING, "a black cat", text_only=True)
    assert (choice.kinds, request.forced_target) == (("encoder",), (1,))
    request, _ = attention_request(SEEING, "a black cat", kinds=("encoder",))
    assert request.forced_target == (1,)


def test_a_generated_target_is_as_long_as_the_response_has_room_for():
    many = dataclasses.replace(SEEN[1], layers=1000)
    model = dataclasses.replace(SEEING_GENERATION, manifest=manifest("generation", attention_maps=(many,)))
    prompt = 1 + len(GENERATION.tokenizer.encode("a"))
    request, _ = attention_request(model, "a")
    longest = prompt + request.max_tokens - 1  # of 1000 * 4 matrices
    assert 4 * 4000 * longest**2 < 3 << 20 < 4 * 4000 * (longest + 2) ** 2
    assert attention_request(model, "a", mean_heads=True)[0].max_tokens == 16 - prompt + 1
    with pytest.raises(InvalidRequest, match=r"at most 3145728 bytes .* request fewer kinds, layers or heads, for"):
        attention_request(model, "a", max_tokens=16 - prompt + 1)
    model = dataclasses.replace(
        model, manifest=manifest("generation", attention_maps=(dataclasses.replace(many, layers=2**20),))
    )
    with pytest.raises(InvalidRequest, match="to be computed, however little of it is"):
        attention_request(model, "a", "a", layers=(1,), heads=(1,))


def test_attention_needs_a_bundle_with_attention():
    with pytest.raises(Unsupported, match="'en-de' has no attention outputs; export it with --attention"):
        attention_request(TRANSLATION, "a black cat")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_only": True, "target": "a"}, "text_only: must be false with a target"),
        ({"max_tokens": 2, "target": "a"}, "max_tokens: must be 0 unless the model generates the target, got 2"),
        ({"max_tokens": 17}, r"max_tokens: must be 0\.\.16 here, got 17"),
        ({"max_tokens": -1}, r"max_tokens: must be 0\.\.16 here, got -1"),
        ({"target": (5, 2, 6)}, r"target_tokens\[1\]: must not be an end token"),
        ({"target": (99,)}, r"target_tokens\[0\]: must be a token"),
        ({"target": " "}, "target: must not be empty or blank"),
        ({"target": "cat " * 16}, r"target: must be 1\.\.16 tokens, got 17"),
    ],
)
def test_contradicting_attention_fields_are_rejected(fields, message):
    with pytest.raises(InvalidRequest, match=message):
        attention_request(SEEING, "a black cat", **fields)


def continuation(model, prompt, **options):
    return RequestBuilder(model, LIMITS, *CALL).continuation(prompt, DecodingOptions(**options))


def test_a_prompt_of_tokens_is_continued_as_its_text_is():
    text = decoding_request(GENERATION, "a cat", max_tokens=3, stop=("x",))
    assert continuation(GENERATION, text.prompt, max_tokens=3, stop=("x",)) == text


def closed_vocabulary():
    model = served("en", FakePool(), "generation")
    model.tokenizer = Tokenizer.train(["a cat"], kind="words", vocab_size=64)
    return model


@pytest.mark.parametrize(
    ("model", "prompt", "field", "problem"),
    [
        (GENERATION, (), "prompt", "must be 1..16 tokens, got 0"),
        (GENERATION, (5,) * 17, "prompt", "must be 1..16 tokens, got 17"),
        (GENERATION, (1, -1), "prompt[1]", "must be a token 0.."),
        (GENERATION, (1, 999), "prompt[1]", "must be a token 0.."),
        (closed_vocabulary(), (1, 4, 3), "prompt[2]", "must not be the unknown token 3"),
    ],
)
def test_a_prompt_of_tokens_that_cannot_be_continued_is_rejected(model, prompt, field, problem):
    with pytest.raises(InvalidRequest) as caught:
        continuation(model, prompt)
    assert caught.value.field == field
    assert problem in caught.value.problem


def test_the_options_of_a_continuation_are_checked():
    for options, field in (
        ({"top_p": 2.0}, "top_p"),
        ({"stop": ("x" * 9,)}, "stop[0]"),
        ({"max_tokens": 99}, "max_tokens"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            continuation(GENERATION, (1, 5), **options)
        assert caught.value.field == f"options.{field}"
