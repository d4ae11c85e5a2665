import dataclasses

import pytest

from export.bundle.manifest import AlignmentSpec
from service.edge.requests import request_limits
from service.edge.requests.request_limits import MAX_ATTENTION_BYTES, MAX_RESPONSE_BYTES, TextLimits, response_size
from service.errors import InvalidRequest, Unsupported
from service.options import DecodingOptions
from service.wire.messages import MAX_MESSAGE_BYTES
from tests.edge import GENERATION, TRANSLATION, decoding_request, manifest

ALIGNED = dataclasses.replace(
    TRANSLATION, manifest=manifest(alignment=AlignmentSpec(layers=2, heads=4, default_layer=1))
)


def test_values_exactly_at_a_limit_are_accepted():
    assert len(decoding_request(TRANSLATION, "cat " * 7).source) == TRANSLATION.max_prompt_tokens == 8
    assert decoding_request(TRANSLATION, "cat", max_tokens=16).max_tokens == 16
    assert decoding_request(TRANSLATION, "cat", max_tokens=1).max_tokens == 1
    assert decoding_request(TRANSLATION, "cat", stop=("ää", ".")).stop == ("ää", ".")
    assert decoding_request(TRANSLATION, "cat" + " " * 3997).source
    assert decoding_request(TRANSLATION, "cat", prefix="cat" + " " * 3997).prefix


@pytest.mark.parametrize(
    ("text", "options", "field"),
    [
        ("cat " * 8, {}, "text"),
        ("cat" + " " * 3998, {}, "text"),
        ("cat", {"max_tokens": 17}, "options.max_tokens"),
        ("cat", {"stop": ("äää",)}, "options.stop[0]"),
        ("cat", {"stop": (".", ".", ".")}, "options.stop"),
        ("cat", {"prefix": "cat" + " " * 3998}, "options.prefix"),
        ("cat", {"prefix": "cat" * 1_000_000, "bad_words": ("cat",)}, "options.prefix"),
    ],
)
def test_values_above_a_limit_are_rejected(text, options, field):
    with pytest.raises(InvalidRequest) as caught:
        decoding_request(TRANSLATION, text, **options)
    assert caught.value.field == field
    assert "must be at most" in caught.value.problem or "must be 1.." in caught.value.problem


@pytest.mark.parametrize(
    ("model", "options", "field", "problem"),
    [
        (TRANSLATION, {"echo": True}, "echo", "must be false for a translation"),
        (GENERATION, {"max_length_ratio": 2.0}, "max_length_ratio", "must be 0 for a text to continue, got 2"),
        (TRANSLATION, {"min_tokens": 17}, "min_tokens", "must be 0..16 here, got 17"),
        (TRANSLATION, {"min_tokens": 2**31 - 1}, "min_tokens", "must be 0..16 here"),
        (TRANSLATION, {"min_tokens": 3, "max_length_ratio": 1.0}, "min_tokens", "must be 0..2 here, got 3"),
        (TRANSLATION, {"max_tokens": 2**31 - 1}, "max_tokens", "must be 1..16, or 0"),
        (TRANSLATION, {"prefix_tokens": (64,)}, "prefix_tokens[0]", "must be a token 0..13, got 64"),
        (TRANSLATION, {"prefix_tokens": (5, -1)}, "prefix_tokens[1]", "must be a token 0..13, got -1"),
        (TRANSLATION, {"prefix_tokens": (5, 2)}, "prefix_tokens[1]", "must not be an end token, got 2"),
        (
            TRANSLATION,
            {"prefix_tokens": (5,) * 17},
            "prefix_tokens",
            "must be at most 16 tokens, the limit by max_tokens",
        ),
        (
            TRANSLATION,
            {"prefix": "cat " * 3, "max_tokens": 2},
            "prefix",
            "at most 2 tokens, the limit by max_tokens, got 3",
        ),
        (
            TRANSLATION,
            {"prefix": "cat " * 3, "max_length_ratio": 1.0},
            "prefix",
            "at most 2 tokens, the limit by max_length_ratio, got 3",
        ),
        (
            TRANSLATION,
            {"prefix": "cat cat", "max_tokens": 2, "num_sequences": 3},
            "prefix",
            "must be fewer than 2 tokens, the limit by max_tokens, got 2: all 3 hypotheses would be the same",
        ),
        (
            TRANSLATION,
            {"prefix_tokens": (5,) * 16, "return_alternatives": True, "num_hypotheses": 2},
            "prefix_tokens",
            "must be fewer than 16 tokens, the limit by max_tokens, got 16: all 2 hypotheses",
        ),
        (TRANSLATION, {"prefix": "green cat"}, "prefix", "does not know these words: green"),
        (TRANSLATION, {"allowed_tokens": (5, 2, 14)}, "allowed_tokens[2]", "must be a token 0..13, got 14"),
        (TRANSLATION, {"logit_bias": {14: 1.0}}, "logit_bias[14]", "must be a token 0..13"),
        (TRANSLATION, {"logit_bias": {-1: 1.0}}, "logit_bias[-1]", "must be a token 0..13"),
        (ALIGNED, {"alignment": "hard", "alignment_layer": 3}, "alignment_layer", "must be 0..2, got 3"),
        (ALIGNED, {"alignment": "hard", "alignment_heads": (4, 5)}, "alignment_heads[1]", "must be 1..4, got 5"),
        (ALIGNED, {"alignment": "hard", "alignment_heads": (1, 2, 3, 4, 5)}, "alignment_heads[4]", "1..4, got 5"),
        (ALIGNED, {"alignment": "soft", "alignment_heads": (1, 0)}, "alignment_heads[1]", "must be 1..4, got 0"),
        (ALIGNED, {"alignment": "soft", "alignment_heads": (2, 1, 2)}, "alignment_heads[2]", "got 2 again"),
        (ALIGNED, {"alignment": "hard", "alignment_heads": (1,) * 65536}, "alignment_heads[1]", "got 1 again"),
        (dataclasses.replace(ALIGNED, max_hypotheses=3), {"beam_size": 4}, "beam_size", "1..3 on this server, got 4"),
        (dataclasses.replace(ALIGNED, max_hypotheses=3), {"num_sequences": 4}, "num_sequences", "1..3 on this server"),
        (TRANSLATION, {"top_p": 2.0}, "top_p", "above 0 and at most 1"),
    ],
)
def test_options_that_do_not_fit_the_model_are_rejected(model, options, field, problem):
    with pytest.raises(InvalidRequest) as caught:
        decoding_request(model, "cat", **options)
    assert caught.value.field == f"options.{field}"
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        (
            TRANSLATION,
            {"alignment": "soft"},
            "has no cross-attention output, which alignment needs; export it with --attention",
        ),
        (
            TRANSLATION,
            {"coverage_penalty": 0.2, "beam_size": 2},
            "no cross-attention output, which coverage_penalty needs",
        ),
        (GENERATION, {"alignment": "soft"}, "only models with an encoder have it"),
        (TRANSLATION, {"use_shortlist": True}, "has no shortlist"),
    ],
)
def test_options_that_the_bundle_lacks_are_unsupported(model, options, problem):
    with pytest.raises(Unsupported, match=problem):
        decoding_request(model, "cat", **options)


def test_responses_too_large_for_clients_are_rejected_before_they_are_computed():
    long = dataclasses.replace(ALIGNED.manifest.limits, max_source_len=1024, max_target_len=1024)
    roomy = dataclasses.replace(ALIGNED, manifest=dataclasses.replace(ALIGNED.manifest, limits=long))
    text = "cat " * 900
    assert decoding_request(roomy, text, alignment="hard")
    for options, field in (
        ({"alignment": "soft"}, "alignment"),
        ({"alignment": "hard", "beam_size": 32, "num_hypotheses": 32}, "alignment"),
        ({"top_logprobs": 20, "num_sequences": 32}, "top_logprobs"),
    ):
        with pytest.raises(InvalidRequest, match="request fewer hypotheses") as caught:
            decoding_request(roomy, text, **options)
        assert caught.value.field == f"options.{field}"
        assert decoding_request(roomy, text, **options, max_tokens=4)


def test_the_size_of_a_hard_alignment_includes_attention_weights():
    attention = ALIGNED.manifest.alignment
    soft, hard = (
        response_size(ALIGNED.manifest, DecodingOptions(alignment=kind), 100, 50) for kind in ("soft", "hard")
    )
    assert soft.attention == hard.attention == 4 * 100 * 50 * attention.layers * attention.heads
    assert soft.message - hard.message == 4 * 100 * 50
    assert response_size(ALIGNED.manifest, DecodingOptions(), 100, 50) == (hard.message, 0)


def test_the_size_of_a_coverage_penalty_is_that_of_one_hypothesis():
    options = DecodingOptions(coverage_penalty=0.2, beam_size=4, num_hypotheses=3)
    plain, aligned = dataclasses.replace(options, coverage_penalty=0.0), dataclasses.replace(options, alignment="hard")
    sizes = [response_size(ALIGNED.manifest, one, 100, 50) for one in (plain, options, aligned)]
    assert [size.attention for size in sizes] == [0, 4 * 2 * 4 * 100 * 50, 3 * 4 * 2 * 4 * 100 * 50]
    assert {size.message for size in sizes} == {sizes[0].message}


@pytest.mark.parametrize(("alignment", "field"), [("none", "coverage_penalty"), ("hard", "alignment")])
def test_a_coverage_penalty_that_needs_too_much_attention_is_rejected(monkeypatch, alignment, field):
    one_token = 4 * 2 * 4 * 4  # "cat cat cat" and the end token
    monkeypatch.setattr(request_limits, "MAX_ATTENTION_BYTES", 5 * one_token)
    options = {"coverage_penalty": 0.2, "beam_size": 4, "alignment": alignment}
    assert decoding_request(ALIGNED, "cat cat cat", **options, max_tokens=5)
    with pytest.raises(InvalidRequest, match="bytes of attention weights") as caught:
        decoding_request(ALIGNED, "cat cat cat", **options, max_tokens=6)
    assert caught.value.field == f"options.{field}"
    assert "fewer max_tokens" in caught.value.problem


def test_a_message_has_room_for_the_largest_answer():
    assert MAX_ATTENTION_BYTES + 8 * MAX_RESPONSE_BYTES < MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    ("given", "tokens", "most"), [(0, 256, 16384), (0, 8192, 65536), (0, 1 << 20, 1 << 20), (5000, 8192, 5000)]
)
def test_texts_are_limited_in_proportion_to_the_context_unless_a_limit_is_given(given, tokens, most):
    limits = TextLimits(max_text_bytes=given).for_context(tokens)
    assert TextLimits(max_text_bytes=given, max_message_bytes=most - 1).for_context(tokens).max_text_bytes == (
        given or most - 1
    ), "a larger text could not be sent"
    limits.check_bytes("a" * most, "text")
    with pytest.raises(InvalidRequest, match=f"must be at most {most} bytes, got {most + 1}; shorten or split it"):
        limits.check_bytes("a" * (most + 1), "text")
