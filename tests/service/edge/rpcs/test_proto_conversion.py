import dataclasses
import math
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from export.bundle.manifest import AlignmentSpec, AttentionMaps
from glossa.v1 import glossa_pb2 as pb
from service.edge.rpcs.proto_conversion import (
    attention_choice,
    completion,
    decoding_options,
    details,
    perplexity,
    score_response,
)
from service.errors import InvalidRequest
from service.option_checks import CHOICES
from service.options import DecodingOptions
from service.progress import Timings
from service.request import Finished, FinishReason, Request
from tests.edge import RESULT, TIMINGS, TOKENIZERS, FakePool, manifest, served

WORDS, BYTES = TOKENIZERS["translation"], TOKENIZERS["generation"]
MODEL = dataclasses.replace(
    served("en-de", FakePool()), manifest=manifest(alignment=AlignmentSpec(layers=2, heads=2, default_layer=2))
)


def finished(*results):
    return Finished(FinishReason.END_OF_SEQUENCE, timings=TIMINGS, hypotheses=results)


def request_with(**options):
    return Request(request_id="r", source=(5, 2), prompt=(1,), max_tokens=8, options=DecodingOptions(**options), seed=3)


def converted(result, *, text="", has_tokens=False, **options):
    """The only hypothesis as a message."""
    fields = details(finished(result), request_with(**options), MODEL, text=text, has_tokens=has_tokens)
    (hypothesis,) = fields["hypotheses"]
    return hypothesis


def test_an_empty_message_gives_the_defaults():
    assert decoding_options(pb.DecodingOptions()) == DecodingOptions()


def test_every_option_is_converted():
    values: dict[str, Any] = {
        **{item.name: 7 for item in dataclasses.fields(DecodingOptions)},
        **dict.fromkeys(("ignore_eos", "echo", "return_alternatives", "use_shortlist", "ordered_phrases"), True),
        **dict.fromkeys(("prefix", "regex", "json_schema", "lark"), "text"),
        **dict.fromkeys(("stop", "bad_words", "phrases"), ("a", "b")),
        **dict.fromkeys(("prefix_tokens", "allowed_tokens", "alignment_heads"), (7, 8)),
        **{"token_logprobs": True, "logit_bias": {7: 0.5}, "seed": 2**64 - 1},
        **{"length_normalization": "gnmt", "early_stopping": "never", "alignment": "both"},
    }
    numbers: dict[str, Any] = {"length_normalization": 2, "early_stopping": 3, "alignment": 4}
    assert decoding_options(pb.DecodingOptions(**{**values, **numbers})) == DecodingOptions(**values)


def test_an_explicit_zero_is_not_the_default():
    zeros: dict[str, Any] = {
        "length_penalty": 0.0,
        "temperature": 0.0,
        "seed": 0,
        "beam_size": 0,
        "top_p": 0.0,
        "num_sequences": 0,
    }
    assert decoding_options(pb.DecodingOptions(**zeros)) == DecodingOptions(**zeros)


def test_enum_values_become_option_names_and_unknown_ones_stay_for_validation():
    for name, choices in CHOICES.items():
        kind: Any = pb.DecodingOptions.DESCRIPTOR.fields_by_name[name].enum_type
        numbers: dict[Any, Any] = {choice: value.number for choice, value in zip(choices, kind.values[1:], strict=True)}
        for choice, number in {**numbers, "99": 99}.items():
            fields: dict[str, Any] = {name: number}
            assert getattr(decoding_options(pb.DecodingOptions(**fields)), name) == choice


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, set()),
        ({"beam_size": 4}, set()),
        ({"beam_size": 4, "num_hypotheses": 2}, {"hypotheses"}),
        ({"temperature": 1.0}, {"seed"}),
        ({"num_sequences": 2}, {"seed", "hypotheses"}),
        ({"return_alternatives": True}, {"hypotheses"}),
        ({"token_logprobs": True}, {"hypotheses"}),
        ({"top_logprobs": 1}, {"hypotheses"}),
    ],
)
def test_only_requested_fields_are_converted(options, keys):
    assert details(finished(RESULT), request_with(**options), MODEL, text="", has_tokens=False).keys() == keys


def test_token_ids_and_log_probabilities_are_returned_only_when_requested():
    plain = converted(RESULT, num_hypotheses=2)
    assert (plain.text, list(plain.tokens), list(plain.token_logprobs)) == (RESULT.text, [], [])
    assert (plain.score, plain.cumulative_logprob, plain.finish_reason) == (-0.375, -1.875, 1)
    assert list(converted(RESULT, num_hypotheses=2, has_tokens=True).tokens) == list(RESULT.tokens)


def test_each_token_has_its_alternatives():
    tops = tuple(((token, -0.5), (3, -9.0)) for token in RESULT.tokens)
    result = dataclasses.replace(RESULT, alternatives=tops)
    tokens = converted(result, top_logprobs=2).token_logprobs
    assert [[(other.token, other.logprob) for other in token.top_logprobs] for token in tokens] == [
        list(top) for top in tops
    ]
    assert tokens[0].top_logprobs[0].text == WORDS.decode([5])
    assert tokens[4].top_logprobs[0].text == ""  # the end token


def test_an_alignment_uses_the_requested_layer_and_heads():
    text, tokens = " a  black cat", (*WORDS.encode("rote Häuser"), 2)
    result = dataclasses.replace(RESULT, text="rote Häuser", tokens=tokens, token_logprobs=(-0.5,) * 3)
    weights_LHTS = np.random.default_rng(1).dirichlet(np.ones(4), (2, 2, 3)).astype(np.float32)
    result = dataclasses.replace(result, attention=weights_LHTS)
    both = converted(result, text=text, alignment="both").alignment
    assert [(span.start, span.end) for span in both.source_spans][-1] == (len(text), len(text))
    words = [text[span.start : span.end].strip() for span in both.source_spans]
    assert words == ["a", "black", "cat", ""]
    assert [result.text[span.start : span.end].strip() for span in both.target_spans] == ["rote", "Häuser", ""]
    mean_TS = weights_LHTS[1].mean(0)
    for row, expected_S in zip(both.rows, mean_TS, strict=True):
        assert row.weights == pytest.approx(expected_S)
    assert list(both.positions) == mean_TS.argmax(1).tolist()
    one = converted(result, text=text, alignment="soft", alignment_layer=1, alignment_heads=(2,)).alignment
    assert one.rows[0].weights == pytest.approx(weights_LHTS[0, 1, 0])
    assert list(one.positions) == []
    assert list(converted(result, text=text, alignment="hard").alignment.rows) == []
    response = score_response(finished(result), request_with(alignment="hard"), MODEL, text=text)
    assert response.alignment.positions == both.positions


@pytest.mark.parametrize("kind", ["soft", "hard", "both"])
def test_an_alignment_has_the_requested_kinds(kind):
    weights_TS = np.array([[0.2, 0.4, 0.4], [1, 0, 0], [0.3, 0.3, 0.4]], np.float32)
    result = dataclasses.replace(RESULT, tokens=(5, 6, 2), token_logprobs=(-0.5,) * 3, text="zwei rote")
    result = dataclasses.replace(result, attention=np.stack([weights_TS, weights_TS])[None].repeat(2, 0))
    aligned = converted(result, text="a cat", alignment=kind).alignment
    assert (len(aligned.source_spans), len(aligned.target_spans)) == (3, 3)
    assert len(aligned.rows) == (0 if kind == "hard" else 3)
    assert list(aligned.positions) == ([] if kind == "soft" else [1, 0, 2])  # of equal weights the first


def test_a_score_has_perplexity_and_no_seed():
    response = score_response(finished(RESULT), request_with(token_logprobs=True), MODEL, text="cat")
    assert response.perplexity == pytest.approx(math.exp(1.875 / 5))
    assert [token.logprob for token in response.tokens] == list(RESULT.token_logprobs)


def test_the_perplexity_of_an_impossible_target_is_infinite():
    assert perplexity((-0.5, -1.5)) == pytest.approx(math.e)
    assert perplexity((0.0,)) == 1.0
    assert perplexity((-1000.0,)) == perplexity((-math.inf, 0.0)) == math.inf


@pytest.mark.parametrize(("number", "name"), [(0, "unspecified"), (7, "7")])
def test_a_kind_of_attention_that_the_enum_lacks_is_rejected_as_one_that_the_model_lacks(number, name):
    choice = attention_choice(pb.AttendRequest(kinds=[pb.ATTENTION_KIND_DECODER, number]))
    with pytest.raises(InvalidRequest, match=rf"kinds\[1\]: must be one of decoder, got {name}"):
        choice.checked([AttentionMaps(kind="decoder", layers=2, heads=4)], text_only=False)


def test_timings_are_rounded_to_the_microsecond():
    times = {"queue_s": 0.0, "prefill_s": 0.0123456789, "first_token_s": 2.5, "total_s": 61.0000004}
    shown = completion(Finished(FinishReason.LENGTH, timings=Timings(**times)))["timings"]
    for name, seconds in times.items():
        found = getattr(shown, name.removesuffix("_s"))
        assert found.ToTimedelta() == timedelta(seconds=seconds), name
        assert found.nanos % 1000 == 0
