"""Python values as fields of messages: `new_message` checks them, so that an error names the argument.

protobuf itself takes the text "Hund" for the list of its letters, True for 1, and reports other types without a name.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

_INTEGERS = {"INT32": (-1 << 31, (1 << 31) - 1), "UINT32": (0, (1 << 32) - 1)}
_INTEGERS |= {"INT64": (-1 << 63, (1 << 63) - 1), "UINT64": (0, (1 << 64) - 1)}
_ARGUMENTS = {"include_token_weights": "token_weights", "include_confidence": "confidence"}  # by their fields
_SINGLE = {"STRING": "a text", "BOOL": "true or false", "DOUBLE": "a number", "FLOAT": "a number"}
_SEVERAL = {"STRING": "texts", "DOUBLE": "numbers", "FLOAT": "numbers", "BOOL": "booleans"}


def new_message(kind: Any, /, **values: Any) -> Any:
    """A message of a kind. Raises TypeError for a value of another type than its field's, ValueError for a whole number
    outside of its range; both name the argument of the call."""
    fields = kind.DESCRIPTOR.fields_by_name
    return kind(**{name: checked(_ARGUMENTS.get(name, name), fields[name], value) for name, value in values.items()})


def checked(name: str, field: Any, value: Any) -> Any:
    """A value for a field. name: in errors. Raises TypeError and ValueError as `new_message`."""
    entry = field.message_type.fields_by_name if field.message_type else {}
    if field.message_type and field.message_type.GetOptions().map_entry:
        if not isinstance(value, Mapping):
            raise TypeError(f"{name} must be a dictionary, got {_shown(value)}")
        return {
            _one(f"a key of {name}", entry["key"], key): _one(f"{name}[{key}]", entry["value"], each)
            for key, each in value.items()
        }
    if not field.is_repeated:
        return _one(name, field, value)
    check_list(name, value, _SEVERAL.get(_type_of(field), "whole numbers"))
    return [_one(f"{name}[{place}]", field, each) for place, each in enumerate(value)]


def check_list(name: str, value: Any, of: str) -> None:
    """Raises TypeError for what is no list, a text included. of: what its items are."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {of}, got {_shown(value)}; put it in a list")


def check_seconds(name: str, value: Any) -> None:
    """Raises TypeError for what is no number of seconds. None: not given."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError(f"{name} must be a number of seconds, got {_shown(value)}")


def _type_of(field: Any) -> str:
    kinds = (*_INTEGERS, *_SINGLE, "ENUM", "MESSAGE")
    return next(kind for kind in kinds if getattr(field, f"CPPTYPE_{kind}") == field.cpp_type)


def _one(name: str, field: Any, value: Any) -> Any:
    kind = _type_of(field)
    if kind in ("ENUM", "MESSAGE"):  # made here, from what was checked
        return value
    if kind in _INTEGERS:
        return _whole(name, value, *_INTEGERS[kind])
    is_text, is_switch = isinstance(value, str), _is_switch(value)
    if kind == "STRING" and is_text:
        return value
    if kind == "BOOL" and (is_switch or (isinstance(value, int) and value in (0, 1))):
        return bool(value)
    if kind in ("DOUBLE", "FLOAT") and not (is_text or is_switch) and hasattr(value, "__float__"):
        return float(value)
    many = "; the calls whose names end with _batch take many" if name == "text" and isinstance(value, list) else ""
    raise TypeError(f"{name} must be {_SINGLE[kind]}, got {_shown(value)}{many}")


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if _is_switch(value) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {_shown(value)}")
    if not low <= (number := operator.index(value)) <= high:
        raise ValueError(f"{name} must be {low}..{high}, got {number}")
    return number


def _is_switch(value: Any) -> bool:
    """Whether a value is a boolean, numpy's included."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _shown(value: Any) -> str:
    return f"the text {value!r:.80}" if isinstance(value, str) else f"{value!r:.80} ({type(value).__name__})"
