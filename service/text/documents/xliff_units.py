"""XLIFF 1.2 and 2.x → units (`Reader`): the places of sources and targets, and whether they are to be translated.

A unit that must not be translated, or whose target a person has translated, reviewed or locked, is not (`_is_kept`).
Read by expat; a DOCTYPE is refused, so entities are the five of XML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from xml.parsers import expat

from service.text.segments import DocumentError

MAX_TAGS = 200_000  # of a document
MAX_DEPTH = 64  # of elements in each other
_READ_BYTES = 1 << 16  # at a time: units are yielded in between
_TAG = re.compile(rb"<(?:[^\"'>]++|\"[^\"]*+\"|'[^']*+')*+>")
SEGMENT = "mrk of a segment"
_CODE = frozenset(("bpt", "ept", "ph", "it", "sub"))  # inline elements of version 1.2 whose text is code
_KEPT = frozenset(("translated", "final", "signed-off", "reviewed"))  # states of targets that are not replaced
# What translation tools add for the same, in namespaces of their own: attributes of units, targets and segments by
# their local names (m:confirmed of Phrase, mq:status and mq:locked of memoQ, conf and locked of Trados' sdl:seg).
_KEPT_BY_TOOLS = {
    "locked": frozenset(("true", "1", "yes", "locked")),
    "confirmed": frozenset(("true", "1", "yes")),
    "conf": frozenset(("translated", "approvedtranslation", "approvedsignoff")),
    "status": frozenset(("manuallyconfirmed", "proofread", "translatorconfirmed", "reviewer1confirmed")),
}


class Header(NamedTuple):
    """Attributes of the root element, and in version 1.2 of the first <file>."""

    is_version_1: bool
    source_language: str


class Missing(NamedTuple):
    """A tag that names no language of its targets. place: in bytes, where the attribute `name` may begin."""

    place: int
    name: str


@dataclass
class Unit:
    """A source with its target. Places are byte offsets; tags and elements include their brackets."""

    start: int  # of what is replaced: the <segment> tag, whose state changes, or the <source>
    tag_end: int  # of that tag
    is_translated: bool
    is_version_1: bool
    file: int  # its number, from 1
    is_preserved: bool = False  # the white space of its texts
    prefix: str = ""  # of its elements' names, with a colon
    source_start: int = -1
    source_end: int = -1
    target_start: int = -1
    target_tag_end: int = -1
    target_end: int = -1
    runs: list[tuple[int, int, str]] = field(default_factory=list)  # start, end, characters; none for tags
    borders: set[int] = field(default_factory=set)  # where tags of segments begin


class _Open(NamedTuple):
    """An open element. name: SEGMENT for a segment in a source. is_preserved: its white space stays as it is."""

    name: str
    is_translated: bool
    is_preserved: bool


class Reader:
    """Reads one document. header: once the root has been read."""

    def __init__(self, *, needs_language: bool = True) -> None:
        """needs_language: the document must name the language of its targets, where its version asks for that."""
        self.header: Header | None = None
        self._needs_language = needs_language
        self._stack: list[_Open] = []
        self._tags = self._files = 0
        self._unit: Unit | None = None
        self._annotated: dict[str | int, bool] = {}  # by id or depth: whether an open annotation translates
        self._whole: list[tuple[int, int, str]] = []  # runs of a source that is also there in segments
        self._done: list[Unit | Missing] = []
        self._run: tuple[int, str] | None = None  # the last one inside a source
        self._cdata: list[str] | None = None  # the characters of an open CDATA section
        self._opened_end = -1  # of the tag that was read last
        self._data = b""
        self._parser = parser = expat.ParserCreate("UTF-8")
        parser.StartElementHandler, parser.EndElementHandler = self._open, self._close
        parser.CharacterDataHandler = self._characters
        parser.CommentHandler = parser.ProcessingInstructionHandler = self._other
        parser.StartCdataSectionHandler, parser.EndCdataSectionHandler = self._open_cdata, self._close_cdata
        parser.StartDoctypeDeclHandler = self._doctype

    def units(self, data: bytes) -> Iterator[Unit | Missing]:
        """The units of a document, and tags without a language, in order. Raises DocumentError."""
        self._data = data
        try:
            for place in range(0, len(data), _READ_BYTES):
                self._parser.Parse(data[place : place + _READ_BYTES], place + _READ_BYTES >= len(data))
                yield from self._done
                self._done = []
        except expat.ExpatError as error:
            where = f"line {error.lineno}, column {error.offset + 1}"
            raise DocumentError(f"must be well-formed XML: {expat.ErrorString(error.code)} at {where}") from None

    @property
    def _at(self) -> int:
        return self._parser.CurrentByteIndex

    def _doctype(self, *_: Any) -> None:
        raise DocumentError("must have no DOCTYPE; remove it")

    def _other(self, *_: Any) -> None:
        self._begin_run("")

    def _open_cdata(self) -> None:
        self._begin_run("")
        self._cdata = []

    def _close_cdata(self) -> None:
        """A whole section is one run: its translation is written without brackets."""
        if self._run is not None:
            self._run = (self._run[0], "".join(self._cdata or ()))
            self._end_run(self._at + len("]]>"))
            self._run = (self._at + len("]]>"), "")
        self._cdata = None

    def _characters(self, text: str) -> None:
        if not next(reversed(self._annotated.values()), self._stack[-1].is_translated):
            text = ""
        if self._cdata is not None:
            self._cdata.append(text)
        else:
            self._begin_run(text)

    def _begin_run(self, text: str) -> None:
        """Ends the run before, inside a source, and begins one of text, or of what is none."""
        if self._unit is None or self._unit.source_start < 0 or self._unit.source_end >= 0:
            return
        self._end_run(self._at)
        self._run = (self._at, text)

    def _end_run(self, end: int) -> None:
        if self._run is not None and self._unit is not None and self._run[0] < end:
            self._unit.runs.append((self._run[0], end, self._run[1]))
        self._run = None

    def _open(self, name: str, attributes: Mapping[str, str]) -> None:
        prefix, _, local = name.rpartition(":")
        self._tags += 1
        self._files += local == "file"
        if self._tags > MAX_TAGS:
            raise DocumentError(f"must have at most {MAX_TAGS} tags, got more; split it")
        if len(self._stack) == MAX_DEPTH:
            raise DocumentError(f"must have at most {MAX_DEPTH} elements in each other, <{name}> is one more")
        self._begin_run("")
        self._opened_end = self._tag_end()
        is_segment = local == "mrk" and attributes.get("mtype") == "seg"
        name = SEGMENT if is_segment else local
        self._stack.append(_Open(name, self._translates(local, attributes), self._preserves(attributes)))
        if is_segment and self._unit is not None:
            self._unit.borders.add(self._at)
        if local == "xliff" or (local == "file" and self.header and self.header.is_version_1):
            self._read_header(local, attributes)
        elif self.header is None:
            raise DocumentError(f"must be XLIFF: its root is <{name}>, not <xliff>")
        elif local in ("sm", "em", "mrk") and not self.header.is_version_1:
            self._annotate(local, attributes)
        elif local == ("trans-unit" if self.header.is_version_1 else "segment"):
            is_open = not _is_kept(attributes)
            self._unit = Unit(self._at, self._opened_end, is_open, self.header.is_version_1, self._files)
        elif self._unit is not None and len(self._stack) >= 2 and self._stack[-2].name in ("trans-unit", "segment"):
            self._open_text(local, prefix, attributes)
        elif self._unit is not None and prefix and local == "seg" and _is_kept(attributes, is_of_tool=True):
            self._unit.is_translated = False  # a definition of Trados, after the target

    def _annotate(self, local: str, attributes: Mapping[str, str]) -> None:
        """Begins or ends an annotation; of those that are open, the one that began last decides. <sm> and <em> may
        be in different segments of a unit."""
        if any(each.name == "target" for each in self._stack):
            return
        if local == "em":
            self._annotated.pop(attributes.get("startRef", ""), None)
        elif "translate" in attributes:
            key = len(self._stack) if local == "mrk" else attributes.get("id", "")
            self._annotated[key] = attributes["translate"] != "no"

    def _open_text(self, local: str, prefix: str, attributes: Mapping[str, str]) -> None:
        """Begins the source or the target of a unit."""
        assert self._unit is not None
        end = self._opened_end
        if local == "source":
            self._unit.source_start, self._unit.prefix = self._at, f"{prefix}:" if prefix else ""
            self._unit.is_preserved = self._stack[-1].is_preserved
            self._run = (end, "")
            if self._unit.is_version_1:
                self._unit.start = self._at
        elif local == "seg-source" and self._unit.is_version_1 and 0 <= self._unit.start < self._unit.source_end:
            self._whole, self._unit.runs = self._unit.runs, []
            self._unit.source_start, self._unit.source_end = self._at, -1
            self._run = (end, "")
        elif local == "target":
            self._unit.target_start, self._unit.target_tag_end = self._at, end
            if _is_kept(attributes):
                self._unit.is_translated = False

    def _close(self, _: str) -> None:
        self._annotated.pop(len(self._stack), None)
        local = self._stack.pop().name
        if local == "unit":
            self._annotated = {}
        unit = self._unit
        if unit is None:
            return
        parent = self._stack[-1].name if self._stack else ""
        is_empty = self._at == self._opened_end and self._data[self._at - 2 : self._at] == b"/>"
        self._opened_end = -1  # only the element that was opened last can be empty
        end = self._at if is_empty else self._tag_end()
        if local == SEGMENT:
            unit.borders.add(self._at)
        if parent in ("trans-unit", "segment") and local in ("source", "seg-source") and unit.source_end < 0:
            self._end_run(self._at)
            unit.source_end = end
            if local == "seg-source" and not any(text for _, _, text in unit.runs):
                unit.runs = self._whole
        elif parent in ("trans-unit", "segment") and local == "target":
            unit.target_end = end
        elif local in ("trans-unit", "segment"):
            self._done.append(unit)
            self._unit = None
        else:
            self._begin_run("")

    def _tag_end(self) -> int:
        tag = _TAG.match(self._data, self._at)
        assert tag, "expat has read a tag here"
        return tag.end()

    def _translates(self, local: str, attributes: Mapping[str, str]) -> bool:
        inherited = self._stack[-1].is_translated if self._stack else True
        if "translate" in attributes:
            inherited = attributes["translate"] != "no"
        return inherited and local not in _CODE and attributes.get("mtype") != "protected"

    def _missing(self, name: str) -> Missing:
        """For the tag that was read last."""
        tag = self._data[self._at : self._opened_end]
        return Missing(self._opened_end - (2 if tag.endswith(b"/>") else 1), name)

    def _preserves(self, attributes: Mapping[str, str]) -> bool:
        inherited = bool(self._stack) and self._stack[-1].is_preserved
        return {"preserve": True, "default": False}.get(attributes.get("xml:space", ""), inherited)

    def _read_header(self, local: str, attributes: Mapping[str, str]) -> None:
        if local == "file":
            if self.header and not self.header.source_language:
                self.header = self.header._replace(source_language=attributes.get("source-language", ""))
            if not attributes.get("target-language"):
                self._done.append(self._missing("target-language"))
            return
        version = attributes.get("version", "")
        if version.split(".")[0] not in ("1", "2"):
            raise DocumentError(f"must be XLIFF of version 1.2 or 2.x, got {version[:16]!r}")
        if version.startswith("2") and not attributes.get("trgLang"):
            if self._needs_language:
                problem = "must name the language of its targets: add the attribute trgLang to <xliff>"
                raise DocumentError(f"{problem}, or name the target language of a model that has several")
            self._done.append(self._missing("trgLang"))
        self.header = Header(version.startswith("1"), attributes.get("srcLang", ""))


def _is_kept(attributes: Mapping[str, str], *, is_of_tool: bool = False) -> bool:
    """Whether a unit, a segment or a target is the finished work of a person, by the attributes of its tag.
    is_of_tool: the tag is one of a translation tool."""
    if attributes.get("approved") == "yes" or attributes.get("state") in _KEPT:
        return True
    return any(
        value.lower() in _KEPT_BY_TOOLS.get(name.rpartition(":")[2], ())
        for name, value in attributes.items()
        if ":" in name or is_of_tool
    )
