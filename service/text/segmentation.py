"""Text → sentences, by the rules of a language (`sentences`). Which rules: `Splitter`.

The rules are those of the library sentencex. It reads windows of WINDOW characters here: the time of version 1.0.32
grows with the square of some texts' lengths, and it holds Python's lock while it runs. Nothing
here knows line breaks: a caller gives it a paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import sentencex

from service.text.languages import language_of
from service.text.spans import Span

WINDOW = 4096  # characters that are read together: 0.1 ms, at worst 2 ms. A sentence that is longer is cut
DEFAULT_LANGUAGE = "en"  # where a request names none; the answer reports it

# Ends of sentences by the library that are none, each seen in news: numbers of a day or an ordinal in German, titles
# and months in French.
_SPACE = re.compile(r"\s")
_NO_ENDS = {
    "de": re.compile(r"(?<![\w.,:])\d{1,2}\.\s*$"),
    "fr": re.compile(r"(?<![\w.])(M|janv|févr|avr|juil|sept|oct|nov|déc)\.\s*$"),
}


class Splitter(NamedTuple):
    """How texts are split: into sentences by the rules of `language`, or, with an empty one, into paragraphs alone.

    is_assumed: no language was named.
    """

    language: str
    is_assumed: bool = False


def splitter_for(code: str) -> Splitter:
    """The splitter for a language code, such as de, de-AT, de_DE, deu_Latn. An empty one: DEFAULT_LANGUAGE."""
    if not code:
        return Splitter(DEFAULT_LANGUAGE, is_assumed=True)
    return Splitter(language_of(code))


def sentences(text: str, splitter: Splitter) -> Iterator[Span]:
    """The sentences of a paragraph, each with the white space after it. They tile it, also where it is blank.

    Linear in the text's length. A sentence of more than WINDOW characters is cut at a space, without one anywhere.
    """
    if not splitter.language:
        if text:
            yield Span(0, len(text))
        return
    start = 0
    while start < len(text):
        window, before = text[start : start + WINDOW], start
        ends = _ends(window, splitter.language)
        if before + len(window) < len(text):  # the last one may go on
            ends = ends[:-1] or [_cut(window)]
        for end in ends:
            yield Span(start, before + end)
            start = before + end


def _ends(window: str, language: str) -> list[int]:
    """Where the sentences of a text end, the last one at its end. The library takes a hard space for a letter, and
    panics at some other spaces of several bytes."""
    pieces = sentencex.segment(language, _SPACE.sub(" ", window))
    assert sum(map(len, pieces)) == len(window), "sentences tile a text without line breaks"
    no_end, ends, end = _NO_ENDS.get(language), [], 0
    for piece in pieces:
        end += len(piece)
        if no_end is None or end == len(window) or not no_end.search(piece[-16:]):
            ends.append(end)
    return ends


def _cut(window: str) -> int:
    """Where a sentence is cut that fills a window: after its last space, if it has one in its second half."""
    place = max(window.rfind(" "), window.rfind("\xa0")) + 1
    return place if place > len(window) // 2 else len(window)
