import dataclasses
import math
from typing import Any, get_type_hints

import pytest

from glossa.v1 import glossa_pb2 as pb
from service.option_checks import CHOICES
from service.options import DEFAULTS, INT32_MAX, MAX_WIDTH, OPTIONS, DecodingOptions, Option, Range

FIELDS = pb.DecodingOptions.DESCRIPTOR.fields_by_name
KINDS = pb.DecodingOptions.DESCRIPTOR.fields[0]  # a descriptor, for the names of its types
SCALARS = {
    KINDS.CPPTYPE_INT32: int,
    KINDS.CPPTYPE_UINT64: int,
    KINDS.CPPTYPE_DOUBLE: float,
    KINDS.CPPTYPE_BOOL: bool,
    KINDS.CPPTYPE_STRING: str,
}


def test_every_number_has_a_range_and_every_text_a_limit():
    for name, kind in get_type_hints(DecodingOptions).items():
        option = OPTIONS[name]
        if kind in (int, float, int | None, float | None):
            assert option.range is not None, name
        elif kind is not bool and name not in CHOICES:
            assert option.max_items or option.max_bytes or option.limits, name


def test_every_number_of_hypotheses_has_the_same_limit():
    for name in ("beam_size", "num_hypotheses", "num_beam_groups", "num_sequences"):
        allowed = OPTIONS[name].range
        assert allowed is not None
        assert allowed.high == MAX_WIDTH


def test_every_default_is_accepted():
    for name, option in OPTIONS.items():
        if option.range is not None and isinstance(option.default, int | float):
            assert option.default in option.range, name
        if name in CHOICES:
            assert option.default in CHOICES[name]


def test_every_option_has_a_meaning_without_its_range_and_its_default():
    for name, option in OPTIONS.items():
        assert option.help, name
        assert not option.help.endswith("."), name
        assert option.default == getattr(DEFAULTS, name)


def test_only_options_of_a_beam_need_one():
    assert all(option.group == "beam" for option in OPTIONS.values() if "beam_size" in option.needs)


def test_the_message_has_the_same_fields():
    assert set(FIELDS) == {item.name for item in dataclasses.fields(DecodingOptions)} == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_field_of_the_message_has_the_type_of_the_option(name):
    field: Any = FIELDS[name]
    kind = get_type_hints(DecodingOptions)[name]
    if name in CHOICES:
        values = [value.name for value in field.enum_type.values]
        prefix = values[0].removesuffix("UNSPECIFIED")
        assert values[1:] == [f"{prefix}{choice.upper()}" for choice in CHOICES[name]]
    elif name == "logit_bias":
        key, value = field.message_type.fields
        assert (SCALARS[key.cpp_type], SCALARS[value.cpp_type]) == (int, float)
    else:
        scalar: Any = SCALARS[field.cpp_type]
        assert kind in ((tuple[scalar, ...],) if field.is_repeated else (scalar, scalar | None))


@pytest.mark.parametrize("name", OPTIONS)
def test_the_message_distinguishes_a_default_that_is_not_zero_from_a_missing_value(name):
    field, default = FIELDS[name], OPTIONS[name].default
    if default in (None, 1, 1.0) and not isinstance(default, bool):
        assert field.has_presence


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "words"),
    [
        (Range(0, INT32_MAX), (0, 5, INT32_MAX), (-1, INT32_MAX + 1), "at least 0"),
        (Range(1, 32), (1, 32), (0, 33), "1..32"),
        (Range(0.1, 10), (0.1, 10), (0.0, 10.5), "0.1..10"),
        (Range(0, 1, above_low=True), (0.1, 1), (0, 1.1), "above 0 and at most 1"),
        (Range(0, 1, below_high=True), (0, 0.9), (-0.1, 1), "at least 0 and below 1"),
        (Range(0.01, 100, or_zero=True), (0, 0.01, 100), (0.001, -1, 101), "0 or 0.01..100"),
        (Range(0, 2**64 - 1), (0, 2**64 - 1), (-1, 2**64), "0..18446744073709551615"),
    ],
)
def test_a_range_contains_what_its_text_describes(allowed, inside, outside, words):
    assert str(allowed) == words
    assert all(value in allowed for value in inside)
    assert not any(value in allowed for value in (*outside, math.nan, math.inf, -math.inf))


def test_texts_without_a_default_are_empty_and_lists_are_tuples():
    assert OPTIONS["prefix"].default == ""
    assert OPTIONS["stop"].default == ()
    assert OPTIONS["seed"].default is None


def test_what_an_option_needs_are_options():
    assert {other for option in OPTIONS.values() for other in option.needs} <= set(OPTIONS)


def test_an_unknown_key_of_the_list_is_an_error():
    known: dict[str, Any] = {"group": "beam", "type": "int", "default": 0, "help": "an option"}
    assert Option(**known).range is None
    with pytest.raises(TypeError, match="maximum"):
        Option(**(known | {"maximum": 3}))
