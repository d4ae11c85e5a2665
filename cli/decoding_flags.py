"""Options of decoding as they are written on a command line, NAME=VALUE, as the values that a client takes.

The message itself says which names there are and what each holds, so a new option needs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from glossa.client import closest
from glossa.v1 import glossa_pb2 as pb

_FIELDS = pb.DecodingOptions.DESCRIPTOR.fields_by_name
_SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class FlagError(ValueError):
    """What was written is no option, or not a value of it."""


def parse(written: Iterable[str]) -> dict[str, Any]:
    """Options by their names. Lists grow with each mention, and numbers in them may be separated by commas; what is
    added to logits is written logit_bias=TOKEN:BIAS. Raises FlagError."""
    given: dict[str, Any] = {}
    for text in written:
        name, separator, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not separator:
            raise FlagError(f"{text}: must be NAME=VALUE")
        if name not in _FIELDS:
            raise FlagError(f"{name}: unknown option; {closest(name, _FIELDS)}")
        field = _FIELDS[name]
        try:
            if name == "logit_bias":
                given.setdefault(name, {}).update(_biases(value))
            elif field.is_repeated:
                given[name] = (*given.get(name, ()), *_items(field, value))
            elif name in given:
                raise ValueError("a second value")
            else:
                given[name] = _reader(field)(value)
        except ValueError as error:
            raise FlagError(f"{name}: cannot take {value!r}: {error}") from None
    return given


def _items(field: Any, text: str) -> list[Any]:
    """Texts are taken whole, as a comma may be part of one."""
    parts = [text] if field.cpp_type == field.CPPTYPE_STRING else text.split(",")
    return [_reader(field)(part) for part in parts]


def _biases(text: str) -> dict[int, float]:
    pairs = (part.partition(":") for part in text.split(","))
    return {int(token): float(bias) for token, _, bias in pairs}


def _reader(field: Any) -> Callable[[str], Any]:
    if field.cpp_type == field.CPPTYPE_BOOL:
        return _switch
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return float
    if field.cpp_type in (field.CPPTYPE_STRING, field.CPPTYPE_ENUM):
        return str
    return int


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ValueError("must be true or false")
    return _SWITCH[text.lower()]
