"""XLIFF 1.2 and 2.x → segments: the source of each unit is translated, and its target inserted or replaced.

Units that must not be translated, or that a person has finished, are copied (`xliff_units`). The state of a new target
asks for a review; what described the old one goes. Inline elements are copied into the target, and messages of ICU stay
messages (`messages`); a unit with a malformed one fails. A source that a tool has segmented (<seg-source>, version 1.2)
is translated segment by segment instead of the <source> before it: its tool finds the segments of a target by their
<mrk>.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from service.text.documents.layout import paragraphs_of
from service.text.documents.messages import MessageError, with_messages
from service.text.documents.runs import Run, sentences_of
from service.text.documents.xliff_units import Missing, Reader, Unit
from service.text.languages import NO_LANGUAGES, Languages, language_tag
from service.text.segmentation import Splitter
from service.text.segments import DocumentError, Place, Segment, copied
from service.text.spans import Span

INDENT = 256  # characters of white space before a source that its target gets too, at most
_STATE = re.compile(r"""(\sstate\s*=\s*)("[^"]*"|'[^']*')""")
_OF_OLD_TARGETS = re.compile(r"""\s(?:state-qualifier|phase-name|equiv-trans|subState)\s*=\s*(?:"[^"]*"|'[^']*')""")
_ENCODING = re.compile(r"""\s*<\?xml[^>]*?\sencoding\s*=\s*["'](?P<name>[\w.:-]+)["']""")


def check(source: str, target_language: str = "") -> str:
    """The source language of a document. Raises DocumentError for one that is not well-formed or no XLIFF, or that has
    too many tags, too many elements in each other, or no language for its targets while that is not known."""
    reader = Reader(needs_language=not target_language)
    for _ in reader.units(source.encode()):
        pass
    if reader.header is None:
        raise DocumentError("must be XLIFF: it has no <xliff> element")
    return reader.header.source_language


def segments(source: str, splitter: Splitter, languages: Languages = NO_LANGUAGES) -> Iterator[Segment]:
    """The segments of a document that `check` accepts, one for each translated unit. Their spans tile it. The units of
    a <file> are one paragraph: many files have a unit for each sentence. languages: a document that names none for its
    targets gets that of the translation, where it is known."""
    data, done, place, file = source.encode(), 0, _Place(source), 0
    declared = _ENCODING.match(source)
    if declared and declared["name"].lower() != "utf-8":  # the translation is text in UTF-8
        done = declared.end("name")
        yield from copied(source, 0, declared.start("name"))
        yield Segment(Span(*declared.span("name")), ("UTF-8",))
    for unit in Reader(needs_language=not languages.target).units(data):
        segment = (
            _named(unit, place, languages)
            if isinstance(unit, Missing)
            else _segment(source, unit, place, splitter, languages.target or unit.language)
        )
        if segment is None:
            continue
        yield from copied(source, done, segment.span.start)
        done = segment.span.end
        if isinstance(unit, Unit):
            segment = replace(segment, place=Place.LATER if unit.file == file else Place.FIRST)
            file = unit.file
        yield segment
    yield from copied(source, done, len(source))


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


def _named(tag: Missing, place: _Place, languages: Languages) -> Segment | None:
    """The attribute that a tag lacks."""
    if not languages.target:
        return None
    point = place.of(tag.place)
    return Segment(Span(point, point), (f' {tag.name}="{language_tag(languages.target)}"',))


def _segment(source: str, unit: Unit, place: _Place, splitter: Splitter, language: str) -> Segment | None:
    """The segment of a unit; None if it has nothing to translate. language: of its target; empty if unknown."""
    if not unit.is_translated or unit.source_end < 0 or 0 <= unit.target_start < unit.source_end:
        return None  # a target before its source is against the specification; both are copied
    start, source_start = place.of(unit.start), place.of(unit.source_start)
    blocks: list[list[Run]] = [[]]
    for begin, end, text in unit.runs:
        if begin in unit.borders:
            blocks.append([])
        blocks[-1].append(Run(place.of(begin), place.of(end), text))
    try:
        sentences = [one for block in blocks for one in _sentences(block, unit, source, splitter, language)]
    except MessageError as error:
        end = place.of(max(unit.source_end, unit.target_end))
        return Segment(Span(start, end), (source[start:end],), problem=str(error))
    if all(sentence.is_copied for sentence in sentences):
        return None
    runs = list(itertools.chain.from_iterable(blocks))
    content = list(_tiled(source, sentences, Span(runs[0].start, runs[-1].end)))
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
    parts = [part for one in content for part in one.parts]
    pieces = [part for one in content for part in one.pieces or one.parts]
    joined = _joined_by(content) if any(one.joined for one in content) else None
    return Segment(Span(start, end), (opening, *parts, closing), (opening, *pieces, closing), joined=joined)


def _sentences(block: list[Run], unit: Unit, source: str, splitter: Splitter, language: str) -> Iterator[Segment]:
    """The sentences of runs that no sentence leaves, those in branches of messages among them."""

    def sentences(runs: list[Run]) -> Iterator[Segment]:
        for some in paragraphs_of(runs) if unit.is_preserved else (runs,):
            yield from sentences_of(source, some, splitter)

    runs, written = with_messages(source, block, sentences, language)
    return map(written, sentences(runs))


def _tiled(source: str, sentences: Sequence[Segment], span: Span) -> Iterator[Segment]:
    """The sentences of a target, and between them what is copied."""
    place = span.start
    for sentence in sentences:
        yield Segment(Span(place, sentence.span.start), (source[place : sentence.span.start],))
        yield sentence
        place = sentence.span.end
    yield Segment(Span(place, span.end), (source[place : span.end],))


def _joined_by(content: Sequence[Segment]) -> Callable[[Sequence[str]], str]:
    """Puts the parts of a target together, with its two tags around."""

    def joined(texts: Sequence[str]) -> str:
        opening, *rest = texts
        made, place = [opening], 0
        for one in content:
            made.append((one.joined or "".join)(rest[place : place + len(one.parts)]))
            place += len(one.parts)
        return "".join((*made, *rest[place:]))

    return joined


def _with_state(tag: str, state: str) -> str:
    """An opening tag with this state, and without what describes another target."""
    tag = _OF_OLD_TARGETS.sub("", tag)
    if _STATE.search(tag):
        return _STATE.sub(rf'\g<1>"{state}"', tag, count=1)
    return f'{tag[:-1]} state="{state}">'
