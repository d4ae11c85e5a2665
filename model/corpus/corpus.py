"""The embedded corpus: a seeded English→German scene grammar with exact ground truth.

`pairs` draws translation pairs, `sentences` is the grammar. English sentences are unambiguous: each has exactly one
German translation, so that exact match is a fair metric. Certain adjective-noun and verb-place combinations are held
out: a train sentence contains none of them, a test sentence exactly one. `scenes` draws English scenes of several
sentences for decoder-only models (see `model.corpus.scenes`).

Draws are independent: a sentence can occur more than once. The standard library suffices to import this module.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from typing import Literal, NamedTuple, TypeVar

from model.corpus.grammar import Choice, Join, Rule, Value, one_of, weighted
from model.corpus.inflection import HER, HIS, SIMPLE, THEIR, Determiner, Phrase, conjugate, join_words
from model.corpus.lexicon import SAYING, Noun
from model.corpus.phrases import (
    NOUNS,
    Kind,
    Position,
    Predicate,
    Use,
    determiner,
    joins,
    nominal,
    outfit,
    pattern,
    predicate,
    staying,
    together,
)
from model.corpus.scenes import scene_rule

T = TypeVar("T")
Split = Literal["train", "test"]


class Clause(NamedTuple):
    """A subject and its predicate in each word order."""

    english: str
    question: str
    verb_second: str  # German main clauses
    verb_first: str  # German questions, and main clauses that begin with another constituent
    verb_last: str  # German subordinate clauses
    combinations: tuple[tuple[str, str], ...]


def clause_of(subject: Phrase, predicate: Predicate) -> Clause:
    """The clause of a subject and its predicate."""
    verb, complement = predicate
    return Clause(
        join_words(subject.en, verb.auxiliary, verb.en, complement.en),
        join_words(verb.auxiliary, subject.en, verb.en, complement.en),
        join_words(subject.de, verb.finite, verb.adverb, complement.de, verb.end),
        join_words(verb.finite, subject.de, verb.adverb, complement.de, verb.end),
        join_words(subject.de, verb.adverb, complement.de, verb.cluster),
        subject.combinations + complement.combinations,
    )


_PLAIN = pattern("{0.english}", "{0.verb_second}")


class Subjects(NamedTuple):
    """Nouns with the same kind and gender, which decide predicates and relative pronouns."""

    kind: Kind
    gender: str
    nouns: tuple[Noun, ...]

    def owner(self, *, plural: bool) -> Determiner | None:
        """ "his", "her", "their"; None for "child" and animals, whose pronouns differ between the languages."""
        if self.kind != "person":
            return None
        return THEIR if plural else {"m": HIS, "f": HER}.get(self.gender)


SUBJECTS = tuple(
    Subjects(kind, gender, tuple(noun for noun in nouns if noun.gender == gender))
    for kind, nouns in NOUNS.items()
    for gender in "mfn"
)
LIVING = tuple(subjects for subjects in SUBJECTS if subjects.kind in ("person", "animal"))
_WEIGHT = {"person": 4, "animal": 2, "lying": 1, "standing": 1}  # per noun


def _each_subject(rule: Callable[[Subjects, bool], Rule[T]], subjects: tuple[Subjects, ...]) -> Rule[T]:
    """One rule per group of subjects, with singular and plural 3:2."""
    return Choice(
        [Choice([rule(group, False), rule(group, True)], [3, 2]) for group in subjects],
        [len(group.nouns) * _WEIGHT[group.kind] for group in subjects],
    )


@cache
def subject(group: Subjects, *, plural: bool, position: Position, dressed: bool, novel: bool) -> Rule[Phrase]:
    """The subject, optionally with its clothes."""
    determiners = determiner(position, plural=plural, countable=group.kind in ("person", "animal"))

    bare = partial(nominal, group.nouns, determiners, plural=plural, case="nom")
    if not dressed or group.kind != "person":
        return bare(novel=novel)
    return Choice([bare(novel=novel), Choice(joins(novel, together, bare, partial(outfit, plural)))], [3, 1])


@cache
def clause(use: Use, *, position: Position, brief: bool, novel: bool) -> Rule[Clause]:
    def of(group: Subjects, plural: bool) -> Rule[Clause]:
        named = partial(subject, group, plural=plural, position=position, dressed=not brief)
        does = partial(predicate, group.kind, use, group.owner(plural=plural), plural=plural, brief=brief)
        return Choice(joins(novel, clause_of, named, does))

    return _each_subject(of, SUBJECTS if use in ("statement", "meanwhile") else LIVING)


def statement(novel: bool) -> Rule[Phrase]:
    """ "The man is waiting in the park." """
    return Join(_PLAIN, clause("statement", position="opening", brief=False, novel=novel))


_TIMES: tuple[tuple[Use, tuple[Phrase, ...]], ...] = (
    ("now", (Phrase("today", "heute"), Phrase("now", "jetzt"))),
    ("tomorrow", (Phrase("tomorrow", "morgen"), Phrase("on Sunday", "am Sonntag"), Phrase("on Monday", "am Montag"))),
    (
        "habit",
        (Phrase("in the morning", "am Morgen"), Phrase("in the evening", "am Abend"), Phrase("in winter", "im Winter")),
    ),
)


def after_time(novel: bool) -> Rule[Phrase]:
    """ "Today the man is waiting": German keeps the verb in second place."""
    put = pattern("{0.en} {1.english}", "{0.de} {1.verb_first}")
    return Choice(
        [Join(put, one_of(times), clause(use, position="inside", brief=False, novel=novel)) for use, times in _TIMES]
    )


def after_place(novel: bool) -> Rule[Phrase]:
    """ "In the park two dogs are sleeping." """
    put = pattern("{1.complement.en} {0.en} {1.verb.auxiliary} {1.verb.en}", "{1.complement.de} {1.verb.finite} {0.de}")

    def of(group: Subjects, plural: bool) -> Rule[Phrase]:
        named = partial(subject, group, plural=plural, position="new", dressed=True)
        return Choice(joins(novel, put, named, partial(staying, group.kind, plural=plural)))

    return _each_subject(of, SUBJECTS)


_SUBORDINATE: tuple[tuple[Use, Phrase], ...] = (
    ("clause", Phrase("because", "weil")),
    ("meanwhile", Phrase("while", "während")),
)


def subordinate(novel: bool) -> Rule[Phrase]:
    """ "… because the woman is singing": verb-last in German; a subordinate clause in front inverts the main clause."""

    def order(put: Callable[..., Phrase], position: Position) -> Rule[Phrase]:
        rules: list[Rule[Phrase]] = []
        for use, word in _SUBORDINATE:
            main, reason = (partial(clause, use, position=place, brief=True) for place in (position, "inside"))
            rules += joins(novel, put, main, Value(word), reason)
        return Choice(rules)

    last = pattern("{0.english} {1.en} {2.english}", "{0.verb_second}, {1.de} {2.verb_last}")
    first = pattern("{1.en} {2.english}, {0.english}", "{1.de} {2.verb_last}, {0.verb_first}")
    return Choice([order(last, "opening"), order(first, "inside")], [2, 1])


def coordinate(novel: bool) -> Rule[Phrase]:
    """ "… and the woman is singing", "…, but the woman is singing"."""
    put = pattern("{0.english}{1.en} {2.english}", "{0.verb_second}{1.de} {2.verb_second}")
    one, other = (partial(clause, "clause", position=position, brief=True) for position in ("opening", "inside"))
    return Choice(joins(novel, put, one, one_of([Phrase(" and", " und"), Phrase(", but", ", aber")]), other))


def reported(novel: bool) -> Rule[Phrase]:
    """ "The woman says that the boy is sleeping." """

    def speaking(novel: bool) -> Rule[Clause]:
        def of(group: Subjects, plural: bool) -> Rule[Clause]:
            verbs = [Predicate(conjugate(verb, SIMPLE, plural=plural), Phrase("", "")) for verb in SAYING]
            named = subject(group, plural=plural, position="opening", dressed=True, novel=novel)
            return Join(clause_of, named, one_of(verbs))

        return _each_subject(of, tuple(group for group in LIVING if group.kind == "person"))

    put = pattern("{0.english} that {1.english}", "{0.verb_second}, dass {1.verb_last}")
    return Choice(joins(novel, put, speaking, partial(clause, "clause", position="inside", brief=True)))


def relative(novel: bool) -> Rule[Phrase]:
    """ "The man who is wearing a red coat …": the German pronoun agrees with the noun, the clause is verb-last."""

    def of(group: Subjects, plural: bool) -> Rule[Clause]:
        pronoun = Phrase(
            "who" if group.kind == "person" else "that",
            "die" if plural else {"m": "der", "f": "die", "n": "das"}[group.gender],
        )

        def put(noun: Phrase, described: Predicate, main: Predicate) -> Clause:
            inner = clause_of(pronoun, described)
            combinations = noun.combinations + inner.combinations
            return clause_of(Phrase(f"{noun.en} {inner.english}", f"{noun.de}, {inner.verb_last},", combinations), main)

        named = partial(subject, group, plural=plural, position="opening", dressed=False)
        does = partial(predicate, group.kind, "clause", group.owner(plural=plural), plural=plural, brief=True)
        return Choice(joins(novel, put, named, does, does))

    return Join(_PLAIN, _each_subject(of, LIVING))


def question(novel: bool) -> Rule[Phrase]:
    """ "Has the man …?", "Why is the man …?" """
    plain = pattern("{0.question}", "{0.verb_first}", end="?")
    why = pattern("why {0.question}", "warum {0.verb_first}", end="?")
    return Choice(
        [
            Join(put, clause(use, position="inside", brief=False, novel=novel))
            for put, use in ((plain, "question"), (why, "asking"))
        ]
    )


_RULES: dict[str, tuple[Callable[[bool], Rule[Phrase]], int]] = {  # by kind, with its weight
    "statement": (statement, 10),
    "time first": (after_time, 5),
    "place first": (after_place, 3),
    "subordinate": (subordinate, 3),
    "coordinate": (coordinate, 2),
    "reported": (reported, 2),
    "relative": (relative, 3),
    "question": (question, 2),
}
KINDS = tuple(_RULES)


@cache
def sentences(split: Split) -> Rule[Phrase]:
    """The whole grammar."""
    return weighted([(rule(split == "test"), weight) for rule, weight in _RULES.values()])


def pairs(seed: int, count: int, split: Split) -> list[tuple[str, str]]:
    """`count` English and German sentences; the same seed gives the same pairs on every machine."""
    rule, uniform = sentences(split), random.Random(seed).random
    return [(sentence.en, sentence.de) for sentence in (rule.draw(uniform) for _ in range(count))]


def kinds(seed: int, count: int, split: Split) -> list[tuple[str, str]]:
    """English sentences and their kinds (KINDS): a classification task with exact labels."""
    random_numbers = random.Random(seed)
    drawn = []
    for _ in range(count):
        kind = KINDS[random_numbers.randrange(len(KINDS))]
        sentence = _RULES[kind][0](split == "test").draw(random_numbers.random)
        drawn.append((sentence.en, kind))
    return drawn


def scenes(seed: int, count: int, split: Split) -> list[str]:
    """English scenes of two to five sentences; the same seed gives the same scenes on every machine."""
    rule, uniform = scene_rule(split == "test"), random.Random(seed).random
    return [rule.draw(uniform).en for _ in range(count)]
