import math
import re
from typing import Any, get_type_hints

import pytest

from service.errors import InvalidRequest
from service.option_checks import check, check_scoring
from service.options import MAX_GRAMMAR_BYTES, OPTIONS, DecodingOptions

NAN, INF, INT32 = math.nan, math.inf, 2**31 - 1
BEAM = {"beam_size": 4}
ALTERNATIVES = {"return_alternatives": True, "num_hypotheses": 2}
FLOATS = [name for name, kind in get_type_hints(DecodingOptions).items() if kind in (float, float | None)]
MAX_LOGIT_BIAS, MAX_BAD_WORDS = OPTIONS["logit_bias"].max_items, OPTIONS["bad_words"].max_items
MAX_TOKEN_LIST = OPTIONS["allowed_tokens"].max_items
MAX_PHRASES, MAX_PHRASE_BYTES = OPTIONS["phrases"].max_items, OPTIONS["phrases"].max_bytes

REFUSED = [
    # by themselves
    ({"max_tokens": -1}, "max_tokens", "must be at least 0, got -1"),
    ({"min_tokens": -1}, "min_tokens", "must be at least 0, got -1"),
    ({"max_length_ratio": -0.5}, "max_length_ratio", r"must be 0\.\.100, got -0\.5"),
    ({"max_length_ratio": 101.0}, "max_length_ratio", r"must be 0\.\.100, got 101"),
    ({"beam_size": 0}, "beam_size", r"must be 1\.\.32, got 0"),
    ({"beam_size": 33}, "beam_size", r"must be 1\.\.32, got 33"),
    ({"beam_size": INT32}, "beam_size", f"got {INT32}"),
    ({"num_hypotheses": 0}, "num_hypotheses", r"must be 1\.\.32, got 0"),
    ({"num_hypotheses": INT32, "return_alternatives": True}, "num_hypotheses", f"got {INT32}"),
    ({**BEAM, "length_penalty": 10.5}, "length_penalty", r"must be -10\.\.10, got 10\.5"),
    ({**BEAM, "length_normalization": "7"}, "length_normalization", "must be one of average, gnmt, got 7"),
    ({**BEAM, "coverage_penalty": -1.0}, "coverage_penalty", r"must be 0\.\.100, got -1"),
    ({**BEAM, "patience": 0.0}, "patience", "must be above 0 and at most 10, got 0"),
    ({**BEAM, "early_stopping": "maybe"}, "early_stopping", "must be one of true, false, never, got maybe"),
    ({**BEAM, "num_beam_groups": 0}, "num_beam_groups", r"must be 1\.\.32, got 0"),
    ({**BEAM, "num_beam_groups": 2, "diversity_penalty": -1.0}, "diversity_penalty", "got -1"),
    ({"temperature": -1.0}, "temperature", r"must be 0 or 0\.01\.\.100, got -1"),
    ({"temperature": 1e-5}, "temperature", r"must be 0 or 0\.01\.\.100, got 1e-05"),
    ({"top_k": -1}, "top_k", "must be at least 0, got -1"),
    ({"top_p": 0.0}, "top_p", "must be above 0 and at most 1, got 0"),
    ({"top_p": 1.1}, "top_p", "must be above 0 and at most 1, got 1.1"),
    ({"min_p": 1.0}, "min_p", "must be at least 0 and below 1, got 1"),
    ({"typical_p": 0.0}, "typical_p", "must be above 0 and at most 1, got 0"),
    ({"seed": -1}, "seed", "must be 0.."),
    ({"seed": 2**64}, "seed", "must be 0.."),
    ({"num_sequences": 0}, "num_sequences", r"must be 1\.\.32, got 0"),
    ({"num_sequences": INT32}, "num_sequences", f"got {INT32}"),
    ({"repetition_penalty": 0.0}, "repetition_penalty", r"must be 0\.1\.\.10, got 0"),
    ({"presence_penalty": 11.0}, "presence_penalty", r"must be -10\.\.10, got 11"),
    ({"frequency_penalty": -11.0}, "frequency_penalty", r"must be -10\.\.10, got -11"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size", r"must be 0\.\.64, got -1"),
    ({"no_repeat_ngram_size": INT32}, "no_repeat_ngram_size", f"got {INT32}"),
    ({"logit_bias": {7: 101.0}}, r"logit_bias\[7\]", r"must be -100\.\.100, got 101"),
    ({"logit_bias": {7: NAN}}, r"logit_bias\[7\]", "got nan"),
    ({"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0)}, "logit_bias", "at most 1024 tokens, got 1025"),
    ({"bad_words": ("x",) * (MAX_BAD_WORDS + 1)}, "bad_words", "at most 64 texts, got 65"),
    ({"bad_words": ("x", "")}, r"bad_words\[1\]", "must not be empty or blank"),
    ({"bad_words": ("ä" * (MAX_PHRASE_BYTES // 2 + 1),)}, r"bad_words\[0\]", r"1\.\.256 bytes, got 258"),
    ({"phrases": ("x",) * (MAX_PHRASES + 1)}, "phrases", "at most 16 texts, got 17"),
    ({"phrases": (" ",)}, r"phrases\[0\]", "must not be empty or blank"),
    ({"prefix_tokens": (1,) * (MAX_TOKEN_LIST + 1)}, "prefix_tokens", "at most 65536 numbers, got 65537"),
    ({"allowed_tokens": (1,) * (MAX_TOKEN_LIST + 1)}, "allowed_tokens", "at most 65536 numbers, got 65537"),
    ({"regex": "a" * (MAX_GRAMMAR_BYTES["regex"] + 1)}, "regex", "must be at most 2048 bytes, got 2049"),
    ({"lark": "ä" * (MAX_GRAMMAR_BYTES["lark"] // 2 + 1)}, "lark", "must be at most 4096 bytes, got 4098"),
    ({"json_schema": " " * (MAX_GRAMMAR_BYTES["json_schema"] + 1)}, "json_schema", "at most 32768 bytes, got 32769"),
    ({"top_logprobs": 21}, "top_logprobs", r"must be 0\.\.20, got 21"),
    ({"alignment": "9"}, "alignment", "must be one of none, soft, hard, both, got 9"),
    ({"alignment": "soft", "alignment_layer": -1}, "alignment_layer", "must be at least 0, got -1"),
    # together
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens", r"must be 0\.\.3, as max_tokens is, got 4"),
    ({"num_hypotheses": 2}, "num_hypotheses", "at most beam_size 1, got 2; set beam_size, or return_alternatives"),
    ({"num_hypotheses": 2, "seed": 1}, "num_hypotheses", "num_sequences samples several answers"),
    ({**BEAM, "num_hypotheses": 5}, "num_hypotheses", "at most beam_size 4, got 5; raise beam_size"),
    ({**BEAM, "num_beam_groups": 3}, "num_beam_groups", "must divide beam_size 4, got 3"),
    ({**BEAM, "diversity_penalty": 0.5}, "diversity_penalty", "must be 0 with one group, got 0.5; set num_beam_groups"),
    ({"length_penalty": 2.0}, "length_penalty", "must be left out without beam_size, got 2; set beam_size"),
    ({"length_normalization": "gnmt"}, "length_normalization", "must be left out without beam_size, got gnmt"),
    ({"coverage_penalty": 0.5}, "coverage_penalty", "must be left out without beam_size, got 0.5"),
    ({"patience": 2.0}, "patience", "must be left out without beam_size, got 2"),
    ({"early_stopping": "never"}, "early_stopping", "must be left out without beam_size, got never"),
    ({"num_beam_groups": 2}, "num_beam_groups", "must be left out without beam_size, got 2"),
    ({"diversity_penalty": 0.5}, "diversity_penalty", "must be left out without beam_size, got 0.5"),
    ({**BEAM, "temperature": 1.0}, "temperature", "left out with beam_size 4: a beam draws no tokens, got 1"),
    ({**BEAM, "top_k": 5}, "top_k", "a beam draws no tokens, got 5"),
    ({**BEAM, "top_p": 0.5}, "top_p", "a beam draws no tokens, got 0.5"),
    ({**BEAM, "min_p": 0.5}, "min_p", "a beam draws no tokens, got 0.5"),
    ({**BEAM, "typical_p": 0.5}, "typical_p", "a beam draws no tokens, got 0.5"),
    ({**BEAM, "seed": 0}, "seed", "a beam draws no tokens, got 0"),
    ({**BEAM, "num_sequences": 2}, "num_sequences", "a beam draws no tokens, got 2"),
    ({"temperature": 0.0, "num_sequences": 2}, "num_sequences", "left out with temperature 0: nothing is .*, got 2"),
    ({"temperature": 0.0, "top_k": 5}, "top_k", "must be left out with temperature 0: nothing is sampled then, got 5"),
    ({"temperature": 0.0, "top_p": 0.5}, "top_p", "must be left out with temperature 0"),
    ({"temperature": 0.0, "min_p": 0.5}, "min_p", "must be left out with temperature 0"),
    ({"temperature": 0.0, "typical_p": 0.5}, "typical_p", "must be left out with temperature 0"),
    ({"temperature": 0.0, "seed": 0}, "seed", "must be left out with temperature 0"),
    ({**BEAM, "num_hypotheses": 3, "patience": 0.5}, "num_hypotheses", "at most 2, which patience 0.5 keeps .*, got 3"),
    (
        {"beam_size": 6, "num_hypotheses": 6, "patience": 0.7, "num_beam_groups": 2, "diversity_penalty": 1.0},
        "num_hypotheses",
        r"must be at most 4, which patience 0.7 keeps of a beam, got 6; raise patience",
    ),
    ({**BEAM, "num_beam_groups": 2}, "num_beam_groups", "must be 1 without diversity_penalty, got 2"),
    ({"return_alternatives": True}, "num_hypotheses", "must be at least 2 with return_alternatives, got 1"),
    ({**BEAM, "return_alternatives": True}, "return_alternatives", "must be false with a beam"),
    ({"return_alternatives": True, "top_k": 2}, "return_alternatives", "must be false when sampling"),
    ({**ALTERNATIVES, "prefix": "a", "prefix_bias": 0.5}, "return_alternatives", "with prefix_bias"),
    (
        {"min_alternative_probability": 0.1},
        "min_alternative_probability",
        "must be left out without return_alternatives, got 0.1",
    ),
    ({"prefix": "a", "prefix_tokens": (5,)}, "prefix_tokens", "must be empty with prefix"),
    ({"prefix_bias": 0.5}, "prefix_bias", "must be left out without prefix or prefix_tokens, got 0.5; set prefix"),
    ({"regex": "a", "lark": "start: A"}, "lark", "must be empty with regex: an answer has one grammar"),
    ({"regex": "a", "json_schema": "{}"}, "json_schema", "must be empty with regex"),
    ({"phrases": ("a",), "seed": 1}, "phrases", "must be empty with sampling: only a beam makes room for them"),
    ({"phrases": ("a",), **ALTERNATIVES}, "phrases", "must be empty with return_alternatives"),
    ({"ordered_phrases": True}, "ordered_phrases", "must be left out without phrases, got true; set phrases"),
    (
        {"phrases": ("red house",), "bad_words": ("house",)},
        r"phrases\[0\]",
        "must not contain 'house', which bad_words",
    ),
    ({"phrases": ("a. b",), "stop": (".",)}, r"phrases\[0\]", "must not contain '.', which stop"),
    ({"prefix": "red house", "bad_words": ("house",)}, "prefix", "must not contain 'house', which bad_words excludes"),
    ({"prefix": "a. b", "stop": (".",)}, "prefix", "must not contain '.', which stop excludes"),
    ({"alignment_layer": 1}, "alignment_layer", "must be left out without alignment, got 1; set alignment"),
    ({"alignment_heads": (1,)}, "alignment_heads", "must be left out without alignment"),
]


@pytest.mark.parametrize(("changes", "field", "problem"), REFUSED)
def test_invalid_options_are_rejected_by_name(changes, field, problem):
    with pytest.raises(InvalidRequest) as caught:
        check(DecodingOptions(**changes))
    assert re.fullmatch(rf"options\.{field}", caught.value.field)
    assert re.search(problem, caught.value.problem)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"min_tokens": 9},
        {"min_tokens": 4, "max_tokens": 4, "ignore_eos": True, "stop": (".",)},
        {"beam_size": 32, "num_hypotheses": 32, "temperature": 0.0},
        {"beam_size": 6, "num_beam_groups": 3, "diversity_penalty": 0.5, "patience": 0.1, "early_stopping": "never"},
        {**BEAM, "length_penalty": -1.0, "length_normalization": "gnmt", "coverage_penalty": 0.2},
        {"temperature": 0.01, "top_k": 2**31 - 1, "top_p": 1.0, "min_p": 0.99, "typical_p": 0.5, "seed": 2**64 - 1},
        {"temperature": 0.0},
        {"beam_size": 4, "num_hypotheses": 4, "patience": 0.7, "num_beam_groups": 4, "diversity_penalty": 1.0},
        {"beam_size": 4, "num_hypotheses": 3, "patience": 0.7},
        {"num_sequences": 32},
        {"return_alternatives": True, "num_hypotheses": 32, "min_alternative_probability": 0.1, "prefix": "a"},
        {"prefix_tokens": (5, 6), "prefix_bias": 0.5},
        {"prefix": "red house", "prefix_bias": 0.5, "bad_words": ("house",)},
        {
            "logit_bias": {5: -100.0, 6: 100.0},
            "bad_words": ("a",),
            "no_repeat_ngram_size": 3,
            "repetition_penalty": 1.2,
        },
        {"phrases": ("red house", "old tree"), "ordered_phrases": True, **BEAM},
        {"alignment": "both", "alignment_layer": 2, "alignment_heads": (1, 2), "top_logprobs": 20},
    ],
)
def test_consistent_options_are_accepted(changes):
    check(DecodingOptions(**changes))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", FLOATS)
def test_no_number_may_be_infinite_or_none(name, value):
    with pytest.raises(InvalidRequest, match=f"options.{name}: must be .*, got {value}"):
        check(DecodingOptions(**{name: value}))


@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1])
@pytest.mark.parametrize("name", [name for name, kind in get_type_hints(DecodingOptions).items() if kind is int])
def test_hostile_numbers_are_rejected(name, value):
    if value > 0 and name in ("max_tokens", "min_tokens", "top_k"):  # the model's own limits bound them
        return check(DecodingOptions(**{name: value}))
    with pytest.raises(InvalidRequest, match=f"options.{name}: must be .*, got {value}"):
        check(DecodingOptions(**{name: value}))


def test_scoring_accepts_only_options_of_scores():
    check_scoring(
        DecodingOptions(
            length_penalty=0.6, length_normalization="gnmt", top_logprobs=3, alignment="both", alignment_layer=1
        )
    )
    others = {name: value for name, value in vars(DecodingOptions()).items() if not OPTIONS[name].scores}
    for name, default in others.items():
        value: Any = {int: 5, float: 0.5, bool: True, tuple: ("a",), str: "a", dict: {5: 1.0}}.get(type(default), 5)
        with pytest.raises(InvalidRequest, match=f"options.{name}: must be left out"):
            check_scoring(DecodingOptions(**{name: value}))
    with pytest.raises(InvalidRequest, match=r"length_penalty: must be -10\.\.10, got nan"):
        check_scoring(DecodingOptions(length_penalty=NAN))
    with pytest.raises(InvalidRequest, match="alignment_layer: must be left out without alignment"):
        check_scoring(DecodingOptions(alignment_layer=1))
