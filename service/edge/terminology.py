"""The terms of a glossary in one translation (`Terminology`): which are met, and how those that are not get there.

With a beam, the text is translated once more, and the missing terms are phrases that the answer must have. Otherwise
the words that the model aligned with a missing term are replaced by its preferred form, as it is: nothing is inflected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from service.options import OPTIONS, DecodingOptions
from service.text.edits import Edit, edited, moved
from service.text.glossary import Glossary, Occurrence, Term, capitalized, forms_in
from service.text.mark_placement import Links, placed
from service.text.mark_tree import Element, Node
from service.text.words import words

MAX_PHRASES = OPTIONS["phrases"].max_items


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

    def unmet(self, translation: str) -> list[Term]:
        """The terms of which a translation has no form."""
        found = zip(self.terms, forms_in(self.terms, translation), strict=True)
        return [term for term, span in found if span is None]

    def constrained(self, options: DecodingOptions, translation: str) -> DecodingOptions | None:
        """Options with which a beam meets the terms that a translation lacks, or None if it lacks none. The terms that
        it has keep their form; of more than fit, those that are missing go first."""
        room = MAX_PHRASES - len(options.phrases)
        if options.beam_size < 2 or room < 1 or not (unmet := self.unmet(translation)):
            return None
        met = [translation[slice(*span)] for span in forms_in(self.terms, translation) if span is not None]
        phrases = [term.targets[0] for term in unmet] + met
        return dataclasses.replace(options, phrases=(*options.phrases, *phrases[:room]))

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


def _longest_run(numbers: Sequence[int]) -> list[int]:
    """The longest part of ascending numbers without a gap, of several the first."""
    runs: list[list[int]] = [[]]
    for number in numbers:
        if runs[-1] and number > runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    return max(runs, key=len)
