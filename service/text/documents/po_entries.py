"""Catalogs of gettext (.po, .pot) as entries (`entries_of`), with the places of what a translation may change.

Comments, obsolete entries (`#~`) and white space are in no entry. Source: the manual of GNU gettext, "The Format of PO
Files".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from service.text.documents.runs import Run
from service.text.segments import DocumentError
from service.text.spans import Span

SHOWN = 40  # characters of a fault in an error
_TOKEN = re.compile(
    r"(?P<space>\s++)|(?P<comment>\#[^\n]*+)"
    r"|(?P<keyword>msgctxt|msgid_plural|msgid|msgstr|domain)(?![\w.-])(?:[ \t]*\[[ \t]*(?P<index>\d{1,3})[ \t]*\])?"
    r'|(?P<string>"(?:[^"\\\n]++|\\[^\n])*+")'
)
_FLAGS = re.compile(r"[\w+-]+")
_CHARACTER = re.compile(r'(?P<gap>"\s*")|\\(?P<escape>x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)|[^"\\]+')
_EMPTY = re.compile(r'"(?:"\s*")*+"')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_WRITTEN = {ord(character): f"\\{name}" for name, character in _ESCAPES.items()} | {92: "\\\\", 34: '\\"'}


class Part(NamedTuple):
    """A keyword and its strings. start: of the keyword. strings: from the first quotation mark to the last one. form:
    the number of a plural form."""

    name: str
    start: int
    strings: Span
    form: int | None = None


@dataclass
class Entry:
    """A message and its translations. start: of its keywords, and of comments on what it was before (`#|`). flags: of
    all its lines of flags. flags_end: behind the `#,` of the first; negative without one."""

    start: int
    flags: set[str]
    flags_end: int
    context: Part | None = None
    source: Part | None = None
    plural: Part | None = None
    translations: list[Part] = field(default_factory=list)

    def add(self, part: Part) -> bool:
        """Takes the next part; whether it may stand there."""
        has_source, count = self.source is not None, len(self.translations)
        if part.name == "msgstr" and has_source and part.form == (count if self.plural else None):
            self.translations.append(part)
            return bool(self.plural) or not count
        if part.form is not None or count:
            return False
        if part.name == "msgctxt" and not has_source and self.context is None:
            self.context = part
        elif part.name == "msgid" and not has_source:
            self.source = part
        elif part.name == "msgid_plural" and has_source and self.plural is None:
            self.plural = part
        else:
            return False
        return True


def escaped(text: str) -> str:
    """A text as a string has it, without quotation marks."""
    return text.translate(_WRITTEN)


def characters(source: str, strings: Span) -> list[Run]:
    """The text of strings as runs, of which one is a character with an escape or with the border to the next string.
    A border before the first character is in no run."""
    runs = list[Run]()
    for found in _CHARACTER.finditer(source, strings.start + 1, strings.end - 1):
        start, end = found.span()
        if found["gap"]:
            if runs and not runs[-1].is_entity and len(runs[-1].text) > 1:
                last = runs.pop()
                runs.append(Run(last.start, last.end - 1, last.text[:-1]))
                runs.append(Run(last.end - 1, last.end, last.text[-1]))
            if runs:
                runs[-1] = runs[-1]._replace(end=end)
        elif escape := found["escape"]:
            runs.append(Run(start, end, _character(escape)))
        else:
            runs.append(Run(start, end, found[0]))
    return runs


def _character(escape: str) -> str:
    if escape[0] == "x" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    return chr(int(escape, 8) & 0xFF) if escape[0] in "01234567" else _ESCAPES.get(escape, escape)


def is_empty(source: str, strings: Span) -> bool:
    """Whether strings have no character."""
    return _EMPTY.fullmatch(source, *strings) is not None


def entries_of(source: str) -> Iterator[Entry]:
    """The entries of a catalog, in order. Raises DocumentError with the line of what is against the format."""
    entry: Entry | None = None
    flags, flags_end, previous = set[str](), -1, -1  # of the comments before the next entry
    for part in _parts(source):
        if entry and entry.translations and part.name != "msgstr":
            yield entry
            entry = None
        if part.name == "comment":
            if entry:
                raise _error(source, entry.start, "must have a msgstr before the next comment")
            comment = source[part.start : part.strings.end]
            if comment.startswith("#~"):
                flags, flags_end, previous = set(), -1, -1
            elif comment.startswith("#,"):
                flags |= set(_FLAGS.findall(comment))
                flags_end = part.start + 2 if flags_end < 0 else flags_end
            elif comment.startswith("#|") and previous < 0:
                previous = part.start
            continue
        if part.name == "domain" and not entry:
            continue
        if not entry:
            entry = Entry(previous if previous >= 0 else part.start, flags, flags_end)
            flags, flags_end, previous = set(), -1, -1
        if not entry.add(part):
            problem = (
                "must not be there: an entry is msgctxt, msgid, msgstr, or msgid, msgid_plural, msgstr[0], msgstr[1]"
            )
            raise _error(source, part.start, problem)
    if entry and not entry.translations:
        raise _error(source, entry.start, "must have a msgstr")
    if entry:
        yield entry


def _parts(source: str) -> Iterator[Part]:
    """Keywords with their strings, and comments, each a part without strings that spans it."""
    place, keyword, strings = 0, None, None
    while place < len(source):
        token = _TOKEN.match(source, place)
        if not token:
            raise _error(source, place, "must be a comment, a keyword such as msgid, or a text in quotation marks")
        start, place = token.span()
        if token["space"]:
            continue
        if token["string"]:
            if not keyword:
                raise _error(source, start, "must have a keyword such as msgid before it")
            strings = Span(strings.start if strings else start, place)
            continue
        if keyword:
            yield _part(source, keyword, strings)
            keyword = strings = None
        if token["comment"]:
            yield Part("comment", start, Span(start, place))
        else:
            keyword = token
    if keyword:
        yield _part(source, keyword, strings)


def _part(source: str, keyword: re.Match[str], strings: Span | None) -> Part:
    if not strings:
        raise _error(source, keyword.start(), "must have a text in quotation marks")
    index = keyword["index"]
    return Part(keyword["keyword"], keyword.start(), strings, int(index) if index else None)


def _error(source: str, place: int, problem: str) -> DocumentError:
    """What is wrong at a place."""
    line, end = source.count("\n", 0, place) + 1, source.find("\n", place)
    shown = source[place : end if end >= 0 else None].strip()
    shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 1] + "…"
    return DocumentError(f"line {line} {problem}, got {shown!r}; mend it, or give the document's own format")
