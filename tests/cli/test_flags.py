import re

import pytest

from cli.flags import parse_options
from cli.terminal import UsageError
from glossa.v1 import glossa_pb2 as pb


def test_each_option_is_read_as_its_field_holds_it():
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


def test_lists_grow_with_each_mention():
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
def test_every_option_can_be_written(name):
    assert name in parse_options([f"{name}=5:1" if name == "logit_bias" else f"{name}=1"])


@pytest.mark.parametrize(
    ("written", "said"),
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
def test_what_is_no_option_is_named_with_what_was_meant(written, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        parse_options(written)
