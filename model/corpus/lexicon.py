"""The words of the embedded corpus: English and German, with gender, plural, case and verb forms.

The words themselves are in lexicon.toml; this module gives them types. Every English word has one German translation:
words with two German senses (bank, letter, castle, bag …) and nouns whose German gender English hides (teacher,
neighbour) are left out on purpose. `model.corpus.inflection` inflects the words, `model.corpus.corpus` builds
sentences from them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Gender = Literal["m", "f", "n"]
Case = Literal["nom", "acc", "dat", "gen"]


@dataclass(frozen=True)
class Noun:
    """English singular and plural, German gender, nominative singular and plural."""

    en: str
    en_plural: str
    gender: Gender
    de: str
    de_plural: str
    oblique: str = ""  # accusative and dative singular of weak nouns: der Junge, den Jungen


@dataclass(frozen=True)
class Adjective:
    en: str
    stem: str  # takes the German endings: dunkel → dunkl-


@dataclass(frozen=True)
class Preposition:
    en: str
    de: str
    case: Case


@dataclass(frozen=True)
class Place:
    """A noun that is only used in the singular, with the prepositions and adjectives that suit it."""

    en: str
    gender: Gender
    de: str
    where: tuple[Preposition, ...]  # location
    whither: tuple[Preposition, ...]  # motion
    adjectives: tuple[Adjective, ...]
    genitive: str = ""  # only for places that take "near"


@dataclass(frozen=True)
class Verb:
    """English base, third person, -ing form and past participle; German infinitive, third person and participle.

    The third person plural of every German verb here equals its infinitive. A separable verb carries its prefix apart:
    `infinitive` and `third` are without it, `participle` is complete.
    """

    en: str
    en_third: str
    en_ing: str
    en_participle: str
    infinitive: str
    third: str
    participle: str
    particle: str = ""  # English: look FOR, pick UP
    prefix: str = ""  # German: AUF heben
    perfect_with_sein: bool = False
    stative: bool = False  # English uses the simple present: "needs", not "is needing"
    object_case: Case = "acc"


def read_table(name: str) -> dict[str, Any]:
    """A TOML file of this package."""
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


_WORDS = read_table("lexicon.toml")
PREPOSITIONS = {en: Preposition(en, *german) for en, german in _WORDS["prepositions"].items()}
ADJECTIVES = {  # by group of nouns or places
    group: tuple(Adjective(en, _WORDS["adjectives"][en]) for en in members)
    for group, members in _WORDS["adjective_groups"].items()
}
UNSUITABLE = {(adjective, noun) for adjective, nouns in _WORDS["unsuitable"].items() for noun in nouns}

_NOUNS = {group: tuple(Noun(*entry) for entry in entries) for group, entries in _WORDS["nouns"].items()}
PEOPLE, ANIMALS = _NOUNS["person"], _NOUNS["animal"]
LYING_THINGS, STANDING_THINGS = _NOUNS["lying"], _NOUNS["standing"]
GARMENTS, ACCESSORIES = _NOUNS["garment"], _NOUNS["accessory"]


def _prepositions(names: Iterable[str]) -> tuple[Preposition, ...]:
    return tuple(PREPOSITIONS[name] for name in names)


PLACES = tuple(
    Place(
        en,
        gender,
        de,
        _prepositions(group["where"]),
        _prepositions(group["whither"]),
        ADJECTIVES[group["adjectives"]],
        *genitive,
    )
    for group in _WORDS["places"]
    for en, gender, de, *genitive in group["entries"]
)


def _verb(en: str, de: str, **fields: Any) -> Verb:
    """en, de: forms in the order of `Verb`, separated by blanks."""
    forms: tuple[Any, ...] = (*en.split(), *de.split())
    return Verb(*forms, **fields)


VERBS = {name: _verb(**fields) for name, fields in _WORDS["verbs"].items()}  # by their English base


def _verbs(names: Iterable[str]) -> tuple[Verb, ...]:
    return tuple(VERBS[name] for name in names)


_VERB_GROUPS = {group: _verbs(names) for group, names in _WORDS["verb_groups"].items()}
TRADING, HANDLING, DRESSING = _VERB_GROUPS["trading"], _VERB_GROUPS["handling"], _VERB_GROUPS["dressing"]
MEETING, TENDING, GIVING = _VERB_GROUPS["meeting"], _VERB_GROUPS["tending"], _VERB_GROUPS["giving"]
SAYING, ALONE = _VERB_GROUPS["saying"], _VERB_GROUPS["alone"]
STAYING = {kind: _verbs(names) for kind, names in _WORDS["staying"].items()}  # verbs of location
MOVING = {  # verbs of motion, each with the prepositions it takes
    kind: tuple((VERBS[name], _prepositions(ways)) for name, ways in verbs.items())
    for kind, verbs in _WORDS["moving"].items()
}
