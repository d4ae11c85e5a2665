"""Documents of three sentences whose pronouns need context: "It is red." is "Er ist rot.", "Sie ist rot." or "Es ist
rot.", by the gender of the German noun in the first sentence.

A model that reads sentences alone cannot know the pronoun; one that reads the sentence before beside each can, of the
third sentence only by its translation, because "it" came before already.
"""

from __future__ import annotations

import random
from functools import cache, partial
from itertools import permutations

from model.corpus.corpus import Split, clause_of
from model.corpus.grammar import Choice, Join, Rule, Value, one_of
from model.corpus.inflection import Phrase, combinations_of
from model.corpus.lexicon import Gender
from model.corpus.phrases import NOUNS, Kind, determiner, joins, nominal, pattern, staying

SENTENCES = 3  # of each document
PRONOUNS: dict[Gender, str] = {"m": "er", "f": "sie", "n": "es"}
_KINDS: tuple[Kind, ...] = ("animal", "lying", "standing")
_QUALITIES = {  # of things and animals alike; predicates have no ending
    "old": "alt",
    "big": "groß",
    "small": "klein",
    "black": "schwarz",
    "white": "weiß",
    "brown": "braun",
    "beautiful": "schön",
}

Pair = tuple[str, str]


def _document(*sentences: Phrase) -> Phrase:
    """The sentences of a document as the lines of one phrase."""
    en, de = ("\n".join(getattr(one, side) for one in sentences) for side in ("en", "de"))
    return Phrase(en, de, combinations_of(sentences))


def _quality(pronoun: str) -> Rule[Phrase]:
    """ "It is old and black." """
    put = pattern("it is {0} and {2}", f"{pronoun} ist {{1}} und {{3}}")
    return one_of([put(*one, *other) for one, other in permutations(_QUALITIES.items(), 2)])


@cache
def documents(novel: bool) -> Rule[Phrase]:
    """All documents: with one held-out combination if novel, with none otherwise."""
    does = pattern("{0.english}", "{0.verb_second}")

    def of(kind: Kind, gender: Gender) -> Rule[Phrase]:
        nouns = tuple(noun for noun in NOUNS[kind] if noun.gender == gender)
        article, stays = determiner("opening", plural=False), partial(staying, kind, plural=False)
        named = partial(nominal, nouns, article, plural=False, case="nom")
        it = Value(Phrase("it", PRONOUNS[gender]))

        def opening(novel: bool) -> Rule[Phrase]:
            return Join(does, Choice(joins(novel, clause_of, named, stays)))

        def again(novel: bool) -> Rule[Phrase]:
            return Join(does, Choice(joins(novel, clause_of, it, stays)))

        quality = _quality(PRONOUNS[gender])
        orders = (quality, again), (again, quality), (quality, quality)
        return Choice([Choice(joins(novel, _document, opening, *following)) for following in orders])

    return Choice([of(kind, gender) for gender in PRONOUNS for kind in _KINDS])


def references(seed: int, count: int, split: Split) -> list[Pair]:
    """At least `count` sentences and their translations, document by document, SENTENCES of each."""
    rule, uniform = documents(split == "test"), random.Random(seed).random
    drawn = (rule.draw(uniform) for _ in range(-(-count // SENTENCES)))
    return [pair for document in drawn for pair in zip(document.en.split("\n"), document.de.split("\n"), strict=True)]
