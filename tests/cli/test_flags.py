import re

import pytest

from cli.flags import DECODING, SCORING, TRANSLATING, decoding_options, parse_options
from cli.terminal import UsageError
from codegen.options import default
from glossa.v1 import glossa_pb2 as pb
from service.options import OPTIONS


def test_options_are_parsed_to_the_types_of_their_fields():
    written = [
        "beam_size=4",
        "length-penalty=0.6",
        "early_stopping=never",
        "ignore_eos=yes",
        "seed=18446744073709551615",
    ]
    assert parse_options(written) == {
        "beam_size": 4,
        "length_penalty": 0.6,
        "early_stopping": "never",
        "ignore_eos": True,
        "seed": 2**64 - 1,
    }


def test_repeated_list_options_are_concatenated():
    written = [
        "bad_words=a, b",
        "bad_words=c=d",
        "allowed_tokens=5,6",
        "allowed_tokens=7",
        "logit_bias=5:-1,6:2.5",
        "logit_bias=7:1",
    ]
    assert parse_options(written) == {
        "bad_words": ("a, b", "c=d"),
        "allowed_tokens": (5, 6, 7),
        "logit_bias": {5: -1.0, 6: 2.5, 7: 1.0},
    }


@pytest.mark.parametrize("name", pb.DecodingOptions.DESCRIPTOR.fields_by_name)
def test_every_option_can_be_given_by_name(name):
    assert name in parse_options([f"{name}=5:1" if name == "logit_bias" else f"{name}=1"])


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (["beam_size"], "beam_size: must be NAME=VALUE"),
        (["beem-size=4"], "beem_size: unknown option; did you mean beam_size?"),
        (["zzz=4"], "zzz: unknown option; known: alignment, "),
        (["beam_size=four"], "beam_size: must be a whole number, got 'four'"),
        (["beam_size=4", "beam_size=5"], "beam_size: the option is given twice"),
        (["ignore_eos=perhaps"], "ignore_eos: must be true or false, got 'perhaps'"),
        (["logit_bias=5"], "logit_bias: must be TOKEN:BIAS, such as 5:-1.5,6:2; got '5'"),
        (["allowed_tokens=5,"], "allowed_tokens: must be a whole number, got ''"),
    ],
)
def test_invalid_options_are_rejected_with_a_hint(written, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_options(written)


def test_every_option_has_a_flag_with_its_meaning_and_default():
    for flags, other in ((DECODING, "translation"), (TRANSLATING, "generation")):
        assert [name for name in flags if name != "option"] == [name for name in OPTIONS if OPTIONS[name].task != other]
    for name, option in OPTIONS.items():
        (flag,) = {**TRANSLATING, **DECODING}[name].__metadata__
        assert flag.default == (option.flag or f"--{name.replace('_', '-')}")  # where typer keeps the first name
        assert option.help in flag.help
        assert flag.help.endswith(f"default: {default(option)}")


def test_scoring_has_the_flags_of_the_options_that_it_accepts():
    assert [name for name in SCORING if name != "option"] == [name for name in OPTIONS if OPTIONS[name].scores]


def test_list_flags_are_parsed_like_options(tmp_path):
    (tmp_path / "grammar.lark").write_text("start: /ä+/", encoding="utf-8")
    given = {"allowed_tokens": ["5,6", "7"], "logit_bias": ["5:-1,6:2.5"], "stop": ["a, b", "c=d"], "top_k": None}
    assert decoding_options({**given, "lark": tmp_path / "grammar.lark", "phrases": []}) == {
        "allowed_tokens": (5, 6, 7),
        "logit_bias": {5: -1.0, 6: 2.5},
        "stop": ("a, b", "c=d"),
        "lark": "start: /ä+/",
    }
    with pytest.raises(UsageError, match=r"^--logit-bias: must be TOKEN:BIAS"):
        decoding_options({"logit_bias": ["5"]})
