"""The terms of a glossary in one translation (`Terminology`): which are met, and how those that are not get there.

With a beam, the text is translated once more, and the missing terms are phrases that the answer must have
(`ForcedTerms`). Otherwise the words that the model aligned with a missing term are replaced by its preferred form, as
it is: nothing is inflected.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from service.errors import InvalidRequest, RequestError, Unsatisfiable
from service.options import OPTIONS, DecodingOptions
from service.text.edits import Edit, edited, moved
from service.text.glossary import Glossary, Occurrence, Term, capitalized, forms_in
from service.text.mark_placement import Links, placed
from service.text.mark_tree import Element, Node
from service.text.words import words

MAX_PHRASES = OPTIONS["phrases"].max_items
_PLACE = re.compile(r"options\.phrases\[(\d+)\]")


class Terminology:
    """The terms that the glossary has for one text."""

    def __init__(self, glossary: Glossary, text: str) -> None:
        self._text = text
        by_source: dict[str, Occurrence] = {}
        for occurrence in glossary.occurrences(text):
            by_source.setdefault(occurrence.term.source, occurrence)
        self._occurrences = list(by_source.values())

    @property
    def terms(self) -> list[Term]:
        """Each term of the text once."""
        return [occurrence.term for occurrence in self._occurrences]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The source and the preferred form of each."""
        return [(term.source, term.targets[0]) for term in self.terms]

    def unmet(self, translation: str) -> list[Term]:
        """The terms of which a translation has no form."""
        found = zip(self.terms, forms_in(self.terms, translation), strict=True)
        return [term for term, span in found if span is None]

    def forms(self, translation: str, can_have: Callable[[str], bool]) -> tuple[list[str], list[str]]:
        """Forms of the terms that a translation lacks, of each the first one that an answer can have, and the forms
        that it has. can_have: whether an answer can have a text."""
        missing, met = dict[str, None](), dict[str, None]()
        for term, span in zip(self.terms, forms_in(self.terms, translation), strict=True):
            if span is not None:
                met[translation[slice(*span)]] = None
            elif (form := next(filter(can_have, term.targets), None)) is not None:
                missing[form] = None
        return list(missing), [form for form in met if form not in missing]

    def replaced(self, translation: str, links: Links | None) -> tuple[str, Links | None]:
        """A translation with the preferred form instead of the words aligned with each missing term, and its links."""
        unmet = set(self.unmet(translation))
        if not unmet or links is None:
            return translation, links
        taken = [span for span in forms_in(self.terms, translation) if span is not None]
        missing: dict[Node, Term] = {
            Element(one.term.source, "x", one.start, one.end): one.term
            for one in self._occurrences
            if one.term in unmet
        }
        edits = []
        spans = words(translation)
        for cover in placed(list(missing), self._text, translation, links):
            free = [
                place
                for place in range(cover.start, cover.end)
                if all(spans[place][1] <= before or after <= spans[place][0] for before, after in taken)
            ]
            if run := _longest_run(free):
                start, end = spans[run[0]][0], spans[run[-1]][1]
                form = missing[cover.node].targets[0]
                starts_sentence = run[0] == 0 and translation[start].isupper()
                edits.append(Edit(start, end, capitalized(form) if starts_sentence else form))
        links = links._replace(target_spans=moved(links.target_spans, edits))
        return edited(translation, edits), links


class ForcedTerms:
    """The options of a second search, with a beam, for a translation that lacks terms; of another one for fewer terms
    if that is refused. The client's own phrases come first, then missing terms, then forms that terms have, which they
    keep."""

    def __init__(
        self, terms: Terminology, asked: DecodingOptions, translation: str, can_have: Callable[[str], bool]
    ) -> None:
        """asked: the options of the first search. can_have: whether an answer can have a phrase at all."""
        self._terms, self._asked, self._translation, self._can_have = terms, asked, translation, can_have
        self._excluded = (*asked.stop, *asked.bad_words)
        self._refused = set[str]()
        self._room = MAX_PHRASES - len(asked.phrases)
        self._phrases: list[str] = []

    def options(self) -> DecodingOptions | None:
        """Those of the next search; None: nothing is missing that could be had, or its order is the client's."""
        if (
            self._asked.beam_size < 2
            or self._room < 1
            or (self._asked.ordered_phrases and len(self._asked.phrases) > 1)
        ):
            return None
        missing, met = self._terms.forms(self._translation, self._is_possible)
        if not missing:
            return None
        met = [form for form in met if form not in self._asked.phrases]
        self._phrases = [*missing, *met][: self._room]
        phrases = (*self._asked.phrases, *self._phrases)
        return dataclasses.replace(self._asked, phrases=phrases, ordered_phrases=False)

    def _is_possible(self, form: str) -> bool:
        """Whether a form may be one more phrase. One that is given twice would have to occur twice."""
        return (
            form not in self._refused
            and form not in self._asked.phrases
            and not any(excluded in form for excluded in self._excluded)
            and self._can_have(form)
        )

    def without(self, error: RequestError) -> bool:
        """Leaves out the phrase that an error names, or else the last one, or if the search ended without an answer
        half of them. Returns whether the error is about them."""
        own, count = len(self._asked.phrases), len(self._phrases)
        if isinstance(error, Unsatisfiable):
            self._room = count // 2
            return True
        if not isinstance(error, InvalidRequest):
            return False
        if error.field == "options.phrases":
            self._room = count - 1
            return True
        place = _PLACE.fullmatch(error.field)
        if place is None or not own <= int(place[1]) < own + count:
            return False
        self._refused.add(self._phrases[int(place[1]) - own])
        return len(self._refused) <= MAX_PHRASES


def _longest_run(numbers: Sequence[int]) -> list[int]:
    """The longest part of ascending numbers without a gap, of several the first."""
    runs: list[list[int]] = [[]]
    for number in numbers:
        if runs[-1] and number > runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    return max(runs, key=len)
