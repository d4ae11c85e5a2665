"""Types with a range for the fields of a manifest: the annotations of `export.bundle.manifest`.

A field is annotated with its type and its bounds, such as `Annotated[int, Range(0, 1)]`, and
`export.bundle.manifest_parser` checks both. The bounds are far above every model that exists, and low enough that no
number is too large for the messages of the service, nor any text for its logs. This module uses the standard library
only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

MAX_INT = (1 << 63) - 1
MAX_IDS = 1 << 24  # of a vocabulary; the largest in use have about 2^20
MAX_LENGTH = 1 << 24  # tokens of a source or target
MAX_SIZE = 1 << 24  # of an axis of a tensor
MAX_LAYERS = MAX_HEADS = 1 << 12
MAX_FILE_BYTES = 1 << 42
MAX_DEPTH = 16  # of the free JSON in `lineage` and `parity`
MAX_TEXT = 1 << 16  # characters


class SchemaError(ValueError):
    """An invalid value in a bundle file: its location and the problem."""


def shown(value: object) -> str:
    """A value in a message: at most 80 characters, without line breaks."""
    return f"{value!r:.80}"


@dataclass(frozen=True)
class Range:
    """A number from `least` to `most`, both included."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"of {self.least}..{self.most}"


@dataclass(frozen=True)
class Text:
    """A text that matches `pattern`. what: the rule in words."""

    pattern: re.Pattern[str]
    what: str

    def __str__(self) -> str:
        return f"of {self.what}"


@dataclass(frozen=True)
class Items:
    """From `least` to `most` items of a list or an object."""

    most: int
    least: int = 0

    def __str__(self) -> str:
        return f"with {self.least}..{self.most} items"


@dataclass(frozen=True, eq=False)
class Json:
    """An object of any JSON values, not nested too deeply. known: the types of keys that others read, if present."""

    known: Mapping[str, Any]


def one_of(*texts: str) -> Text:
    """One of these texts."""
    return Text(re.compile("|".join(map(re.escape, texts))), "; ".join(texts))


_LINE = Text(re.compile("[^\x00-\x1f\x7f\ud800-\udfff]{0,4096}"), "at most 4096 characters without control characters")
_PROMPT = Text(re.compile("[^\x00\ud800-\udfff]{0,4096}"), "at most 4096 characters without U+0000 and surrogates")
_NAME = Text(re.compile(r"[A-Za-z0-9_.:/-]{1,256}"), "1..256 letters, digits and '_', '.', ':', '/', '-'")
_CODE = Text(re.compile("[^\x00-\x20\x7f\ud800-\udfff]{1,256}"), "1..256 characters without spaces")

Id = Annotated[int, Range(0, MAX_IDS - 1)]
Count = Annotated[int, Range(0, MAX_INT)]
Length = Annotated[int, Range(0, MAX_LENGTH)]
Layers = Annotated[int, Range(1, MAX_LAYERS)]
Heads = Annotated[int, Range(1, MAX_HEADS)]
Width = Annotated[int, Range(1, MAX_SIZE)]
Share = Annotated[float, Range(0, 1)]
Figure = Annotated[float, Range(-1e12, 1e12)]
Rate = Annotated[float, Range(0, 1e12)]
Error = Annotated[float, Range(0, 1e31)]  # of a check: one without an end is reported as 1e30
Line = Annotated[str, _LINE]
Name = Annotated[str, _NAME]
Dtype = Annotated[str, one_of("float32", "float16", "int8", "int32", "int64", "uint8")]
Scheme = Annotated[str, Text(re.compile("[a-z0-9-]{1,24}"), "up to 24 lower-case letters, digits and '-'")]
Identifier = Annotated[str, Text(re.compile("[a-z0-9_]{1,64}"), "1..64 lower-case letters, digits and '_'")]
Axis = Annotated[str, Text(re.compile("[a-z_]{1,32}"), "1..32 lower-case letters and '_'")]
Sha256 = Annotated[str, Text(re.compile("[0-9a-f]{64}"), "64 lower-case hexadecimal digits")]
Time = Annotated[
    str,
    Text(
        re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\+00:00|Z)", re.ASCII),
        "a date and time such as 2026-01-31T12:00:00+00:00",
    ),
]
Names = Annotated[tuple[Name, ...], Items(1 << 13)]
Ids = Annotated[tuple[Id, ...], Items(1 << 16)]
Language = Annotated[str, Text(re.compile("[^\x00-\x20\x7f\ud800-\udfff]{0,64}"), "up to 64 characters without spaces")]
Languages = Annotated[dict[Annotated[str, _CODE], Id], Items(1 << 12)]
Prompts = Annotated[dict[Line, Annotated[str, _PROMPT]], Items(1 << 8)]
Labels = Annotated[tuple[Line, ...], Items(1 << 16)]

Lineage = Annotated[
    dict[str, Any],
    Json(
        {
            "metrics": Annotated[dict[str, Any], Json({"steps": Count | None})] | None,
            "data_sha256": Line | None,
            "git_commit": Line | None,
            "checkpoint_sha256": Line | None,
        }
    ),
]
_CHECK = {
    "name": Line,
    "precision": Name,
    "max_error": Error,
    "tolerance": Error,
    "passed": bool,
    "inputs": Line,
    "note": Line,
}
Parity = Annotated[
    dict[str, Any],
    Json(
        {
            "passed": bool,
            "provider": Line,
            "checks": Annotated[tuple[Annotated[dict[str, Any], Json(_CHECK)], ...], Items(1 << 12)],
        }
    ),
]
