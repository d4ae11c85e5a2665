"""English scenes of two to five sentences, from the same grammar as the pairs, for decoder-only models.

A scene introduces a person or group and then refers to them by pronouns. The exact log-probability of a scene and the
entropy of the grammar are known: no model can reach a lower perplexity on scenes drawn from it. Scenes have no German
translation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations
from typing import NamedTuple

from model.corpus.grammar import Choice, Join, Rule, Value, one_of
from model.corpus.inflection import HER, HIS, NO_ARTICLE, NOW, THEIR, A, Determiner, Phrase, conjugate
from model.corpus.lexicon import ACCESSORIES, ANIMALS, GARMENTS, PEOPLE, STAYING, VERBS, Noun
from model.corpus.phrases import THINGS, Predicate, determiner, nominal, predicate, spread, staying


class Scene(NamedTuple):
    text: str
    combinations: tuple[tuple[str, str], ...]  # (adjective, noun) and (verb, place)


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

Part = Callable[[Hero, bool], Rule[Phrase]]  # one sentence of a scene (two for a described thing), novel or not


def _says(subject: Phrase, does: Predicate) -> Phrase:
    verb, complement = does
    words = (subject.en, verb.auxiliary, verb.en, complement.en)
    return _sentence(" ".join(word for word in words if word), subject, complement)


def _sentence(text: str, *phrases: Phrase) -> Phrase:
    pairs = tuple(pair for phrase in phrases for pair in phrase.combinations)
    return Phrase(text[0].upper() + text[1:] + ".", "", pairs)


def _somebody(nouns: tuple[Noun, ...], *, plural: bool, novel: bool) -> Rule[Phrase]:
    article = determiner("new", plural=plural)
    return nominal(nouns, article, plural=plural, case="nom", novel=novel, with_adjective=3, without=1)


def _opening(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "A tall woman is waiting in front of the station." """
    return Choice(
        [
            Join(
                _says,
                _somebody(hero.nouns, plural=hero.plural, novel=first),
                staying("person", plural=hero.plural, novel=second),
            )
            for first, second in spread(novel, 2)
        ]
    )


def _clothes(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "She is wearing a red coat and a green hat." """

    def worn(nouns: tuple[Noun, ...], novel: bool) -> Rule[Phrase]:
        article = Value(NO_ARTICLE if hero.plural else A)
        return nominal(nouns, article, plural=hero.plural, case="acc", novel=novel, without=0)

    def put(first: Phrase, second: Phrase | None) -> Phrase:
        named = first.en if second is None else f"{first.en} and {second.en}"
        verb = conjugate(VERBS["wear"], NOW, plural=hero.plural)
        parts = (first,) if second is None else (first, second)
        return _sentence(f"{hero.subject} {verb.auxiliary} {verb.en} {named}", *parts)

    both = [Join(put, worn(GARMENTS, first), worn(ACCESSORIES, second)) for first, second in spread(novel, 2)]
    return Choice([Join(put, worn(GARMENTS, novel), Value(None)), Choice(both)])


_MOODS = ("cold", "thirsty", "late", "alone", "busy", "cold and thirsty", "cold and alone", "busy and late")


def _mood(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "She is cold and alone." These adjectives describe no person elsewhere: nothing contradicts "a happy woman"."""
    verb = "are" if hero.plural else "is"
    return one_of([_sentence(f"{hero.subject} {verb} {mood}") for mood in _MOODS])


def _carried(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "She is carrying a small suitcase." """
    verb = conjugate(VERBS["carry"], NOW, plural=hero.plural)
    things = [
        nominal(THINGS, determiner("new", plural=plural), plural=plural, case="acc", novel=novel, without=0)
        for plural in (False, True)
    ]
    start = f"{hero.subject} {verb.auxiliary} {verb.en}"
    return Join(lambda thing: _sentence(f"{start} {thing.en}", thing), Choice(things, [2, 1]))


_STATES = ("old", "new", "big", "small", "beautiful", "expensive", "cheap")
_COLOURS = ("red", "blue", "green", "yellow", "black", "white")


def _described(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "She is carrying a suitcase. The suitcase is old and red." """
    verb = conjugate(VERBS["carry"], NOW, plural=hero.plural)
    start = f"{hero.subject} {verb.auxiliary} {verb.en}"

    def put(thing: Noun, state: str, colour: str) -> Phrase:
        article = "an" if thing.en[0] in "aeiou" else "a"
        first = _sentence(f"{start} {article} {thing.en}")
        return first._replace(en=f"{first.en} The {thing.en} is {state} and {colour}.")

    return Join(put, one_of(THINGS), one_of(_STATES), one_of(_COLOURS))


def _animal(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "Her black dog is sleeping under the table." """
    return Choice(
        [
            Join(
                _says,
                nominal(ANIMALS, Value(hero.owner), plural=False, case="nom", novel=first),
                staying("animal", plural=False, novel=second),
            )
            for first, second in spread(novel, 2)
        ]
    )


_BESIDE = ("next to", "in front of", "behind", "near")


def _company(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "Next to her a small boy is playing." """

    def put(where: str, who: Phrase, doing: str) -> Phrase:
        return _sentence(f"{where} {hero.object} {who.en} {doing}", who)

    def of(plural: bool) -> Rule[Phrase]:
        doing = []
        for verb in STAYING["person"]:
            group = conjugate(verb, NOW, plural=plural)
            doing.append(f"{group.auxiliary} {group.en}")
        return Join(put, one_of(_BESIDE), _somebody(PEOPLE, plural=plural, novel=novel), one_of(doing))

    return Choice([of(False), of(True)], [2, 1])


def _wish(hero: Hero, novel: bool) -> Rule[Phrase]:
    """ "She wants to buy a blue hat." """
    pronoun = Value(Phrase(hero.subject, ""))
    return Join(_says, pronoun, predicate("person", "wish", hero.owner, plural=hero.plural, brief=False, novel=novel))


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


def _told(*sentences: Phrase) -> Scene:
    return Scene(" ".join(s.en for s in sentences), tuple(pair for s in sentences for pair in s.combinations))


@cache
def _scene(hero: Hero, parts: tuple[tuple[Part, bool], ...], novel: bool) -> Rule[Scene]:
    able = [0, *(place for place, (_, can_be_novel) in enumerate(parts, 1) if can_be_novel)]
    rules = []
    for marks in spread(novel, len(able)):
        marked = dict(zip(able, marks, strict=True))
        following = [part(hero, marked.get(place, False)) for place, (part, _) in enumerate(parts, 1)]
        rules.append(Join(_told, _opening(hero, marked[0]), *following))
    return Choice(rules)


@cache
def scene_rule(novel: bool) -> Rule[Scene]:
    """All scenes: with exactly one held-out combination when novel, with none otherwise."""
    return Choice(
        [Choice([_scene(hero, parts, novel) for parts in _sequences()]) for hero in _HEROES],
        [2, 2, 1],
    )
