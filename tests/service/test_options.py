import dataclasses
from typing import Any, get_type_hints

import pytest

from glossa.v1 import glossa_pb2 as pb
from service.option_checks import CHOICES
from service.option_metadata import OPTIONS
from service.options import DEFAULTS, MAX_WIDTH, DecodingOptions

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
