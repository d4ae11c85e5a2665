"""Word alignments of the embedded grammar: pairs of German and English words from its lexicon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from model.corpus import lexicon
from model.corpus.lexicon import Adjective, Noun, Place

ENDINGS = ("", "e", "en", "em", "er", "es")


@cache
def translations() -> dict[str, frozenset[str]]:
    """German form → the English forms it translates, in lower case: nouns, places and adjectives of one word each."""
    found: dict[str, set[str]] = {}
    for english, german in _entries():
        if all(word.isalpha() for word in (*english, *german)):
            for word in german:
                found.setdefault(word.lower(), set()).update(form.lower() for form in english)
    return {german: frozenset(english) for german, english in found.items()}


def _entries() -> Iterator[tuple[set[str], set[str]]]:
    for entry in _flat(tuple(vars(lexicon).values())):
        match entry:
            case Noun():
                german = {entry.de, entry.oblique or entry.de, entry.de_plural, entry.de_plural + "n"}
                yield {entry.en, entry.en_plural}, german
            case Place():
                yield {entry.en}, {entry.de, entry.genitive or entry.de}
            case Adjective():
                yield {entry.en}, {entry.stem + ending for ending in ENDINGS}


def _flat(values: Sequence[object]) -> Iterator[object]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        elif isinstance(value, dict):
            yield from _flat(tuple(value.values()))
        else:
            yield value


def links(english: Sequence[str], german: Sequence[str]) -> list[tuple[int, int]]:
    """(German place, English place) of the words with exactly one partner, which has no other partner itself."""
    found = []
    for place, word in enumerate(german):
        wanted = translations().get(word.lower(), frozenset())
        partners = [other for other, candidate in enumerate(english) if candidate.lower() in wanted]
        rivals = [other for other in german if wanted & translations().get(other.lower(), frozenset())]
        if len(partners) == 1 and len(rivals) == 1:
            found.append((place, partners[0]))
    return found
