import dataclasses
import pickle
from typing import Any

import pytest

from export.manifest import Shortlist
from service.errors import InvalidRequest
from tests.edge import GENERATION, TRANSLATION, decoding_request, scoring_request


async def test_options_and_a_prefix_become_part_of_the_request():
    request = await decoding_request(TRANSLATION, "cat", prefix="zwei rote", beam_size=4, max_tokens=5)
    assert request.prefix == tuple(TRANSLATION.tokenizer.encode("zwei rote"))
    assert (request.options.beam_size, request.max_tokens, request.seed) == (4, 5, 0)
    assert (await decoding_request(TRANSLATION, "cat", prefix_tokens=(5, 6))).prefix == (5, 6)
    assert (await decoding_request(TRANSLATION, "cat", prefix_tokens=(5,) * 16)).max_tokens == 16


async def test_a_preferred_prefix_is_not_forced():
    request = await decoding_request(TRANSLATION, "cat", prefix="zwei rote", prefix_bias=0.5)
    assert (request.prefix, request.preferred_prefix) == ((), tuple(TRANSLATION.tokenizer.encode("zwei rote")))


async def test_only_a_generation_continues_its_text():
    assert (await decoding_request(TRANSLATION, "a cat")).continued_text == ""
    assert (await decoding_request(GENERATION, "a cat")).continued_text == "a cat"


async def test_a_request_is_plain_data():
    options: dict[str, Any] = {"phrases": ("cat",), "beam_size": 2, "regex": "(a |b )*", "logit_bias": {5: 1.0}}
    request = await decoding_request(TRANSLATION, "a cat", **options)
    assert pickle.loads(pickle.dumps(request)) == request


async def test_a_shortlist_allows_what_it_lists_for_the_source():
    listed = Shortlist(always=(7,), by_source={4: (8, 9)})
    model = dataclasses.replace(TRANSLATION, shortlist=listed)
    request, plain = await decoding_request(model, "cat", use_shortlist=True), await decoding_request(model, "cat")
    assert request.shortlist == tuple(sorted({*listed.allowed(plain.source), 2}))
    assert plain.shortlist == ()


async def test_prefix_tokens_are_always_in_the_shortlist():
    model = dataclasses.replace(TRANSLATION, shortlist=Shortlist(always=(7,), by_source={}))
    for bias in (0.0, 0.5):
        request = await decoding_request(model, "cat", use_shortlist=True, prefix_tokens=(9, 6), prefix_bias=bias)
        assert {6, 7, 9} < set(request.shortlist)


@pytest.mark.parametrize(("ratio", "most"), [(5e-324, 1), (0.1, 1), (1.0, 4), (1.5, 6), (0.26, 2), (100.0, 16)])
async def test_length_may_be_bounded_by_the_source(ratio, most):
    assert (await decoding_request(TRANSLATION, "cat cat cat", max_length_ratio=ratio)).max_tokens == most
    assert (await decoding_request(TRANSLATION, "cat cat cat", max_length_ratio=ratio, max_tokens=1)).max_tokens == 1


async def test_a_seed_is_drawn_when_it_is_needed_and_not_given():
    assert (await decoding_request(TRANSLATION, "cat", seed=2**64 - 1)).seed == 2**64 - 1
    assert (await decoding_request(TRANSLATION, "cat")).seed == 0
    drawn = {(await decoding_request(TRANSLATION, "cat", temperature=1.0)).seed for _ in range(8)}
    assert len(drawn) == 8
    assert max(drawn) < 2**53


async def test_a_target_to_score_is_a_forced_prefix():
    request = await scoring_request(TRANSLATION, "a black cat", "zwei Häuser", length_penalty=0.5)
    tokens = tuple(TRANSLATION.tokenizer.encode("zwei Häuser"))
    assert request.prefix == (*tokens, 2)
    assert (request.max_tokens, request.options.token_logprobs, request.options.length_penalty) == (3, True, 0.5)
    assert (await scoring_request(TRANSLATION, "cat", "zwei Häuser", omit_eos=True)).prefix == tokens
    assert (await scoring_request(TRANSLATION, "cat", (5, 6))).prefix == (5, 6)
    assert (await scoring_request(TRANSLATION, "cat", (5, 2))).prefix == (5, 2)
    assert (await scoring_request(GENERATION, "", "cat")).prompt == (1,)


@pytest.mark.parametrize(
    ("model", "text", "given", "field", "problem"),
    [
        (TRANSLATION, "", "cat", "text", "must not be empty"),
        (TRANSLATION, "cat", " ", "target", "must not be empty or blank"),
        (TRANSLATION, "cat", "cat " * 16, "target", "must be 1..16 tokens, got 17"),
        (TRANSLATION, "cat", "cat" + " " * 4000, "target", "at most 4000 bytes"),
        (TRANSLATION, "cat", "green", "target", "does not know these words: green"),
        (TRANSLATION, "cat", (5, 2, 5), "target_tokens[1]", "must not be the end token"),
        (TRANSLATION, "cat", (5, 99), "target_tokens[1]", "must be a token 0..13, got 99"),
        (TRANSLATION, "cat", (5,) * 17, "target_tokens", "must be 1..16 tokens, got 17"),
        (GENERATION, "x" * 10, "y" * 10, "target", "must be 1..6 tokens, got 11"),
    ],
)
async def test_a_target_that_cannot_be_scored_is_rejected(model, text, given, field, problem):
    with pytest.raises(InvalidRequest) as caught:
        await scoring_request(model, text, given)
    assert caught.value.field == field
    assert problem in caught.value.problem


async def test_omit_eos_is_rejected_with_target_tokens():
    with pytest.raises(InvalidRequest, match="omit_eos: must be false with target_tokens"):
        await scoring_request(TRANSLATION, "cat", (5, 6), omit_eos=True)
