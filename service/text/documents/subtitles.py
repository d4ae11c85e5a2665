"""Subtitles, SubRip and WebVTT → segments: a sentence each, also where it goes on in the next cue.

Cues that follow each other within MAX_PAUSE_S, at the same place and by the same speaker, are one text; what stands
between two of them is a mark in its sentence, which the translation has at the same word (`cue_lines`). A line that
begins with a dash or a note of music, a voice of WebVTT and a blank line begin a text of their own. Times, numbers,
settings, notes, styles and tags are copied.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from service.text.documents.cue_lines import Layout, arranged
from service.text.documents.cues import Cue, cues_of
from service.text.documents.runs import Run, sentences_of, unpaired
from service.text.languages import NO_LANGUAGES, Languages
from service.text.mark_scanner import decoded
from service.text.segmentation import Splitter
from service.text.segments import Place, Segment, Text, copied
from service.text.spans import Span

MAX_PAUSE_S, MAX_OVERLAP_S = 3.0, 0.5  # between the cues of one text
MAX_CUES = 8  # of a sentence; one of more, as in texts without full stops, is translated cue by cue
MAX_RUNS = 64  # of a cue that is joined to another one
# What begins a text of its own: a blank line, the dash of a speaker or a note of music before a line, a voice, or a
# place that SubRip took from ASS.
_BEGINS = (
    r"(?P<blank>(?:\r\n|[\r\n])(?:[ \t]*(?:\r\n|[\r\n]))+)"
    r"|(?P<dash>(?:\A|(?<=[\r\n]))[ \t]*+(?:[-\u2013\u2014](?:[ \t]++|(?=[^\W\d]))|[\u2669-\u266c]++[ \t]*+)"
    r"|(?:>>|&gt;&gt;)[ \t]*+)"
    r"|(?P<voice><v[.\s][^<>]*>|\{\\an?\d[^{}\r\n]*\})"
)
_OTHERS = r"[\u2669-\u266c]+|\{\\[^{}\r\n]*\}"  # notes of music, other codes of ASS
_SUBRIP = re.compile(rf"{_BEGINS}|{_OTHERS}|</?(?i:[bius]|font)(?:\s[^<>\r\n]*)?>")  # any other < is text
_WEBVTT = re.compile(rf"{_BEGINS}|{_OTHERS}|<[^<>]*>|(?P<entity>&(?:\w{{1,31}}|#\d{{1,7}}|#[xX][0-9a-fA-F]{{1,6}});)")
_LINE_BREAK = re.compile(r"\r\n|[\r\n]")


class _Part(NamedTuple):
    """The runs of a cue that are a text of their own, or a part of one: those before its words, `core`, and those after
    them. voice: the tag of its speaker or place. begins: whether a dash does."""

    before: list[Run]
    core: list[Run]
    after: list[Run]
    voice: str
    begins: bool


def check_subrip(source: str, target_language: str = "") -> str:
    """An empty language: subtitles name none. Raises DocumentError for what is no SubRip, or has wrong times."""
    return _check(source, is_webvtt=False)


def check_webvtt(source: str, target_language: str = "") -> str:
    """The same for WebVTT."""
    return _check(source, is_webvtt=True)


def _check(source: str, *, is_webvtt: bool) -> str:
    for _ in cues_of(source, is_webvtt=is_webvtt):
        pass
    return ""


def subrip_segments(source: str, splitter: Splitter, languages: Languages = NO_LANGUAGES) -> Iterator[Segment]:
    """The segments of a document that `check_subrip` accepts. Their spans tile it."""
    return _segments(source, splitter, is_webvtt=False)


def webvtt_segments(source: str, splitter: Splitter, languages: Languages = NO_LANGUAGES) -> Iterator[Segment]:
    """The segments of a document that `check_webvtt` accepts. Their spans tile it."""
    return _segments(source, splitter, is_webvtt=True)


def _segments(source: str, splitter: Splitter, *, is_webvtt: bool) -> Iterator[Segment]:
    done, place, newline = 0, Place.FIRST, "\r\n" if "\r\n" in source else "\n"
    for block in _blocks(source, is_webvtt=is_webvtt):
        starts = [run.start for run in block]
        for segment in sentences_of(source, block, splitter, None if is_webvtt else str):
            first, end = bisect_right(starts, segment.span.start) - 1, bisect_left(starts, segment.span.end)
            cues = _lengths(block[first:end], segment.span)
            yield from copied(source, done, segment.span.start)
            yield replace(_arranged(segment, cues, newline), place=place)
            done, place = segment.span.end, Place.LATER
    yield from copied(source, done, len(source))


def _blocks(source: str, *, is_webvtt: bool) -> Iterator[list[Run]]:
    """The runs of each text. What is between two cues of one is a run with a blank that is whole."""
    block: list[Run] = []
    before: tuple[Cue, _Part] | None = None
    for cue in cues_of(source, is_webvtt=is_webvtt):
        for part in _parts(source, cue, is_webvtt=is_webvtt):
            if before and before[0] is not cue and _goes_on(source, *before, cue, part):
                last = before[1]
                del block[len(block) - len(last.after) :]
                block.append(Run(last.core[-1].end, part.core[0].start, " ", is_whole=True))
                block += [*part.core, *part.after]
            else:
                yield block
                block = [*part.before, *part.core, *part.after]
            before = cue, part
    yield block


def _goes_on(source: str, cue: Cue, part: _Part, following: Cue, next_part: _Part) -> bool:
    """Whether a part may end in the middle of a sentence of which the next part, of the following cue, has more."""
    if next_part.begins or part.voice != next_part.voice or cue.place != following.place:
        return False
    if not -MAX_OVERLAP_S <= following.start_s - cue.end_s <= MAX_PAUSE_S or following.start_s <= cue.start_s:
        return False
    cores = (part.core, next_part.core)
    return all(core and len(core) <= MAX_RUNS and unpaired(source, core) == ([], []) for core in cores)


def _parts(source: str, cue: Cue, *, is_webvtt: bool) -> Iterator[_Part]:
    """The parts of a cue. They tile its text but for blank lines."""
    text, offset = source[cue.text.start : cue.text.end], cue.text.start
    runs, voice, begins, place, has_text = list[Run](), "", False, 0, False
    for mark in itertools.chain((_WEBVTT if is_webvtt else _SUBRIP).finditer(text), (None,)):
        start, end = mark.span() if mark else (len(text), len(text))
        if place < start:
            runs.append(Run(offset + place, offset + start, text[place:start]))
            has_text = has_text or not text[place:start].isspace()
        place = end
        kind = mark.lastgroup if mark else "blank"
        if kind in ("blank", "dash", "voice"):
            if has_text:
                yield _part(source, runs, voice, begins=begins)
                runs, voice, begins, has_text = [], "", False, False
            voice, begins = mark[0] if mark and kind == "voice" else voice, begins or kind == "dash"
        if not mark or kind == "blank":
            continue
        character = decoded(mark[0]) if kind == "entity" else ""
        has_text = has_text or bool(character.strip())
        runs.append(Run(offset + start, offset + end, character, is_whole=kind == "dash"))
    assert not has_text


def _part(source: str, runs: list[Run], voice: str, *, begins: bool) -> _Part:
    """A part. Its core begins and ends with a text, or with the tag whose partner is in it."""
    texts = [number for number, run in enumerate(runs) if run.text.strip()]
    first, end = texts[0], texts[-1] + 1
    while len(runs) <= MAX_RUNS:
        closed, opened = unpaired(source, runs[first:end])
        if closed and first:
            first -= 1
        elif opened and end < len(runs):
            end += 1
        else:
            break
    core = runs[first:end]
    for number, strip in ((0, str.lstrip), (-1, str.rstrip)):
        run = core[number]
        if not run.is_entity:  # nor a tag: the blanks of a mark between two cues are not those of the translation
            start = run.start + run.text.index(strip(run.text))
            core[number] = Run(start, start + len(strip(run.text)), strip(run.text))
    return _Part(runs[:first], core, runs[end:], voice, begins)


def _lengths(runs: Sequence[Run], span: Span) -> list[list[int]]:
    """The lengths of the lines of each cue that has a part of a sentence."""
    cues: list[list[str]] = [[""]]
    for run in runs:
        if run.text and run.is_whole:
            cues.append([""])
        elif run.text:
            cut = slice(max(0, span.start - run.start), span.end - run.start)
            lines = _LINE_BREAK.split(run.text if run.is_entity else run.text[cut])
            cues[-1][-1] += lines[0]
            cues[-1] += lines[1:]
    return [[len(line.strip()) for line in lines if line.strip()] for lines in cues]


def _arranged(segment: Segment, cues: list[list[int]], newline: str) -> Segment:
    """A sentence whose translation is arranged in the lines of its cues."""

    def within(text: Text, lengths: list[list[int]]) -> Text:
        return replace(text, written=partial(arranged, Layout(lengths, newline, text.has_tags), text.written))

    count = sum(isinstance(part, Text) for part in segment.pieces)
    each = iter([lengths] for lengths in (cues if count == len(cues) else [[]] * count))
    pieces = tuple(within(part, next(each)) if isinstance(part, Text) else part for part in segment.pieces)
    if segment.parts == segment.pieces or len(cues) > MAX_CUES:
        return replace(segment, parts=pieces, pieces=pieces)
    parts = tuple(within(part, cues) if isinstance(part, Text) else part for part in segment.parts)
    return replace(segment, parts=parts, pieces=pieces)
