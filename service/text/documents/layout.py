"""Text whose white space stays as it is, as `xml:space` asks, or `<pre>`: runs → paragraphs (`paragraphs_of`).

A line break that does not wrap a line, and a tabulator, separate texts; any other white space but a single blank is a
mark in its sentence.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from service.text.documents.plain import paragraphs
from service.text.documents.runs import Run

# One blank is a part of a text, but at the ends of a run it may go on.
_SPACE = re.compile(r"[ \t\n\r]{2,}|[\t\n\r]|\A +| +\Z")


def paragraphs_of(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """The paragraphs of runs, which are all of them. White space that is kept is a run with text that is whole."""
    marked = list(_marked(runs))
    ends, place, found = [span.end for span in paragraphs("".join(run.text for run in marked))], 0, list[Run]()
    for run in marked:
        if run.is_whole and run.text:
            number = bisect_left(ends, place)
            if "\t" in run.text or (number < len(ends) and ends[number] <= place + len(run.text)):
                yield found
                found = []
        found.append(run)
        place += len(run.text)
    yield found


def _marked(runs: Sequence[Run]) -> Iterator[Run]:
    """Runs with the white space that is kept apart from other text."""
    space: Run | None = None
    for run in itertools.chain.from_iterable(map(_pieces, runs)):
        is_space = run.text.isspace() and not run.text.strip(" \t\n\r") and not run.changes
        if space and is_space and space.end == run.start:
            space = Run(space.start, run.end, space.text + run.text, is_whole=True)
            continue
        if space:
            yield space._replace(is_whole=space.text != " ")
        space = run if is_space else None
        if not is_space:
            yield run
    if space:
        yield space._replace(is_whole=space.text != " ")


def _pieces(run: Run) -> Iterator[Run]:
    if not run.text or run.is_entity or run.is_whole:
        yield run
        return
    place = 0
    for found in _SPACE.finditer(run.text):
        if found.start() > place:
            yield Run(run.start + place, run.start + found.start(), run.text[place : found.start()])
        yield Run(run.start + found.start(), run.start + found.end(), found[0])
        place = found.end()
    if place < len(run.text):
        yield Run(run.start + place, run.end, run.text[place:])
