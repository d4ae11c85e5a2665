"""English sentences with the word "bank" in two senses, which the rest of the sentence decides, and their German
translations.

"I arrived at the bank after crossing the river" is an example of lectures on contextual vectors; with "street" it is
another bank. In German they are two words, "Ufer" and "Bank". The standard library suffices to import this module.
"""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

Sense = Literal["shore", "money"]
WORD = "bank"


class Subject(NamedTuple):
    """A subject in both languages."""

    en: str
    de: str
    is_plural: bool


class Deed(NamedTuple):
    """An activity at a bank, in the past: German singular and plural, which end in the same words."""

    en: str
    singular: str
    plural: str
    rest: str


SUBJECTS = (
    Subject("I", "Ich", False),
    Subject("She", "Sie", False),
    Subject("He", "Er", False),
    Subject("We", "Wir", True),
    Subject("They", "Sie", True),
    Subject("The farmer", "Der Bauer", False),
    Subject("The children", "Die Kinder", True),
    Subject("The old man", "Der alte Mann", False),
)
MOMENTS = (
    ("at noon", "mittags"),
    ("in the evening", "abends"),
    ("on Monday", "am Montag"),
    ("on Sunday", "am Sonntag"),
)
CROSSED: dict[Sense, dict[str, str]] = {  # English noun → German genitive
    "shore": {
        "river": "des Flusses",
        "stream": "des Baches",
        "canal": "des Kanals",
        "lake": "des Sees",
        "ford": "der Furt",
    },
    "money": {
        "street": "der Straße",
        "road": "der Landstraße",
        "square": "des Platzes",
        "avenue": "der Allee",
        "crossing": "der Kreuzung",
    },
}
DONE: dict[Sense, tuple[Deed, ...]] = {
    "shore": (
        Deed("caught a fish", "fing", "fingen", "einen Fisch"),
        Deed("watched the boats", "beobachtete", "beobachteten", "die Boote"),
        Deed("fed the ducks", "fütterte", "fütterten", "die Enten"),
    ),
    "money": (
        Deed("opened an account", "eröffnete", "eröffneten", "ein Konto"),
        Deed("paid the rent", "zahlte", "zahlten", "die Miete"),
        Deed("changed some coins", "wechselte", "wechselten", "einige Münzen"),
    ),
}
_AT: dict[Sense, str] = {"shore": "am Ufer", "money": "an der Bank"}
_TO: dict[Sense, str] = {"shore": "ans Ufer", "money": "zur Bank"}


def crossing(subject: str, crossed: str) -> str:
    """The example of the lectures with these words."""
    return f"{subject} arrived at the bank after crossing the {crossed}."


class Sentence(NamedTuple):
    """A sentence with one "bank", its translation, and the sense."""

    en: str
    de: str
    sense: Sense


def sentences(seed: int, count: int) -> list[Sentence]:
    """`count` sentences of both senses; the same seed gives the same ones on every machine."""
    rng, drawn = random.Random(seed), []
    for _ in range(count):
        sense, subject = rng.choice(list(CROSSED)), rng.choice(SUBJECTS)
        came = f"{subject.de} {'kamen' if subject.is_plural else 'kam'}"
        (crossed, genitive), deed = rng.choice(list(CROSSED[sense].items())), rng.choice(DONE[sense])
        did = f"{deed.plural if subject.is_plural else deed.singular} {deed.rest}"
        moment, when = rng.choice(MOMENTS)
        example, german = crossing(subject.en, crossed), f"{came} {_AT[sense]} an nach dem Überqueren {genitive}"
        forms = (
            (example, f"{german}."),
            (f"{example[:-1]} and {deed.en}.", f"{german} und {did}."),
            (f"{subject.en} came to the bank {moment} and {deed.en}.", f"{came} {_TO[sense]} {when} und {did}."),
        )
        drawn.append(Sentence(*rng.choice(forms), sense))
    return drawn
