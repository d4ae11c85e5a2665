"""Sentences whose "it" is one of two nouns, which only the last adjective decides, and their German translations.

"The animal did not cross the street because it was too tired": "es", as "Tier" is neuter; "… too wide": "sie", as
"Straße" is feminine. A model that translates the pronoun has to find its antecedent. Some pairs of nouns are held out:
a train sentence has none of them, a test sentence one. The standard library suffices to import this module.
"""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

Gender = Literal["m", "f", "n"]
Antecedent = Literal["animal", "place"]


class GenderedNoun(NamedTuple):
    """An English noun, its translation and the gender of that."""

    en: str
    de: str
    gender: Gender


class Sentence(NamedTuple):
    """A sentence and its translation. antecedent: of "it", one of the words `animal` and `place`."""

    en: str
    de: str
    animal: str
    place: str
    adjective: str
    antecedent: Antecedent
    pronoun: str  # the translation of "it"


ANIMALS = (
    GenderedNoun("animal", "Tier", "n"),
    GenderedNoun("dog", "Hund", "m"),
    GenderedNoun("cat", "Katze", "f"),
    GenderedNoun("horse", "Pferd", "n"),
    GenderedNoun("fox", "Fuchs", "m"),
    GenderedNoun("cow", "Kuh", "f"),
    GenderedNoun("pig", "Schwein", "n"),
    GenderedNoun("wolf", "Wolf", "m"),
    GenderedNoun("goat", "Ziege", "f"),
)
PLACES = (
    GenderedNoun("street", "Straße", "f"),
    GenderedNoun("river", "Fluss", "m"),
    GenderedNoun("field", "Feld", "n"),
    GenderedNoun("bridge", "Brücke", "f"),
    GenderedNoun("stream", "Bach", "m"),
    GenderedNoun("valley", "Tal", "n"),
    GenderedNoun("meadow", "Wiese", "f"),
    GenderedNoun("path", "Weg", "m"),
    GenderedNoun("moor", "Moor", "n"),
)
ADJECTIVES: dict[Antecedent, tuple[tuple[str, str], ...]] = {
    "animal": (("tired", "müde"), ("hungry", "hungrig"), ("old", "alt"), ("sick", "krank"), ("weak", "schwach")),
    "place": (("wide", "breit"), ("long", "lang"), ("dangerous", "gefährlich"), ("wet", "nass"), ("steep", "steil")),
}
_NOMINATIVE: dict[Gender, str] = {"m": "der", "f": "die", "n": "das"}
_ACCUSATIVE: dict[Gender, str] = {"m": "den", "f": "die", "n": "das"}
PRONOUNS: dict[Gender, str] = {"m": "er", "f": "sie", "n": "es"}
_HELD_OUT = 5  # of as many pairs of nouns one


def sentence(animal: GenderedNoun, place: GenderedNoun, antecedent: Antecedent, adjective: tuple[str, str]) -> Sentence:
    """The sentence of these words."""
    noun = animal if antecedent == "animal" else place
    subject, crossed = _NOMINATIVE[animal.gender].capitalize(), _ACCUSATIVE[place.gender]
    return Sentence(
        f"The {animal.en} did not cross the {place.en} because it was too {adjective[0]}.",
        f"{subject} {animal.de} überquerte {crossed} {place.de} nicht, weil {PRONOUNS[noun.gender]} zu "
        f"{adjective[1]} war.",
        animal.en,
        place.en,
        adjective[0],
        antecedent,
        PRONOUNS[noun.gender],
    )


def _pairs(*, is_test: bool) -> list[tuple[GenderedNoun, GenderedNoun]]:
    return [
        (animal, place)
        for row, animal in enumerate(ANIMALS)
        for column, place in enumerate(PLACES)
        if ((row + 2 * column) % _HELD_OUT == 0) == is_test
    ]


def held_out() -> list[tuple[GenderedNoun, GenderedNoun]]:
    """The pairs of an animal and a place that no train sentence has."""
    return _pairs(is_test=True)


def sentences(seed: int, count: int, split: Literal["train", "test"]) -> list[Sentence]:
    """`count` sentences; the same seed gives the same ones on every machine."""
    pairs, rng, drawn = _pairs(is_test=split == "test"), random.Random(seed), []
    for _ in range(count):
        (animal, place), antecedent = rng.choice(pairs), rng.choice(list(ADJECTIVES))
        drawn.append(sentence(animal, place, antecedent, rng.choice(ADJECTIVES[antecedent])))
    return drawn
