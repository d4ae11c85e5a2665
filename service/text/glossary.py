"""Glossaries: terms of a source language with the forms that translate them (`Glossary`).

A term is found at the borders of words (`Borders`), longer ones first, and no two overlap. It is met by a translation
that has one of its forms at the borders of words. Nothing here knows models; how a translation gets its terms is in
`service.edge.requests.terminology`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from service.text.words import UNSPACED, Span, words

MAX_TERMS = 1000  # of one request
MAX_FORMS = 16  # of a term
MAX_TERM_BYTES = 256  # of a term or a form, as of a phrase
IGNORE_CASE = "ignore_case"
_ROOT = 0
# Letters and digits together, anything else by itself, as is what a joiner joins and a syllable of Hangul, each with
# the blanks before it: borders of words are borders of parts, and a term has the same parts wherever it stands.
_PARTS = re.compile(rf"\s*(?P<part>(?<=\u200d)\S|[^\W_{UNSPACED}\uac00-\ud7a3]+|\S)")


# What separates words that are written together: an apostrophe, unless it abbreviates the end of an English verb, a
# hyphen, slash, bracket or quotation mark, and a comma, colon or semicolon that no digit follows.
_SEPARATOR = re.compile(
    r"""
    (?<=\w)(?:
        ['\u2019\u02bc](?!(?:t|re|ve|ll|d|m)\b)
      | [-\u2010-\u2015/()\[\]{}<>"\u00ab\u00bb\u201c-\u201f\u2026]
      | [,;:](?!\d)
    )""",
    re.VERBOSE,
)
# Particles that follow a noun of Korean without a blank: a border is before them.
_KOREAN = re.compile(
    r"(?<=[\uac00-\ud7a3])(?:은|는|이|가|을|를|의|에|에게|에게서|에서|에는|에도|에서는|에서도|와|과|도|만|로|으로|"
    r"로서|으로서|로써|으로써|로는|으로는|까지|부터|보다|처럼|한테|께|께서|나|이나|랑|이랑|하고|마다|조차|밖에|"
    r"라|이라|라는|이라는|란|이란|입니다|이다)(?![\w])"
)


class GlossaryError(ValueError):
    """A glossary cannot be used: which term, what is wrong, and the fix. place: of the term, from 0."""

    def __init__(self, place: int, field: str, problem: str) -> None:
        super().__init__(problem)
        self.place, self.field = place, field


@dataclass(frozen=True)
class Term:
    """One term. targets: its forms, the preferred one first."""

    source: str
    targets: tuple[str, ...]
    ignore_case: bool = False


@dataclass(frozen=True)
class Occurrence:
    """A term in a text: text[start:end]."""

    term: Term
    start: int
    end: int


class Glossary:
    """Terms. A text of n words takes n steps, and for each word one more for each part that the term there goes on."""

    def __init__(self, terms: Sequence[Term] = (), *, max_terms: int = MAX_TERMS) -> None:
        """Raises GlossaryError."""
        if len(terms) > max_terms:
            raise GlossaryError(max_terms, "", f"must be at most {max_terms} terms, got {len(terms)}")
        self.terms: dict[str, Term] = {}
        self._next: dict[tuple[int, str], int] = {}  # a trie of their parts in lower case, from _ROOT
        self._ends: dict[int, list[Term]] = {}  # by the node of their last part, those that ignore case
        self._others: Glossary | None = None
        for place, term in enumerate(terms):
            _check(term, place)
            known = self.terms.setdefault(term.source, term)
            if known != term:
                with_case = known.ignore_case != term.ignore_case
                shown = " and ".join(_shown(one, with_case=with_case) for one in (known, term))
                problem = (
                    f"contradicts an earlier term: {term.source!r} has {shown}; give each source once, with all forms"
                )
                raise GlossaryError(place, "source", problem)
        for term in self.terms.values():
            node, parts = _ROOT, _Parts(term.source)
            for part in parts.lowered:
                node = self._next.setdefault((node, part), len(self._next) + 1)
            self._ends.setdefault(node, []).extend([term] if term.ignore_case else [])

    def over(self, others: Glossary) -> Glossary:
        """These terms, and of others those with another source. Takes no longer for many of them."""
        both = Glossary()
        both.terms, both._next, both._ends, both._others = self.terms, self._next, self._ends, others
        return both

    def occurrences(self, text: str) -> list[Occurrence]:
        """The terms of a text, in order."""
        borders, parts = Borders(text), _Parts(text)
        free, found = 0, list[Occurrence]()
        for start in sorted(borders.starts):
            if start < free:
                continue
            longest = self._longest(text, parts, start, borders.ends)
            if longest is not None:
                found.append(longest)
                free = longest.end
        return found

    def _longest(
        self, text: str, parts: _Parts, start: int, ends: Container[int], hidden: Container[str] = ()
    ) -> Occurrence | None:
        """The longest term at a word; of several the one in exactly this case. hidden: sources that do not count."""
        first = parts.numbers[start]
        follow, lowered = self._next.get, parts.lowered
        longest, node = None, follow((_ROOT, lowered[first].lstrip()))
        while node is not None:
            end = parts.ends[first]
            if node in self._ends and end in ends and (term := self._term(text[start:end], node, hidden)):
                longest = Occurrence(term, start, end)
            first += 1
            node = follow((node, lowered[first])) if first < len(lowered) else None
        if self._others is None:
            return longest
        other = self._others._longest(text, parts, start, ends, self.terms)
        return max(filter(None, (longest, other)), key=lambda one: one.end, default=None)

    def _term(self, text: str, node: int, hidden: Container[str]) -> Term | None:
        term = self.terms.get(text)
        if term is not None and text not in hidden:
            return term
        return next((one for one in self._ends[node] if one.source not in hidden), None)


class Borders:
    """Where terms may begin and end in a text: at its words, also at those that are written together with a separator
    (l'hôtel, API-Schlüssel, the dog's, email/phone), and before a particle of Korean."""

    def __init__(self, text: str) -> None:
        spans = words(text)
        self.starts, self.ends = {start for start, _ in spans}, {end for _, end in spans}
        for match in _SEPARATOR.finditer(text):
            self.ends.add(match.start())
            if match.end() < len(text) and text[match.end()].isalnum():
                self.starts.add(match.end())
        self.ends.update(match.start() for match in _KOREAN.finditer(text))


class _Parts:
    """The parts of a text. lowered: in lower case, with the blanks before each. ends: their places. numbers: of the
    parts, by where each begins after its blanks."""

    def __init__(self, text: str) -> None:
        self.lowered, self.ends, self.numbers = list[str](), list[int](), dict[int, int]()
        for number, match in enumerate(_PARTS.finditer(text)):
            self.numbers[match.start("part")] = number
            self.lowered.append(_lowered(match[0]))
            self.ends.append(match.end())


def forms_in(terms: Iterable[Term], translation: str) -> list[Span | None]:
    """For each term where a translation has one of its forms, or None."""
    borders = Borders(translation)
    starts, ends = borders.starts, borders.ends
    lowered, first = _lowered(translation), min(starts, default=0)

    def place_of(form: str, *, ignore_case: bool) -> Span | None:
        searched, wanted = (lowered, _lowered(form)) if ignore_case else (translation, form)
        place = searched.find(wanted)
        while place >= 0:
            if place in starts and place + len(form) in ends:
                return place, place + len(form)
            place = searched.find(wanted, place + 1)
        beginning = capitalized(form)
        if translation.startswith(beginning, first) and first + len(beginning) in ends:
            return first, first + len(beginning)
        return None

    def span_of(term: Term) -> Span | None:
        found = (place_of(form, ignore_case=term.ignore_case) for form in term.targets)
        return next((span for span in found if span is not None), None)

    return [span_of(term) for term in terms]


def form_in(term: Term, translation: str) -> Span | None:
    """Where a translation has a form of a term, or None."""
    return forms_in([term], translation)[0]


def _lowered(text: str) -> str:
    """A text in lower case, each character in its place: \u0130 alone would become two, i and a dot above it."""
    return text.replace("\u0130", "i").lower()


def capitalized(form: str) -> str:
    """A form at the beginning of a sentence."""
    return form[:1].upper() + form[1:]


def read_terms(lines: Iterable[str]) -> list[Term]:
    """The terms of a file: SOURCE<tab>FORM|FORM…, and optionally <tab>ignore_case. Blank lines and those that begin
    with # are skipped. Raises ValueError with the number of the line."""
    terms: list[Term] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, start=1):
        written = line.rstrip("\r\n")
        if not written.strip() or written.startswith("#"):
            continue
        fields = written.split("\t")
        if not 2 <= len(fields) <= 3 or fields[2:] not in ([], [IGNORE_CASE]):
            raise ValueError(
                f"line {number}: must be SOURCE<tab>FORM|FORM, optionally <tab>{IGNORE_CASE}, got {written!r:.80}"
            )
        targets = tuple(form.strip() for form in fields[1].split("|"))
        terms.append(Term(fields[0].strip(), targets, len(fields) == 3))
        numbers.append(number)
    try:
        Glossary(terms, max_terms=len(terms))
    except GlossaryError as error:
        raise ValueError(f"line {numbers[error.place]}: {error.field} {error}") from None
    return terms


def _shown(term: Term, *, with_case: bool) -> str:
    """The forms of a term, for an error. with_case: and whether it ignores case."""
    how = f" {'with' if term.ignore_case else 'without'} {IGNORE_CASE}" if with_case else ""
    return f"{'|'.join(term.targets)!r}{how}"


def _check(term: Term, place: int) -> None:
    if not 1 <= len(term.targets) <= MAX_FORMS:
        raise GlossaryError(place, "targets", f"must be 1..{MAX_FORMS} forms, got {len(term.targets)}")
    named = [("source", term.source), *((f"targets[{index}]", form) for index, form in enumerate(term.targets))]
    for field, text in named:
        if (size := len(text.encode())) > MAX_TERM_BYTES:
            raise GlossaryError(place, field, f"must be at most {MAX_TERM_BYTES} bytes, got {size}")
        if not text.strip() or text != text.strip():
            raise GlossaryError(place, field, f"must be a word or more, without blanks around it, got {text!r}")
