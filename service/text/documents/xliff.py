"""XLIFF 1.2 and 2.x → segments: the source of each unit is translated, and its target inserted or replaced.

A unit that must not be translated, or whose target a person has translated, reviewed or locked, is copied (`_is_kept`).
The state of a new target asks for a review; what described the old one goes. Inline elements are copied into the
target; a text between two of them is translated by itself. A source that a tool has segmented (<seg-source>, version
1.2) is translated segment by segment instead of the <source> before it: its tool finds the segments of a target by
their <mrk>. Read by expat; a DOCTYPE is refused, so entities are the five of XML.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from xml.parsers import expat

from service.text.documents.runs import Run, sentences_of
from service.text.segmentation import Splitter
from service.text.segments import DocumentError, Place, Segment, Text, copied
from service.text.spans import Span

MAX_TAGS = 200_000  # of a document
MAX_DEPTH = 64  # of elements in each other
INDENT = 256  # characters of white space before a source that its target gets too, at most
_READ_BYTES = 1 << 16  # at a time: units are yielded in between
_TAG = re.compile(rb"<(?:[^\"'>]++|\"[^\"]*+\"|'[^']*+')*+>")
_STATE = re.compile(r"""(\sstate\s*=\s*)("[^"]*"|'[^']*')""")
_OF_OLD_TARGETS = re.compile(r"""\s(?:state-qualifier|phase-name|equiv-trans|subState)\s*=\s*(?:"[^"]*"|'[^']*')""")
_ENCODING = re.compile(r"""\s*<\?xml[^>]*?\sencoding\s*=\s*["'](?P<name>[\w.:-]+)["']""")
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


def check(source: str) -> str:
    """The source language of a document. Raises DocumentError for one that is not well-formed or no XLIFF, or that has
    too many tags, too many elements in each other, or no language for its targets."""
    reader = _Reader()
    for _ in reader.units(source.encode()):
        pass
    if reader.header is None:
        raise DocumentError("must be XLIFF: it has no <xliff> element")
    return reader.header.source_language


def segments(source: str, splitter: Splitter) -> Iterator[Segment]:
    """The segments of a document that `check` accepts, one for each translated unit. Their spans tile it. The units of
    a <file> are one paragraph: many files have a unit for each sentence."""
    data, done, place, file = source.encode(), 0, _Place(source), 0
    if declared := _ENCODING.match(source):  # the translation is text in UTF-8
        done = declared.end("name")
        yield from copied(source, 0, declared.start("name"))
        yield Segment(Span(*declared.span("name")), ("UTF-8",))
    for unit in _Reader().units(data):
        if (segment := _segment(source, unit, place, splitter)) is not None:
            yield from copied(source, done, segment.span.start)
            yield replace(segment, place=Place.LATER if unit.file == file else Place.FIRST)
            done, file = segment.span.end, unit.file
    yield from copied(source, done, len(source))


@dataclass
class _Unit:
    """A source with its target. Places are byte offsets; tags and elements include their brackets."""

    start: int  # of what is replaced: the <segment> tag, whose state changes, or the <source>
    tag_end: int  # of that tag
    is_translated: bool
    is_version_1: bool
    file: int  # its number, from 1
    state: str = ""
    prefix: str = ""  # of its elements' names, with a colon
    source_start: int = -1
    source_end: int = -1
    target_start: int = -1
    target_tag_end: int = -1
    target_end: int = -1
    runs: list[tuple[int, int, str]] = field(default_factory=list)  # start, end, characters; none for tags
    borders: set[int] = field(default_factory=set)  # where tags of segments begin


class _Reader:
    """Reads one document. header: once the root has been read."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self._stack: list[tuple[str, bool]] = []  # names of open elements, SEGMENT among them, and whether translated
        self._tags = self._files = 0
        self._unit: _Unit | None = None
        self._annotated: dict[str, bool] = {}  # by id, annotations that begin and end with tags, and whether translated
        self._whole: list[tuple[int, int, str]] = []  # runs of a source that is also there in segments
        self._done: list[_Unit] = []
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

    def units(self, data: bytes) -> Iterator[_Unit]:
        """The units of a document, in order. Raises DocumentError."""
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
        if not (self._stack[-1][1] and all(self._annotated.values())):
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
        self._stack.append((SEGMENT if is_segment else local, self._translates(local, attributes)))
        if is_segment and self._unit is not None:
            self._unit.borders.add(self._at)
        if local == "xliff" or (local == "file" and self.header and self.header.is_version_1):
            self._read_header(local, attributes)
        elif self.header is None:
            raise DocumentError(f"must be XLIFF: its root is <{name}>, not <xliff>")
        elif local in ("sm", "em") and not self.header.is_version_1:
            self._annotate(local, attributes)
        elif local == ("trans-unit" if self.header.is_version_1 else "segment"):
            is_translated = self._stack[-1][1] and not _is_kept(attributes)
            self._unit = _Unit(self._at, self._opened_end, is_translated, self.header.is_version_1, self._files)
        elif self._unit is not None and len(self._stack) >= 2 and self._stack[-2][0] in ("trans-unit", "segment"):
            self._open_text(local, prefix, attributes)
        elif self._unit is not None and prefix and local == "seg" and _is_kept(attributes, is_of_tool=True):
            self._unit.is_translated = False  # a definition of Trados, after the target

    def _annotate(self, local: str, attributes: Mapping[str, str]) -> None:
        """Begins or ends an annotation over what follows its tag."""
        if local == "em":
            self._annotated.pop(attributes.get("startRef", ""), None)
        elif "translate" in attributes:
            self._annotated[attributes.get("id", "")] = attributes["translate"] != "no"

    def _open_text(self, local: str, prefix: str, attributes: Mapping[str, str]) -> None:
        """Begins the source or the target of a unit."""
        assert self._unit is not None
        end = self._opened_end
        if local == "source":
            self._unit.source_start, self._unit.prefix = self._at, f"{prefix}:" if prefix else ""
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
        local = self._stack.pop()[0]
        if local == "unit":
            self._annotated = {}
        unit = self._unit
        if unit is None:
            return
        parent = self._stack[-1][0] if self._stack else ""
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
        inherited = self._stack[-1][1] if self._stack else True
        if "translate" in attributes:
            inherited = attributes["translate"] != "no"
        return inherited and local not in _CODE and attributes.get("mtype") != "protected"

    def _read_header(self, local: str, attributes: Mapping[str, str]) -> None:
        if local == "file":
            if self.header and not self.header.source_language:
                self.header = self.header._replace(source_language=attributes.get("source-language", ""))
            return
        version = attributes.get("version", "")
        if version.split(".")[0] not in ("1", "2"):
            raise DocumentError(f"must be XLIFF of version 1.2 or 2.x, got {version[:16]!r}")
        if version.startswith("2") and not attributes.get("trgLang"):
            raise DocumentError("must name the language of its targets: add the attribute trgLang to <xliff>")
        self.header = Header(version.startswith("1"), attributes.get("srcLang", ""))


class _Place:
    """Byte offsets of a text → code points; each offset at least as large as the one before, but for `data`."""

    def __init__(self, source: str) -> None:
        self._source, self._is_ascii = source, source.isascii()
        self._data = b"" if self._is_ascii else source.encode()
        self._byte = self._point = 0

    def of(self, byte: int) -> int:
        """The code point at a byte offset."""
        if self._is_ascii:
            return byte
        if byte < self._byte:
            return self._point - len(self._data[byte : self._byte].decode())
        self._point += len(self._data[self._byte : byte].decode())
        self._byte = byte
        return self._point


def _segment(source: str, unit: _Unit, place: _Place, splitter: Splitter) -> Segment | None:
    """The segment of a unit; None if it has nothing to translate."""
    if not unit.is_translated or unit.source_end < 0 or 0 <= unit.target_start < unit.source_end:
        return None  # a target before its source is against the specification; both are copied
    start, source_start = place.of(unit.start), place.of(unit.source_start)
    blocks: list[list[Run]] = [[]]
    for begin, end, text in unit.runs:
        if begin in unit.borders:
            blocks.append([])
        blocks[-1].append(Run(place.of(begin), place.of(end), text))
    parts, pieces = _translation(source, blocks, splitter)
    if not any(isinstance(part, Text) for part in parts):
        return None
    source_end, has_target = place.of(unit.source_end), unit.target_end >= 0
    head = source[start:source_end]
    if not unit.is_version_1:
        length = place.of(unit.tag_end) - start
        head = _with_state(head[:length], "translated") + head[length:]
    if has_target:
        target_start, tag_end = place.of(unit.target_start), place.of(unit.target_tag_end)
        gap, tag, end = source[source_end:target_start], source[target_start:tag_end], place.of(unit.target_end)
    else:
        before = source[max(0, source_start - INDENT) : source_start]
        gap, tag, end = before[len(before.rstrip()) :], f"<{unit.prefix}target>", source_end
    tag = tag.removesuffix("/>").rstrip() + ">" if tag.endswith("/>") else tag
    if unit.is_version_1:
        tag = _with_state(tag, "needs-review-translation")
    opening, closing = f"{head}{gap}{tag}", f"</{unit.prefix}target>"
    return Segment(Span(start, end), (opening, *parts, closing), (opening, *pieces, closing))


def _translation(source: str, blocks: list[list[Run]], splitter: Splitter) -> tuple[list[str | Text], list[str | Text]]:
    """The parts of a target, the source's texts and between them what is copied; and its pieces, see `Segment`.

    blocks: runs that no sentence leaves.
    """
    runs = list(itertools.chain.from_iterable(blocks))
    parts, pieces, place = list[str | Text](), list[str | Text](), runs[0].start if runs else 0
    for sentence in itertools.chain.from_iterable(sentences_of(source, block, splitter) for block in blocks):
        gap = source[place : sentence.span.start]
        parts += [gap, *sentence.parts]
        pieces += [gap, *sentence.pieces]
        place = sentence.span.end
    rest = [source[place : runs[-1].end]] if runs else []
    return parts + rest, pieces + rest


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


def _with_state(tag: str, state: str) -> str:
    """An opening tag with this state, and without what describes another target."""
    tag = _OF_OLD_TARGETS.sub("", tag)
    if _STATE.search(tag):
        return _STATE.sub(rf'\g<1>"{state}"', tag, count=1)
    return f'{tag[:-1]} state="{state}">'
