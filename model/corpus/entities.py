"""English scenes with their people, animals and places as labelled spans: each noun with the adjective before it."""

from __future__ import annotations

import re
from functools import cache

from model.corpus.corpus import Split, scenes
from model.corpus.lexicon import ADJECTIVES, ANIMALS, PEOPLE, PLACES

LABELS = ("animal", "person", "place")


@cache
def _labels() -> dict[str, str]:
    """The label of each noun."""
    groups = (("person", PEOPLE), ("animal", ANIMALS))
    nouns = {form: label for label, group in groups for noun in group for form in (noun.en, noun.en_plural)}
    return nouns | {place.en: "place" for place in PLACES}


@cache
def _pattern() -> re.Pattern[str]:
    """A noun, after at most one adjective."""
    adjectives = "|".join(sorted({adjective.en for group in ADJECTIVES.values() for adjective in group}))
    nouns = "|".join(sorted(_labels(), key=len, reverse=True))
    return re.compile(rf"\b(?:(?:{adjectives}) )?({nouns})\b")


def spans(text: str) -> list[tuple[int, int, str]]:
    """Start, end and label of each person, animal and place, in the order of the text."""
    return [(*found.span(), _labels()[found[1]]) for found in _pattern().finditer(text)]


def entities(seed: int, count: int, split: Split) -> list[tuple[str, str]]:
    """Scenes, and their spans as training data writes them."""
    texts = scenes(seed, count, split)
    return [(text, " ".join(f"{start}:{end}:{label}" for start, end, label in spans(text)) or "-") for text in texts]


def animals(seed: int, count: int, split: Split) -> list[tuple[str, str]]:
    """Scenes, each labelled "animal" if an animal occurs in it (not quite half of them), and "-" otherwise."""
    texts = scenes(seed, count, split)
    return [(text, "animal" if any(label == "animal" for _, _, label in spans(text)) else "-") for text in texts]
