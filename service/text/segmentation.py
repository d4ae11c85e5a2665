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

# Ends of sentences by the library that are none. Abbreviations that it lacks and that end hardly any sentence; numbers
# of a day or an ordinal in German.
_SPACE = re.compile(r"\s")
_ABBREVIATIONS = {
    "cs": "kap popř",
    "da": "bl.a ift max min sk",
    "de": """
Abb Abs Abt allg Aufl Bd Bde bspw Dipl ebd ehem eigtl entspr Fa Fam Frl geb gegr gest gez ggfs Hrn Hrsg hrsg Inh inkl
insb jährl Kap Kfm max mind Nrn österr phil spez Tel verh vorm Vors wiss zus zw zzgl
""",
    "en": "approx appt apt eds est figs incl intl max mgr misc Mmes orig tel vol vols",
    "es": "aprox Aprox cf Cnel Cía cía D Dña N°",
    "fr": "avr bd c.-à-d déc Dr févr janv juil M max Mgr min Mlle MM Mme Mmes nb nov n° oct Pr réf sept St Ste",
    "it": "Dott.ssa n nn pag pagg Prof.ssa tab",
    "nl": "afb d.w.z e.a excl incl jr mej Mej Mevr mevr mld mln Mw mw o.a",
    "pl": "al dr gen godz im inż ks m.in maks mgr min nr płk str św tel tj tzw ul wg",
    "pt": "aprox Arq Av av cap Cel cf Cia cia D Exma máx mín n núm p pág págs pp Profa séc Srta Sta tel Tel",
    "ru": "гл им млн млрд напр рис ст т.е табл",
    "sv": "inkl kl max sid t.ex tel",
}
_NO_ENDS = {
    language: re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names.split()))})\.\s*$")
    for language, names in _ABBREVIATIONS.items()
}
_ORDINAL = re.compile(r"(?<![\w.,:])\d{1,2}\.\s*$")
_NUMBER = re.compile(r"\W{0,3}\d{1,3}[.)]\s*")  # of an item in a list: its text follows
_STOP = re.compile(r"[.!?…][^\w\s]?\s*$")
_LATIN = re.compile(r"[A-Za-z0-9\u00c0-\u024f]")
# What goes on after a quotation: particles in Japanese, a verb of saying with its subject in Chinese.
_QUOTED = {
    "ja": re.compile(r"[。！？!?][」』”](?:と|って|など|[、をがはにものでだ])"),
    "zh": re.compile(r"[。！？!?，][」』”][^。！？!?，“”「」『』]{0,8}[说說道问問喊叫答]"),
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
    ends, start, end = list[int](), 0, 0
    for piece in pieces:
        end += len(piece)
        if end == len(window) or not _goes_on(window, start, end, language):
            ends.append(end)
            start = end
    return ends


def _goes_on(window: str, start: int, end: int, language: str) -> bool:
    """Whether a sentence from `start` goes on at `end`, where the library ends it."""
    last, following, tail = window[end - 1], window[end], window[max(start, end - 16) : end]
    if _LATIN.match(following) and last in ".!?" and _LATIN.match(window[end - 2 : end - 1]):
        return True  # ASP.NET
    if following.islower() and not window[start : start + 1].islower() and _STOP.search(tail):
        return True  # a writer who begins sentences with capitals
    if (no_end := _NO_ENDS.get(language)) and no_end.search(tail):
        return True
    if language == "de" and _ORDINAL.search(tail):
        return True
    if (quoted := _QUOTED.get(language)) and quoted.match(window, max(start, end - 2)):
        return True
    return bool(_NUMBER.fullmatch(window, start, end))


def _cut(window: str) -> int:
    """Where a sentence is cut that fills a window: after its last space, if it has one in its second half."""
    place = max(window.rfind(" "), window.rfind("\xa0")) + 1
    return place if place > len(window) // 2 else len(window)
