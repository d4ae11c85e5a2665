"""Subtitles as SubRip (.srt) and WebVTT have them: the cues of a document (`cues_of`), with their times and texts.

Both have lines of times with text below them. SubRip's text ends before the number of the next cue, and may have blank
lines; WebVTT's ends at the first blank line, and what is between two cues there (notes, styles, regions, identifiers)
is in no cue. Source: the specification of WebVTT; for SubRip, which has none, what players accept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from service.text.segments import DocumentError
from service.text.spans import Span

HEADER = "WEBVTT"
SHOWN = 60  # characters of a line in an error
_HEADER = re.compile(rf"\ufeff?{HEADER}(?:[ \t][^\r\n]*)?(?:\r\n|[\r\n]|\Z)")
_ARROW = re.compile(r"(?:\A|(?<=[\r\n]))[^\r\n]*?-->[^\r\n]*(?:\r\n|[\r\n]|\Z)")
_TIME = r"(?:(?:-?\d{1,6}:)?\d{1,3}:)?\d{1,3}[,.:]\d{1,3}"
_TIMES = re.compile(rf"\s*({_TIME})[ \t]*-->[ \t]*({_TIME})(?:[ \t]([^\r\n]*))?\s*")
_BLANK_LINE = re.compile(r"(?:\A|(?<=\n)|(?<=\r)(?!\n))(?:\r\n|[\r\n])")
_NUMBER_LINE = re.compile(r"(?:\A|(?<=[\r\n]))[ \t]*\d+[ \t]*(?:\r\n|[\r\n])\Z")


class Cue(NamedTuple):
    """A text that is shown for some time. start_s, end_s: of it, in seconds. place: its settings, such as where it
    stands. text: its lines, without line breaks and white space around; empty if it has none."""

    start_s: float
    end_s: float
    place: str
    text: Span


def cues_of(source: str, *, is_webvtt: bool) -> Iterator[Cue]:
    """The cues of a document, in order. Raises DocumentError for one of another format, and for a line of times that
    cannot be read."""
    if is_webvtt and not _HEADER.match(source):
        line = source.split("\n", 1)[0].strip()
        fix = "; it may be SubRip: give the format srt" if line.isdecimal() or _TIMES.fullmatch(line) else ""
        raise DocumentError(f"must be WebVTT: its first line must begin with {HEADER}, got {_shown(line)}{fix}")
    arrows, lines = _ARROW.finditer(source), _Lines(source)
    arrow = next(arrows, None)
    if not is_webvtt:
        _check_beginning(source, arrow)
    while arrow:
        times = _TIMES.fullmatch(arrow[0])
        if not times:
            fix = "write 00:00:01.000 --> 00:00:02.500" if is_webvtt else "write 00:00:01,000 --> 00:00:02,500"
            problem = f"line {lines.of(arrow.start())} must be the times of a cue, got {_shown(arrow[0])}"
            raise DocumentError(f"{problem}; {fix}")
        following = next(arrows, None)
        end = following.start() if following else len(source)
        yield Cue(
            _seconds(times[1]),
            _seconds(times[2]),
            (times[3] or "").strip(),
            _text(source, arrow.end(), end, following is not None, is_webvtt=is_webvtt),
        )
        arrow = following


class _Lines:
    """The numbers of lines, of places that follow each other."""

    def __init__(self, source: str) -> None:
        self._source, self._place, self._line = source, 0, 1

    def of(self, place: int) -> int:
        """The number of the line at a place, from 1."""
        self._line += self._source.count("\n", self._place, place)
        self._place = place
        return self._line


def _check_beginning(source: str, arrow: re.Match[str] | None) -> None:
    """Refuses a document that is no SubRip."""
    line = source.strip("\ufeff \t\r\n").split("\n", 1)[0].strip()
    if _HEADER.match(source):
        raise DocumentError(f"must be SubRip, but its first line is {_shown(line)}; give the format vtt")
    before = source[: arrow.start()].strip("\ufeff \t\r\n") if arrow else source
    if not arrow or (before and not before.isdecimal()):
        fix = "begin with the number of a cue and its times, as 00:00:01,000 --> 00:00:02,500"
        raise DocumentError(f"must be SubRip, but has {_shown(line)} before its first cue; {fix}")


def _shown(line: str) -> str:
    line = line.strip()
    return repr(line if len(line) <= SHOWN else line[: SHOWN - 1] + "…")


def _seconds(time: str) -> float:
    """A time in seconds. Hours and minutes may be missing."""
    *large, second, fraction = re.split("[:,.]", time)
    total = 0.0
    for part in (*large, second):
        total = 60 * total + abs(int(part))
    return total + float(f"0.{fraction}")


def _text(source: str, start: int, end: int, has_next: bool, *, is_webvtt: bool) -> Span:
    """The text of a cue, of what follows its times."""
    if is_webvtt:
        blank = _BLANK_LINE.search(source, start, end)
        end = blank.start() if blank else end
    elif has_next and (number := _NUMBER_LINE.search(source[start:end])):
        end = start + number.start()
    inner = source[start:end]
    start += len(inner) - len(inner.lstrip())
    return Span(start, max(start, end - (len(inner) - len(inner.rstrip()))))
