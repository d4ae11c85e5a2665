"""English scenes of two to five sentences, from the same grammar as the pairs, for decoder-only models.

A scene introduces a person or group and then refers to them by pronouns. The rules determine the entropy of the
grammar exactly: no model can reach a lower loss on scenes drawn from it. Scenes have no German translation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import combinations
from typing import NamedTuple

from model.corpus.grammar import Choice, Join, Rule, Value, one_of
from model.corpus.inflection import (
    HER,
    HIS,
    NO_ARTICLE,
    NOW,
    THEIR,
    A,
    Determiner,
    Phrase,
    conjugate,
    indefinite_article,
)
from model.corpus.lexicon import ACCESSORIES, ANIMALS, GARMENTS, PEOPLE, STAYING, VERBS, Noun
from model.corpus.phrases import THINGS, determiner, joins, nominal, pattern, predicate, staying, together


class Hero(NamedTuple):
    """The person or group of a scene, and the words that refer to them."""

    nouns: tuple[Noun, ...]
    plural: bool
    subject: str
    object: str
    owner: Determiner


_CHILD = next(noun for noun in PEOPLE if noun.en == "child")  # neither he nor she
_MEN = tuple(noun for noun in PEOPLE if noun.gender == "m")
_WOMEN = tuple(noun for noun in PEOPLE if noun.gender != "m" and noun != _CHILD)
_HEROES = (
    Hero(_MEN, False, "he", "him", HIS),
    Hero(_WOMEN, False, "she", "her", HER),
    Hero(PEOPLE, True, "they", "them", THEIR),
)

Part = Callable[..., Rule[Phrase]]  # one sentence of a scene (two for a described thing), from a hero and `novel`


_DOES = pattern("{0.en} {1.verb.auxiliary} {1.verb.en} {1.complement.en}")


def _start(hero: Hero, verb: str) -> str:
    """ "she is wearing" """
    group = conjugate(VERBS[verb], NOW, plural=hero.plural)
    return f"{hero.subject} {group.auxiliary} {group.en}"


def _new(nouns: tuple[Noun, ...], *, plural: bool, novel: bool) -> Rule[Phrase]:
    article = determiner("new", plural=plural)
    return nominal(nouns, article, plural=plural, case="nom", novel=novel, with_adjective=3, without=1)


def _opening(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "A tall woman is waiting in front of the station." """
    person = partial(_new, hero.nouns, plural=hero.plural)
    return Choice(joins(novel, _DOES, person, partial(staying, "person", plural=hero.plural)))


def _clothes(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "She is wearing a red coat and a green hat." """
    article, start = Value(NO_ARTICLE if hero.plural else A), _start(hero, "wear")
    garment, accessory = (
        partial(nominal, nouns, article, plural=hero.plural, case="acc", without=0) for nouns in (GARMENTS, ACCESSORIES)
    )
    both = joins(novel, pattern(start + " {0.en} and {1.en}"), garment, accessory)
    return Choice([Join(pattern(start + " {0.en}"), garment(novel=novel)), Choice(both)])


_MOODS = ("cold", "thirsty", "late", "alone", "busy", "cold and thirsty", "cold and alone", "busy and late")


def _mood(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "She is cold and alone." These adjectives describe no person elsewhere: nothing contradicts "a happy woman"."""
    verb = "are" if hero.plural else "is"
    return one_of([pattern(f"{hero.subject} {verb} {mood}")() for mood in _MOODS])


def _carried(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "She is carrying a small suitcase." """
    things = [
        nominal(THINGS, determiner("new", plural=plural), plural=plural, case="acc", novel=novel, without=0)
        for plural in (False, True)
    ]
    return Join(pattern(_start(hero, "carry") + " {0.en}"), Choice(things, [2, 1]))


_STATES = ("old", "new", "big", "small", "beautiful", "expensive", "cheap")
_COLOURS = ("red", "blue", "green", "yellow", "black", "white")


def _described(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "She is carrying a suitcase. The suitcase is old and red." """
    things = [Phrase(f"{indefinite_article(thing.en)} {thing.en}. The {thing.en}", "") for thing in THINGS]
    put = pattern(_start(hero, "carry") + " {0.en} is {1} and {2}")
    return Join(put, one_of(things), one_of(_STATES), one_of(_COLOURS))


def _animal(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "Her black dog is sleeping under the table." """
    animal = partial(nominal, ANIMALS, Value(hero.owner), plural=False, case="nom")
    return Choice(joins(novel, _DOES, animal, partial(staying, "animal", plural=False)))


_BESIDE = ("next to", "in front of", "behind", "near")


def _company(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "Next to her a small boy is playing." """
    put = pattern("{0} " + hero.object + " {1.en} {2.auxiliary} {2.en}")

    def of(plural: bool) -> Rule[Phrase]:
        verbs = [conjugate(verb, NOW, plural=plural) for verb in STAYING["person"]]
        return Join(put, one_of(_BESIDE), _new(PEOPLE, plural=plural, novel=novel), one_of(verbs))

    return Choice([of(False), of(True)], [2, 1])


def _wish(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "She wants to buy a blue hat." """
    pronoun = Value(Phrase(hero.subject, ""))
    return Join(_DOES, pronoun, predicate("person", "wish", hero.owner, plural=hero.plural, brief=False, novel=novel))


_PARTS: tuple[tuple[Part, int, bool], ...] = (  # in the order of a scene: rule, sentences, can be novel
    (_clothes, 1, True),
    (_mood, 1, False),
    (_carried, 1, True),
    (_described, 2, False),
    (_animal, 1, True),
    (_company, 1, True),
    (_wish, 1, True),
)


def _sequences() -> list[tuple[tuple[Part, bool], ...]]:
    """The sequences of one to four sentences after the first; at most one mentions a carried thing."""
    found = []
    for size in range(1, 5):
        for chosen in combinations(_PARTS, size):
            rules = [part for part, _, _ in chosen]
            if sum(length for _, length, _ in chosen) <= 4 and not (_carried in rules and _described in rules):
                found.append(tuple((part, can_be_novel) for part, _, can_be_novel in chosen))
    return found


@cache
def _scene(hero: Hero, parts: tuple[tuple[Part, bool], ...], novel: bool) -> Rule[Phrase]:
    following = (partial(part, hero) if can_be_novel else part(hero, False) for part, can_be_novel in parts)
    return Choice(joins(novel, together, partial(_opening, hero), *following))


@cache
def scene_rule(novel: bool) -> Rule[Phrase]:
    """All scenes: with exactly one held-out combination when novel, with none otherwise."""
    return Choice(
        [Choice([_scene(hero, parts, novel) for parts in _sequences()]) for hero in _HEROES],
        [2, 2, 1],
    )
