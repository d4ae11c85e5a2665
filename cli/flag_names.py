"""Messages with the flags of the running verb, as they were typed, for the fields of stages (`with_flags_named`).

A stage knows `learning_rate` or `options.beam_size`, a user has typed `--learning-rate` or `--beam`. A field that no
flag gave may come from a recipe or a file of options, and keeps its name. Imports no stage.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

FIELDS = {"confidence": "calibrate", "confidence_samples": "calibrate_samples"}
"""Fields of stages whose parameters have other names."""
# A message may begin with the place of a line or an item, and with the status of a call.
_PLACE = r"(?:(?:lines? \d+(?: to \d+)?|item \d+ \(from 0\)|[A-Z][A-Z_]+): )*"
_FIELD = re.compile(rf"(?P<place>{_PLACE})(?:options\.)?(?P<name>[a-z]\w*)(?=(?:\[\d+\])?: )")
_NAME = re.compile(r"(?<!the field )\b(?:options\.)?([a-z]+(?:_[a-z]+)+|(?<=needs )[a-z]+)\b")  # others may be words


@dataclass(frozen=True)
class Flags:
    """The flags of a verb by their parameters. values: of those on the command line. may_be_of_file: fields may have
    other values than those of flags."""

    names: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    may_be_of_file: bool = False


_NONE = Flags()
_flags: ContextVar[Flags] = ContextVar("flags", default=_NONE)


@contextlib.contextmanager
def flags_of(verb: Flags) -> Iterator[None]:
    """Messages in this context name the flags of a verb."""
    token = _flags.set(verb)
    try:
        yield
    finally:
        _flags.reset(token)


def with_flags_named(message: str) -> str:
    """An error's message with the flag of the field, or of the file, that it begins with."""
    flags = _flags.get()
    names = flags.names if not flags.may_be_of_file else {name: flags.names[name] for name in flags.values}

    def flag(found: re.Match[str]) -> str:
        return flags.names.get(found[1], found[0])

    found = _FIELD.match(message)
    if found and (name := FIELDS.get(found["name"], found["name"])) in names:
        return f"{found['place']}{names[name]}{_NAME.sub(flag, message[found.end() :])}"
    for name, value in flags.values.items():
        for one in value if isinstance(value, list | tuple) else (value,):
            if message.startswith(f"{one}: ") and name in flags.names:
                return f"{flags.names[name]} {message}"
            message = message.replace(f" {name} {one!r} ", f" {flags.names[name]} {one!r} ")
    return message
