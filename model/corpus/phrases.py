"""Rules for the parts of a sentence of the embedded corpus: noun phrases, places, predicates.

Every rule function takes `novel`: when true it derives phrases with exactly one held-out combination (of an adjective
and its noun, or of a verb and its place), otherwise phrases without any. Rules are built once and shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypeVar

from model.corpus import inflection, lexicon
from model.corpus.grammar import Choice, Join, Rule, Value, one_of, weighted
from model.corpus.inflection import (
    Determiner,
    Phrase,
    Tense,
    VerbGroup,
    combinations_of,
    conjugate,
    join_words,
    noun_phrase,
    number_word,
    place_phrase,
)
from model.corpus.lexicon import Adjective, Case, Noun, Place, Preposition, Verb

T = TypeVar("T")
Kind = Literal["person", "animal", "lying", "standing"]
Use = Literal["statement", "clause", "question", "asking", "meanwhile", "now", "tomorrow", "habit", "wish"]

Part = Rule[Any] | Callable[..., Rule[Any]]  # of a phrase: a rule, or a function that makes one from `novel`
Position = Literal["opening", "inside", "object", "new"]  # first in a sentence, later, an object, not yet known

THINGS = lexicon.LYING_THINGS + lexicon.STANDING_THINGS
CLOTHES = lexicon.GARMENTS + lexicon.ACCESSORIES
NOUNS: dict[Kind, tuple[Noun, ...]] = {
    "person": lexicon.PEOPLE,
    "animal": lexicon.ANIMALS,
    "lying": lexicon.LYING_THINGS,
    "standing": lexicon.STANDING_THINGS,
}
_GROUPS = (
    (lexicon.PEOPLE, lexicon.ADJECTIVES["person"]),
    (lexicon.ANIMALS, lexicon.ADJECTIVES["animal"]),
    (THINGS, lexicon.ADJECTIVES["thing"]),
    (CLOTHES, lexicon.ADJECTIVES["clothing"]),
)
_ADJECTIVES = {noun.en: adjectives for nouns, adjectives in _GROUPS for noun in nouns}
_ADJECTIVES.update({place.en: place.adjectives for place in lexicon.PLACES})
_ORDER = {name: index for index, name in enumerate(_ADJECTIVES)}


def spread(novel: bool, parts: int) -> list[tuple[bool, ...]]:
    """Which of the parts contain the held-out combination: none, or each of them in turn."""
    if not novel:
        return [(False,) * parts]
    return [tuple(index == chosen for index in range(parts)) for chosen in range(parts)]


def joins(novel: bool, function: Callable[..., T], *parts: Part) -> list[Rule[T]]:
    """The function of the parts, once for each way to spread the held-out combination over those that can have it."""
    rules: list[Rule[T]] = []
    for marks in spread(novel, sum(not isinstance(part, Rule) for part in parts)):
        remaining = iter(marks)
        chosen = [part if isinstance(part, Rule) else part(novel=next(remaining)) for part in parts]
        rules.append(Join(function, *chosen))
    return rules


@cache
def adjectives_of(noun: str, *, novel: bool) -> tuple[Adjective, ...]:
    """Adjectives that may stand before the noun; one in eight combinations is held out."""
    suitable = [adjective for adjective in _ADJECTIVES[noun] if (adjective.en, noun) not in lexicon.UNSUITABLE]
    return tuple(
        adjective for index, adjective in enumerate(suitable) if ((3 * _ORDER[noun] + index) % 8 == 0) == novel
    )


@cache
def adjective(noun: str, novel: bool, with_adjective: int = 1, without: int = 1) -> Rule[Adjective | None]:
    """An optional adjective before the noun, with these weights; mandatory if novel."""
    described: Rule[Adjective | None] = one_of(adjectives_of(noun, novel=novel))
    if novel or not without:
        return described
    return Choice([described, Value(None)], [with_adjective, without])


@cache
def determiner(
    position: Position, *, plural: bool, owner: Determiner | None = None, countable: bool = True
) -> Rule[Determiner]:
    """A determiner. `owner` is one of his, her, their; "every" goes only with `countable` nouns (people, animals).

    A sentence opens with small numbers only, which keeps the number of capitalised words low.
    """
    small, large = one_of([number_word(n) for n in range(2, 13)]), one_of([number_word(n) for n in range(13, 100)])
    number = small if position in ("opening", "new") else weighted([(small, 2), (large, 3)])
    options: list[tuple[Rule[Determiner], int]]
    if position == "new":
        options = [(number, 3), (Value(inflection.SOME), 1)] if plural else [(Value(inflection.A), 1)]
    elif plural:
        some = one_of([inflection.SOME, inflection.MANY, inflection.THESE])
        options = [(Value(inflection.THE), 3), (number, 4), (some, 3)]
        if position != "opening":
            options.append((Value(inflection.NO_ARTICLE), 2))
    else:
        options = [(Value(inflection.THE), 4), (Value(inflection.A), 4), (Value(inflection.THIS), 1)]
        if position != "object" and countable:
            options.append((Value(inflection.EVERY), 1))
    if owner:
        options.append((Value(owner), 2))
    return weighted(options)


@cache
def nominal(
    nouns: Sequence[Noun],
    determiners: Rule[Determiner],
    *,
    plural: bool,
    case: Case,
    novel: bool,
    with_adjective: int = 1,
    without: int = 1,
) -> Rule[Phrase]:
    """A determiner, an optional adjective and one of the nouns."""

    def phrase_of(noun: Noun) -> Rule[Phrase]:
        def put(article: Determiner, quality: Adjective | None) -> Phrase:
            return noun_phrase(noun, article, quality, plural=plural, case=case)

        return Join(put, determiners, adjective(noun.en, novel, with_adjective, without))

    return Choice([phrase_of(noun) for noun in nouns])


@cache
def objects(nouns: Sequence[Noun], case: Case, owner: Determiner | None, novel: bool) -> Rule[Phrase]:
    """An object, singular and plural 2:1."""
    numbers = [
        nominal(nouns, determiner("object", plural=plural, owner=owner), plural=plural, case=case, novel=novel)
        for plural in (False, True)
    ]
    return Choice(numbers, [2, 1])


def together(*parts: Phrase | Preposition) -> Phrase:
    """The parts one after another in both languages."""
    en, de = join_words(*(part.en for part in parts)), join_words(*(part.de for part in parts))
    return Phrase(en, de, combinations_of(parts))


def pattern(en: str, de: str = "", end: str = ".") -> Callable[..., Phrase]:
    """Makes sentences of parts by a pattern for each language, in which {0} is the first part."""

    def put(*parts: object) -> Phrase:
        texts = (text.format(*parts) for text in (en, de))
        left, right = (text and text[0].upper() + text[1:] + end for text in texts)
        return Phrase(left, right, combinations_of(parts))

    return put


@cache
def outfit(plural: bool, novel: bool) -> Rule[Phrase]:
    """ "in a red coat", "with green hats"."""

    def worn(preposition: Preposition, nouns: Sequence[Noun]) -> Rule[Phrase]:
        article = Value(inflection.NO_ARTICLE if plural else inflection.A)
        garment = nominal(nouns, article, plural=plural, case="dat", novel=novel, without=0)
        return Join(together, Value(preposition), garment)

    return Choice(
        [worn(lexicon.PREPOSITIONS["in"], lexicon.GARMENTS), worn(lexicon.PREPOSITIONS["with"], lexicon.ACCESSORIES)],
        [2, 1],
    )


class Spot(NamedTuple):
    """A place and the prepositions allowed with it."""

    place: Place
    prepositions: tuple[Preposition, ...]


def _spots(allowed: Sequence[Preposition] | None, *, motion: bool) -> tuple[Spot, ...]:
    found = []
    for place in lexicon.PLACES:
        prepositions = place.whither if motion else place.where
        chosen = tuple(p for p in prepositions if allowed is None or p in allowed)
        if chosen:
            found.append(Spot(place, chosen))
    return tuple(found)


def _spots_by_verb() -> dict[str, tuple[Spot, ...]]:
    spots = {verb.en: _spots(None, motion=False) for verbs in lexicon.STAYING.values() for verb in verbs}
    spots |= {verb.en: _spots(ways, motion=True) for verbs in lexicon.MOVING.values() for verb, ways in verbs}
    return spots | {verb.en: _spots((lexicon.PREPOSITIONS["in"],), motion=False) for verb in lexicon.TRADING}


_SPOTS = _spots_by_verb()


@cache
def spots_of(verb: str, *, novel: bool) -> tuple[Spot, ...]:
    """Where the verb can take place; one in seven combinations of verb and place is held out."""
    shift = list(_SPOTS).index(verb)
    return tuple(spot for index, spot in enumerate(_SPOTS[verb]) if ((index + 2 * shift) % 7 == 0) == novel)


@cache
def _at(spot: Spot, novel: bool) -> Rule[Phrase]:
    articles = Choice([Value(inflection.THE), Value(inflection.A), Value(inflection.THIS)], [5, 3, 1])
    preposition = one_of(spot.prepositions)
    return Join(place_phrase, preposition, articles, adjective(spot.place.en, novel, 1, 2), Value(spot.place))


@cache
def somewhere(verb: str, novel: bool) -> Rule[Phrase]:
    """Where the verb takes place; novel in the combination of verb and place, or of place and adjective."""

    def with_verb(spot: Spot, novel_adjective: bool) -> Rule[Phrase]:
        def mark(where: Phrase) -> Phrase:
            return where._replace(combinations=((verb, spot.place.en), *where.combinations))

        return Join(mark, _at(spot, novel_adjective))

    return Choice(
        [
            Choice([with_verb(spot, novel_adjective) for spot in spots_of(verb, novel=novel_spot)])
            for novel_spot, novel_adjective in spread(novel, 2)
        ]
    )


class Predicate(NamedTuple):
    """All of a clause but its subject: the verb group, and what comes between its parts."""

    verb: VerbGroup
    complement: Phrase

    @property
    def combinations(self) -> tuple[tuple[str, str], ...]:
        return self.complement.combinations


_NOW, _PERFECT, _HABITS = Value(inflection.NOW), Value(inflection.PERFECT), one_of(inflection.HABITS)
_AUXILIARIES, _MODALS = one_of(inflection.AUXILIARIES), one_of((*inflection.AUXILIARIES, inflection.WANT))


def _tenses(*modals: tuple[Rule[Tense], int]) -> dict[Use, Rule[Tense]]:
    return {
        "statement": weighted([(_NOW, 4), (_HABITS, 2), (_PERFECT, 2), *modals]),
        "clause": weighted([(_NOW, 4), (_PERFECT, 2), *modals]),
        "meanwhile": _NOW,
        "now": weighted([(_NOW, 4), *modals]) if modals else _NOW,
        "habit": Value(inflection.SIMPLE),
    }


_STATIVE_TENSES = _tenses()  # of verbs like "need": no modal, and no question, which would take "do"
_TENSES: dict[Use, Rule[Tense]] = {
    **_tenses((_MODALS, 2)),
    "tomorrow": _MODALS,
    "wish": Value(inflection.WANT),
    "question": weighted([(_PERFECT, 1), (_AUXILIARIES, 1)]),
    "asking": weighted([(_NOW, 4), (_PERFECT, 2), (_AUXILIARIES, 2)]),
}


def _with_place(verb: Verb, owner: Determiner | None, novel: bool) -> Rule[Phrase]:
    """ "a red apple in the park"."""
    return Choice(joins(novel, together, partial(objects, THINGS, "acc", owner), partial(somewhere, verb.en)))


@cache
def _gift(owner: Determiner | None, novel: bool) -> Rule[Phrase]:
    """ "the boy a red apple": dative before accusative."""
    people, things = partial(objects, lexicon.PEOPLE, "dat", None), partial(objects, THINGS, "acc", owner)
    return Choice(joins(novel, together, people, things))


Complements = Sequence[tuple[Verb, Rule[Phrase]]]


def _complements(
    kind: Kind, owner: Determiner | None, *, brief: bool, novel: bool
) -> Iterator[tuple[Complements, int]]:
    """Groups of verbs with their complements, and the weight of each group."""
    yield [(verb, somewhere(verb.en, novel)) for verb in lexicon.STAYING[kind]], 5
    if kind in lexicon.MOVING:
        yield [(verb, somewhere(verb.en, novel)) for verb, _ in lexicon.MOVING[kind]], 3
    if kind != "person":
        return
    if brief and not novel:
        yield [(verb, Value(Phrase("", ""))) for verb in lexicon.ALONE], 3
    things = objects(THINGS, "acc", owner, novel)
    yield [(verb, things) for verb in (*lexicon.TRADING, *lexicon.HANDLING)], 4
    yield [(verb, objects(CLOTHES, "acc", owner, novel)) for verb in lexicon.DRESSING], 2
    yield [(verb, objects(lexicon.PEOPLE, verb.object_case, None, novel)) for verb in lexicon.MEETING], 3
    yield [(verb, objects(lexicon.ANIMALS, verb.object_case, owner, novel)) for verb in lexicon.TENDING], 2
    if not brief:
        yield [(verb, _with_place(verb, owner, novel)) for verb in lexicon.TRADING], 2
        yield [(verb, _gift(owner, novel)) for verb in lexicon.GIVING], 2


@cache
def predicate(
    kind: Kind, use: Use, owner: Determiner | None, *, plural: bool, brief: bool, novel: bool
) -> Rule[Predicate]:
    """Predicates of a kind of subject. `brief` ones are for sentences of two clauses."""
    groups: list[tuple[Rule[Predicate], int]] = []
    for complements, weight in _complements(kind, owner, brief=brief, novel=novel):
        options: list[Rule[Predicate]] = []
        for verb, complement in complements:
            tenses = _STATIVE_TENSES if verb.stative else _TENSES
            if use in tenses:
                used = tenses[use] if kind in ("person", "animal") else _NOW
                group = Join(lambda tense, verb=verb: conjugate(verb, tense, plural=plural), used)
                options.append(Join(Predicate, group, complement))
        groups.append((Choice(options), weight))
    return weighted(groups)


@cache
def staying(kind: Kind, *, plural: bool, novel: bool) -> Rule[Predicate]:
    """Predicates of location in the present tense, whose place can also open the sentence."""
    return Choice(
        [
            Join(Predicate, Value(conjugate(verb, inflection.NOW, plural=plural)), somewhere(verb.en, novel))
            for verb in lexicon.STAYING[kind]
        ]
    )
