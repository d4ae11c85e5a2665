"""The embedded corpus: a seeded English→German scene grammar with exact ground truth.

`pairs` draws translation pairs, `count_sentences` returns the exact number of sentences. English sentences are
unambiguous: each has exactly one German translation, so that exact match is a fair metric. Certain adjective-noun and
verb-place combinations are held out: a train sentence contains none of them, a test sentence exactly one. `scenes`
draws English scenes of several sentences for decoder-only models (see `model.corpus.scenes`).

Draws are independent: a sentence can occur more than once. The standard library suffices to import this module.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

from model.corpus.grammar import Choice, Join, Rule, Value, one_of
from model.corpus.inflection import HER, HIS, SIMPLE, THEIR, Determiner, Phrase, conjugate, join_words
from model.corpus.lexicon import SAYING, Noun
from model.corpus.phrases import (
    NOUNS,
    Kind,
    Position,
    Predicate,
    Use,
    determiner,
    nominal,
    outfit,
    predicate,
    spread,
    staying,
)
from model.corpus.scenes import scene_rule

Split = Literal["train", "test"]


class Clause(NamedTuple):
    """A subject and its predicate, before word order is applied."""

    subject: Phrase
    predicate: Predicate

    @property
    def combinations(self) -> tuple[tuple[str, str], ...]:
        return self.subject.combinations + self.predicate.complement.combinations

    def english(self) -> str:
        verb, complement = self.predicate
        return join_words(self.subject.en, verb.auxiliary, verb.en, complement.en)

    def english_question(self) -> str:
        verb, complement = self.predicate
        return join_words(verb.auxiliary, self.subject.en, verb.en, complement.en)

    def verb_second(self) -> str:
        verb, complement = self.predicate
        return join_words(self.subject.de, verb.finite, verb.adverb, complement.de, verb.end)

    def verb_first(self) -> str:
        """The word order of questions, and of main clauses that begin with another constituent."""
        verb, complement = self.predicate
        return join_words(verb.finite, self.subject.de, verb.adverb, complement.de, verb.end)

    def verb_last(self) -> str:
        verb, complement = self.predicate
        return join_words(self.subject.de, verb.adverb, complement.de, verb.cluster)


class Sentence(NamedTuple):
    en: str
    de: str
    combinations: tuple[tuple[str, str], ...]  # (adjective, noun) and (verb, place), in English


def _sentence(en: str, de: str, *clauses: Clause | Phrase, end: str = ".") -> Sentence:
    combinations = tuple(pair for clause in clauses for pair in clause.combinations)
    return Sentence(en[0].upper() + en[1:] + end, de[0].upper() + de[1:] + end, combinations)


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


def _each_subject(rule: Callable[[Subjects, bool], Rule[Clause]], subjects: tuple[Subjects, ...]) -> Rule[Clause]:
    """One clause rule per group of subjects, with singular and plural 3:2."""
    return Choice(
        [Choice([rule(group, False), rule(group, True)], [3, 2]) for group in subjects],
        [len(group.nouns) * _WEIGHT[group.kind] for group in subjects],
    )


@cache
def subject(group: Subjects, *, plural: bool, position: Position, dressed: bool, novel: bool) -> Rule[Phrase]:
    """The subject, optionally with its clothes."""
    determiners = determiner(position, plural=plural, countable=group.kind in ("person", "animal"))

    def bare(novel: bool) -> Rule[Phrase]:
        return nominal(group.nouns, determiners, plural=plural, case="nom", novel=novel)

    if not dressed or group.kind != "person":
        return bare(novel)

    def wear(person: Phrase, clothes: Phrase) -> Phrase:
        combinations = person.combinations + clothes.combinations
        return Phrase(f"{person.en} {clothes.en}", f"{person.de} {clothes.de}", combinations)

    clothed = [Join(wear, bare(first), outfit(plural, second)) for first, second in spread(novel, 2)]
    return Choice([bare(novel), Choice(clothed)], [3, 1])


@cache
def clause(use: Use, *, position: Position, brief: bool, novel: bool) -> Rule[Clause]:
    def of(group: Subjects, plural: bool) -> Rule[Clause]:
        owner = group.owner(plural=plural)
        parts = [
            Join(
                Clause,
                subject(group, plural=plural, position=position, dressed=not brief, novel=first),
                predicate(group.kind, use, owner, plural=plural, brief=brief, novel=second),
            )
            for first, second in spread(novel, 2)
        ]
        return Choice(parts)

    return _each_subject(of, SUBJECTS if use in ("statement", "meanwhile") else LIVING)


def statement(novel: bool) -> Rule[Sentence]:
    """ "The man is waiting in the park." """
    return Join(
        lambda c: _sentence(c.english(), c.verb_second(), c),
        clause("statement", position="opening", brief=False, novel=novel),
    )


_TIMES: tuple[tuple[Use, tuple[tuple[str, str], ...]], ...] = (
    ("now", (("today", "heute"), ("now", "jetzt"))),
    ("tomorrow", (("tomorrow", "morgen"), ("on Sunday", "am Sonntag"), ("on Monday", "am Montag"))),
    ("habit", (("in the morning", "am Morgen"), ("in the evening", "am Abend"), ("in winter", "im Winter"))),
)


def after_time(novel: bool) -> Rule[Sentence]:
    """ "Today the man is waiting": German keeps the verb in second place."""

    def put(time: tuple[str, str], c: Clause) -> Sentence:
        return _sentence(f"{time[0]} {c.english()}", f"{time[1]} {c.verb_first()}", c)

    return Choice(
        [Join(put, one_of(times), clause(use, position="inside", brief=False, novel=novel)) for use, times in _TIMES]
    )


def after_place(novel: bool) -> Rule[Sentence]:
    """ "In the park two dogs are sleeping." """

    def put(c: Clause) -> Sentence:
        verb, where = c.predicate
        en = join_words(where.en, c.subject.en, verb.auxiliary, verb.en)
        return _sentence(en, join_words(where.de, verb.finite, c.subject.de), c)

    def of(group: Subjects, plural: bool) -> Rule[Clause]:
        return Choice(
            [
                Join(
                    Clause,
                    subject(group, plural=plural, position="new", dressed=True, novel=first),
                    staying(group.kind, plural=plural, novel=second),
                )
                for first, second in spread(novel, 2)
            ]
        )

    return Join(put, _each_subject(of, SUBJECTS))


_SUBORDINATE: tuple[tuple[Use, tuple[str, str]], ...] = (
    ("clause", ("because", "weil")),
    ("meanwhile", ("while", "während")),
)
_COORDINATE = (("and", "und"), ("but", "aber"))


def subordinate(novel: bool) -> Rule[Sentence]:
    """ "… because the woman is singing": verb-last in German; a subordinate clause in front inverts the main clause."""

    def last(c: Clause, word: tuple[str, str], why: Clause) -> Sentence:
        en = f"{c.english()} {word[0]} {why.english()}"
        return _sentence(en, f"{c.verb_second()}, {word[1]} {why.verb_last()}", c, why)

    def first(c: Clause, word: tuple[str, str], why: Clause) -> Sentence:
        en = f"{word[0]} {why.english()}, {c.english()}"
        return _sentence(en, f"{word[1]} {why.verb_last()}, {c.verb_first()}", c, why)

    def order(put: Callable[[Clause, tuple[str, str], Clause], Sentence], position: Position) -> Rule[Sentence]:
        return Choice(
            [
                Join(
                    put,
                    clause(use, position=position, brief=True, novel=one),
                    Value(word),
                    clause(use, position="inside", brief=True, novel=other),
                )
                for use, word in _SUBORDINATE
                for one, other in spread(novel, 2)
            ]
        )

    return Choice([order(last, "opening"), order(first, "inside")], [2, 1])


def coordinate(novel: bool) -> Rule[Sentence]:
    """ "… and the woman is singing", "…, but the woman is singing"."""

    def put(one: Clause, word: tuple[str, str], other: Clause) -> Sentence:
        comma = "," if word[0] == "but" else ""
        en = f"{one.english()}{comma} {word[0]} {other.english()}"
        return _sentence(en, f"{one.verb_second()}{comma} {word[1]} {other.verb_second()}", one, other)

    return Choice(
        [
            Join(
                put,
                clause("clause", position="opening", brief=True, novel=first),
                one_of(_COORDINATE),
                clause("clause", position="inside", brief=True, novel=second),
            )
            for first, second in spread(novel, 2)
        ]
    )


def reported(novel: bool) -> Rule[Sentence]:
    """ "The woman says that the boy is sleeping." """

    def put(speaker: Clause, said: Clause) -> Sentence:
        en = f"{speaker.english()} that {said.english()}"
        return _sentence(en, f"{speaker.verb_second()}, dass {said.verb_last()}", speaker, said)

    def speaking(novel: bool) -> Rule[Clause]:
        def of(group: Subjects, plural: bool) -> Rule[Clause]:
            verbs = [Predicate(conjugate(verb, SIMPLE, plural=plural), Phrase("", "")) for verb in SAYING]
            return Join(
                Clause,
                subject(group, plural=plural, position="opening", dressed=True, novel=novel),
                one_of(verbs),
            )

        return _each_subject(of, tuple(group for group in LIVING if group.kind == "person"))

    return Choice(
        [
            Join(put, speaking(first), clause("clause", position="inside", brief=True, novel=second))
            for first, second in spread(novel, 2)
        ]
    )


def relative(novel: bool) -> Rule[Sentence]:
    """ "The man who is wearing a red coat …": the German pronoun agrees with the noun, the clause is verb-last."""

    def of(group: Subjects, plural: bool) -> Rule[Clause]:
        pronoun = Phrase(
            "who" if group.kind == "person" else "that",
            "die" if plural else {"m": "der", "f": "die", "n": "das"}[group.gender],
        )

        def put(noun: Phrase, described: Predicate, main: Predicate) -> Clause:
            inner = Clause(pronoun, described)
            combinations = noun.combinations + inner.combinations
            return Clause(
                Phrase(f"{noun.en} {inner.english()}", f"{noun.de}, {inner.verb_last()},", combinations), main
            )

        owner = group.owner(plural=plural)
        return Choice(
            [
                Join(
                    put,
                    subject(group, plural=plural, position="opening", dressed=False, novel=first),
                    predicate(group.kind, "clause", owner, plural=plural, brief=True, novel=second),
                    predicate(group.kind, "clause", owner, plural=plural, brief=True, novel=third),
                )
                for first, second, third in spread(novel, 3)
            ]
        )

    return Join(lambda c: _sentence(c.english(), c.verb_second(), c), _each_subject(of, LIVING))


def question(novel: bool) -> Rule[Sentence]:
    """ "Has the man …?", "Why is the man …?" """

    def plain(c: Clause) -> Sentence:
        return _sentence(c.english_question(), c.verb_first(), c, end="?")

    def asking(c: Clause) -> Sentence:
        return _sentence(f"why {c.english_question()}", f"warum {c.verb_first()}", c, end="?")

    return Choice(
        [
            Join(plain, clause("question", position="inside", brief=False, novel=novel)),
            Join(asking, clause("asking", position="inside", brief=False, novel=novel)),
        ]
    )


@cache
def sentences(split: Split) -> Rule[Sentence]:
    """The whole grammar, with exact `count` and `entropy`."""
    kinds = (statement, after_time, after_place, subordinate, coordinate, reported, relative, question)
    return Choice([kind(split == "test") for kind in kinds], [10, 5, 3, 3, 2, 2, 3, 2])


def pairs(seed: int, count: int, split: Split) -> list[tuple[str, str]]:
    """`count` English and German sentences; the same seed gives the same pairs on every machine."""
    rule, uniform = sentences(split), random.Random(seed).random
    return [(sentence.en, sentence.de) for sentence in (rule.draw(uniform)[0] for _ in range(count))]


KINDS = ("statement", "time first", "place first", "subordinate", "coordinate", "reported", "relative", "question")


def kinds(seed: int, count: int, split: Split) -> list[tuple[str, str]]:
    """English sentences and their kinds (KINDS): a classification task with exact labels."""
    rules = (statement, after_time, after_place, subordinate, coordinate, reported, relative, question)
    random_numbers = random.Random(seed)
    drawn = []
    for _ in range(count):
        place = random_numbers.randrange(len(KINDS))
        sentence, _ = rules[place](split == "test").draw(random_numbers.random)
        drawn.append((sentence.en, KINDS[place]))
    return drawn


def count_sentences(split: Split) -> int:
    """The exact number of different sentences."""
    return sentences(split).count


def scenes_with_logprob(seed: int, count: int, split: Split) -> list[tuple[str, float]]:
    """English scenes, each with its exact log-probability under the grammar, in nats."""
    rule, uniform = scene_rule(split == "test"), random.Random(seed).random
    drawn = (rule.draw(uniform) for _ in range(count))
    return [(scene.text, logprob) for scene, logprob in drawn]


def scenes(seed: int, count: int, split: Split) -> list[str]:
    """English scenes of two to five sentences; the same seed gives the same scenes on every machine."""
    return [text for text, _ in scenes_with_logprob(seed, count, split)]


def scene_entropy(split: Split) -> float:
    """The exact entropy of a scene in nats: the loss of a perfect model of the split."""
    return scene_rule(split == "test").entropy
