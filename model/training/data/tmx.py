"""Translation memories → rows: TMX 1.4b (LISA OSCAR 2005), of which each <tu> has one text in each of its languages.

Inline codes (<bpt>, <ept>, <it>, <ph>, <ut>) and what they contain are left out, the text of <hi> stays, and a line
break with the blanks around it is one blank. Standard library only.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from xml.parsers import expat

_CODES = ("bpt", "ept", "it", "ph", "ut")
_BREAK = re.compile(r"\s*\n\s*")
_BLOCK = 1 << 16  # bytes that are parsed at a time


class TmxError(ValueError):
    """A file is no TMX, or does not have the languages that are asked for: the line, and why."""


@dataclass
class Unit:
    """A translation unit. line: of its tag, from 1. texts: by language code, as the file has it; of several for one
    language the first."""

    line: int
    texts: dict[str, str] = field(default_factory=dict)


def read_units(file: io.BufferedIOBase) -> Iterator[Unit | str]:
    """The source language of the header, if it names one, then every unit. Raises TmxError."""
    reader = _Reader()
    while True:
        block = file.read(_BLOCK)
        try:
            reader.parser.Parse(block, not block)
        except expat.ExpatError as error:
            raise TmxError(f"{error.lineno}: not well-formed: {expat.ErrorString(error.code)}") from error
        except TmxError:
            raise
        except (LookupError, ValueError) as error:
            raise TmxError(
                f"1: declares an encoding that is not covered: {error!s:.80}; convert it to UTF-8"
            ) from error
        yield from reader.found
        reader.found.clear()
        if not block:
            return


def text_in(unit: Unit, language: str) -> str | None:
    """The text of a unit in a language, see `_code_of`; None if it has none."""
    code = _code_of(unit, language)
    return None if code is None else unit.texts[code]


def languages_of(source: str, unit: Unit) -> Sequence[str]:
    """The languages of a file whose first unit this is. source: of the header, "" or "*all*": none. Raises TmxError."""
    codes, own = list(unit.texts), _code_of(unit, source)
    if len(codes) != 2 or own is None:
        found = ", ".join(codes) or "none"
        raise TmxError(f"{unit.line}: name two languages with --columns, such as --columns en,de; it has: {found:.80}")
    return own, next(code for code in codes if code != own)


def _code_of(unit: Unit, language: str) -> str | None:
    """The code, as the unit has it, of a language: whatever its case; else, for a code without a region, the one with
    the first region."""
    wanted = _plain(language)
    same = (code for code in unit.texts if _plain(code) == wanted)
    return next(same, next((code for code in unit.texts if _plain(code).partition("-")[0] == wanted), None))


def _plain(code: str) -> str:
    return code.casefold().replace("_", "-")


class _Reader:
    """Collects units. found: since it was last emptied, and the header's language."""

    def __init__(self) -> None:
        self.found: list[Unit | str] = []
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = self._entity
        self._unit: Unit | None = None
        self._language, self._is_root = "", True
        self._parts: list[str] | None = None  # of the <seg> that is open
        self._codes = 0  # that are open in it

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._is_root and name != "tmx":
            raise TmxError(f"{self.parser.CurrentLineNumber}: must be TMX: its first element is <{name[:40]}>")
        self._is_root = False
        if name == "header":
            self.found.append(attributes.get("srclang", ""))
        elif name == "tu":
            self._unit = Unit(self.parser.CurrentLineNumber)
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang", "")
        elif name == "seg":
            self._parts, self._codes = [], 0
        elif name in _CODES:
            self._codes += 1

    def _end(self, name: str) -> None:
        if name == "tu" and self._unit is not None:
            self.found.append(self._unit)
            self._unit = None
        elif name == "seg" and self._parts is not None:
            if self._unit is not None:
                self._unit.texts.setdefault(self._language, _BREAK.sub(" ", "".join(self._parts)).strip())
            self._parts = None
        elif name in _CODES:
            self._codes -= 1

    def _text(self, text: str) -> None:
        if self._parts is not None and not self._codes:
            self._parts.append(text)

    def _entity(self, name: str, *_: object) -> None:
        raise TmxError(f"{self.parser.CurrentLineNumber}: must not declare entities, has {name[:40]!r}")
