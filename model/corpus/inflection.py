"""English and German forms of the embedded corpus: noun phrases with their endings, number words, verb groups.

The endings and number words are in inflection.toml, the textbook tables (definite, indefinite and no article; Präsens,
Perfekt, modal with infinitive). `model.corpus.phrases` and `model.corpus.corpus` decide which words are combined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from model.corpus.lexicon import Adjective, Case, Noun, Place, Preposition, Verb, read_table

Number = Literal["m", "f", "n", "pl"]  # what an article agrees with: gender in the singular, none in the plural

_CASES: tuple[Case, ...] = ("nom", "acc", "dat", "gen")
_TABLES = read_table("inflection.toml")
_ADJECTIVE_ENDINGS = {"definite": "weak", "marked": "weak", "ein": "mixed", "fixed": "marked"}  # by kind of determiner


def _ending(table: str, number: Number, case: Case) -> str:
    forms: str = _TABLES["endings"][table][number]
    return forms.split()[_CASES.index(case)].replace("-", "")


class Phrase(NamedTuple):
    """The same phrase in both languages, with the (adjective, noun) and (verb, place) combinations it is made of."""

    en: str
    de: str
    combinations: tuple[tuple[str, str], ...] = ()


def combinations_of(parts: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """The combinations of all parts that have any."""
    return tuple(pair for part in parts for pair in getattr(part, "combinations", ()))


@dataclass(frozen=True)
class Determiner:
    """The determiner of a noun phrase. `de` is a stem, or the whole word if it is not inflected."""

    en: str
    de: str
    kind: Literal["definite", "marked", "ein", "fixed"]  # fixed: number words and the empty determiner

    def german(self, number: Number, case: Case) -> str:
        if self.kind == "fixed":
            return self.de
        return ("" if self.kind == "definite" else self.de) + _ending(self.kind, number, case)

    def adjective_ending(self, number: Number, case: Case) -> str:
        table = "marked" if self.de in ("einig", "viel") else _ADJECTIVE_ENDINGS[self.kind]
        return _ending(table, number, case)


THE, A, NO_ARTICLE = Determiner("the", "d", "definite"), Determiner("a", "ein", "ein"), Determiner("", "", "fixed")
THIS, EVERY = Determiner("this", "dies", "marked"), Determiner("every", "jed", "marked")
THESE, SOME = Determiner("these", "dies", "marked"), Determiner("some", "einig", "marked")
MANY = Determiner("many", "viel", "marked")
HIS, HER, THEIR = Determiner("his", "sein", "ein"), Determiner("her", "ihr", "ein"), Determiner("their", "ihr", "ein")


def join_words(*words: str) -> str:
    """The words that are not empty, with one blank between them."""
    return " ".join(word for word in words if word)


def indefinite_article(following: str) -> str:
    """a or an, by the sound of the next word: an umbrella, a uniform."""
    return "an" if following[0] in "aeiou" and not following.startswith("uni") else "a"


def german_noun(noun: Noun, *, plural: bool, case: Case) -> str:
    if not plural:
        return noun.oblique if noun.oblique and case in ("acc", "dat") else noun.de
    needs_n = case == "dat" and noun.de_plural[-1] not in "ns"  # den Hunden, but den Frauen and den Schals
    return noun.de_plural + "n" * needs_n


def noun_phrase(noun: Noun, determiner: Determiner, adjective: Adjective | None, *, plural: bool, case: Case) -> Phrase:
    head = german_noun(noun, plural=plural, case=case)
    en = noun.en_plural if plural else noun.en
    return _agreeing(en, head, "pl" if plural else noun.gender, determiner, adjective, case, noun.en)


def place_phrase(preposition: Preposition, determiner: Determiner, adjective: Adjective | None, place: Place) -> Phrase:
    """in + dem + Park → im Park; "near" takes the genitive: in der Nähe des Parks."""
    head = place.genitive if preposition.case == "gen" else place.de
    inner = _agreeing(place.en, head, place.gender, determiner, adjective, preposition.case, place.en)
    article, _, rest = inner.de.partition(" ")
    contracted = _TABLES["contractions"].get(f"{preposition.de} {article}")
    german = f"{contracted} {rest}" if contracted else f"{preposition.de} {inner.de}"
    return Phrase(f"{preposition.en} {inner.en}", german, inner.combinations)


def _agreeing(
    en: str, de: str, number: Number, determiner: Determiner, adjective: Adjective | None, case: Case, name: str
) -> Phrase:
    english = join_words(adjective.en if adjective else "", en)
    article = indefinite_article(english) if determiner is A else determiner.en
    inflected = adjective.stem + determiner.adjective_ending(number, case) if adjective else ""
    german = join_words(determiner.german(number, case), inflected, de)
    return Phrase(join_words(article, english), german, ((adjective.en, name),) if adjective else ())


def number_word(number: int) -> Determiner:
    """2..99 as a determiner: twenty-one, einundzwanzig."""
    if not 2 <= number <= 99:
        raise ValueError(f"number must be 2..99, got {number}")
    tens, ones = divmod(number, 10)
    en, de = _TABLES["number_words"]["en"], _TABLES["number_words"]["de"]
    if number < 20:
        return Determiner(en["small"][number], de["small"][number], "fixed")
    if not ones:
        return Determiner(en["tens"][tens - 2], de["tens"][tens - 2], "fixed")
    english = f"{en['tens'][tens - 2]}-{en['small'][ones]}"
    return Determiner(english, f"{de['small'][ones]}und{de['tens'][tens - 2]}", "fixed")


@dataclass(frozen=True)
class Tense:
    """How a verb is used. `en` and `de` hold an adverb (habit) or the singular and plural of a modal verb."""

    kind: Literal["now", "habit", "perfect", "modal"]
    en: tuple[str, str] = ("", "")
    de: tuple[str, str] = ("", "")


NOW, SIMPLE, PERFECT = Tense("now"), Tense("habit"), Tense("perfect")
HABITS = tuple(Tense("habit", (en, en), (de, de)) for en, de in _TABLES["habits"])
AUXILIARIES = tuple(  # these can open a question in English
    Tense("modal", (en, en), (singular, plural)) for en, singular, plural in _TABLES["auxiliaries"]
)
WANT = Tense("modal", ("wants to", "want to"), ("will", "wollen"))


class VerbGroup(NamedTuple):
    """A conjugated verb, in the parts that other words can separate."""

    auxiliary: str  # English; empty in the simple present
    en: str
    finite: str  # German, second in a main clause
    adverb: str  # German
    end: str  # German, last in a main clause: prefix, participle or infinitive
    cluster: str  # German, last in a subordinate clause: all of the verb


def conjugate(verb: Verb, tense: Tense, *, plural: bool) -> VerbGroup:
    """The third person of the verb."""
    infinitive = verb.prefix + verb.infinitive
    finite = verb.infinitive if plural else verb.third
    simple = verb.en if plural else verb.en_third
    if tense.kind == "now" and not verb.stative:
        en = join_words(verb.en_ing, verb.particle)
        return VerbGroup("are" if plural else "is", en, finite, "", verb.prefix, verb.prefix + finite)
    if tense.kind in ("now", "habit"):
        en = join_words(tense.en[plural], simple, verb.particle)
        return VerbGroup("", en, finite, tense.de[plural], verb.prefix, verb.prefix + finite)
    if tense.kind == "perfect":
        finite = ("ist", "sind")[plural] if verb.perfect_with_sein else ("hat", "haben")[plural]
        en = join_words(verb.en_participle, verb.particle)
        return VerbGroup("have" if plural else "has", en, finite, "", verb.participle, f"{verb.participle} {finite}")
    en, modal = join_words(verb.en, verb.particle), tense.de[plural]
    return VerbGroup(tense.en[plural], en, modal, "", infinitive, f"{infinitive} {modal}")
