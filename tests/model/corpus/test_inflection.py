import pytest

from model.corpus import inflection, lexicon
from model.corpus.inflection import (
    EVERY,
    HABITS,
    HER,
    MANY,
    NO_ARTICLE,
    NOW,
    PERFECT,
    SOME,
    THE,
    THESE,
    THIS,
    WANT,
    A,
    conjugate,
    german_noun,
    noun_phrase,
    number_word,
    place_phrase,
)

NOUNS = {
    noun.en: noun
    for group in (
        lexicon.PEOPLE,
        lexicon.ANIMALS,
        lexicon.LYING_THINGS,
        lexicon.STANDING_THINGS,
        lexicon.GARMENTS,
        lexicon.ACCESSORIES,
    )
    for noun in group
}
PLACES = {place.en: place for place in lexicon.PLACES}
OLD = lexicon.Adjective("old", "alt")
VERBS = {
    verb.en: verb
    for group in (lexicon.TRADING, lexicon.HANDLING, lexicon.MEETING, lexicon.ALONE, lexicon.STAYING["person"])
    for verb in group
}

# The four cases of "the/an old …", written down by hand from a grammar book.
DECLENSION = [
    ("hat", THE, False, "der alte Hut|den alten Hut|dem alten Hut"),
    ("hat", A, False, "ein alter Hut|einen alten Hut|einem alten Hut"),
    ("cap", THE, False, "die alte Mütze|die alte Mütze|der alten Mütze"),
    ("cap", A, False, "eine alte Mütze|eine alte Mütze|einer alten Mütze"),
    ("shirt", THE, False, "das alte Hemd|das alte Hemd|dem alten Hemd"),
    ("shirt", A, False, "ein altes Hemd|ein altes Hemd|einem alten Hemd"),
    ("shirt", HER, False, "ihr altes Hemd|ihr altes Hemd|ihrem alten Hemd"),
    ("hat", THIS, False, "dieser alte Hut|diesen alten Hut|diesem alten Hut"),
    ("child", EVERY, False, "jedes alte Kind|jedes alte Kind|jedem alten Kind"),
    ("boy", THE, False, "der alte Junge|den alten Jungen|dem alten Jungen"),
    ("policeman", A, False, "ein alter Polizist|einen alten Polizisten|einem alten Polizisten"),
    ("hat", THE, True, "die alten Hüte|die alten Hüte|den alten Hüten"),
    ("hat", NO_ARTICLE, True, "alte Hüte|alte Hüte|alten Hüten"),
    ("scarf", number_word(3), True, "drei alte Schals|drei alte Schals|drei alten Schals"),
    ("woman", SOME, True, "einige alte Frauen|einige alte Frauen|einigen alten Frauen"),
    ("uncle", MANY, True, "viele alte Onkel|viele alte Onkel|vielen alten Onkeln"),
    ("dog", THESE, True, "diese alten Hunde|diese alten Hunde|diesen alten Hunden"),
    ("dog", HER, True, "ihre alten Hunde|ihre alten Hunde|ihren alten Hunden"),
]


@pytest.mark.parametrize(("noun", "determiner", "plural", "forms"), DECLENSION)
def test_declension(noun, determiner, plural, forms):
    cases: tuple[lexicon.Case, ...] = ("nom", "acc", "dat")
    phrases = [noun_phrase(NOUNS[noun], determiner, OLD, plural=plural, case=case) for case in cases]
    assert "|".join(phrase.de for phrase in phrases) == forms


@pytest.mark.parametrize(
    ("preposition", "determiner", "adjective", "place", "en", "de"),
    [
        ("in", THE, None, "park", "in the park", "im Park"),
        ("in", THE, OLD, "house", "in the old house", "im alten Haus"),
        ("in", THIS, None, "park", "in this park", "in diesem Park"),
        ("in", THE, None, "church", "in the church", "in der Kirche"),
        ("into", THE, None, "house", "into the house", "ins Haus"),
        ("into", THE, None, "park", "into the park", "in den Park"),
        ("to", THE, OLD, "church", "to the old church", "zur alten Kirche"),
        ("to", A, None, "church", "to a church", "zu einer Kirche"),
        ("to", THE, None, "lake", "to the lake", "zum See"),
        ("by", THE, None, "window", "by the window", "am Fenster"),
        ("near", THE, None, "forest", "near the forest", "in der Nähe des Waldes"),
        ("near", A, OLD, "hotel", "near an old hotel", "in der Nähe eines alten Hotels"),
        ("near", A, OLD, "school", "near an old school", "in der Nähe einer alten Schule"),
        ("through", A, OLD, "village", "through an old village", "durch ein altes Dorf"),
        ("out of", THE, None, "tower", "out of the tower", "aus dem Turm"),
        (
            "in front of",
            THE,
            OLD,
            "station",
            "in front of the old station",
            "vor dem alten Bahnhof",
        ),
        ("onto", THE, None, "table", "onto the table", "auf den Tisch"),
    ],
)
def test_places(preposition, determiner, adjective, place, en, de):
    phrase = place_phrase(lexicon.PREPOSITIONS[preposition], determiner, adjective, PLACES[place])
    assert (phrase.en, phrase.de) == (en, de)


def test_english_articles_follow_the_sound():
    for word, article in (("apple", "an"), ("umbrella", "an"), ("uniform", "a"), ("hat", "a"), ("uncle", "an")):
        assert noun_phrase(NOUNS[word], A, None, plural=False, case="nom").en == f"{article} {word}"
    assert noun_phrase(NOUNS["uniform"], A, OLD, plural=False, case="nom").en == "an old uniform"


def test_dative_plural_ends_in_n_or_s():
    for noun in NOUNS.values():
        assert german_noun(noun, plural=True, case="dat")[-1] in "ns", noun.en


@pytest.mark.parametrize(
    ("number", "en", "de"),
    [
        (2, "two", "zwei"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (20, "twenty", "zwanzig"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (99, "ninety-nine", "neunundneunzig"),
    ],
)
def test_number_words(number, en, de):
    word = number_word(number)
    assert (word.en, word.de) == (en, de)


def test_number_words_are_all_different_and_end_at_99():
    assert len({number_word(number).de for number in range(2, 100)}) == 98
    for number in (1, 100):
        with pytest.raises(ValueError, match=r"2\.\.99"):
            number_word(number)


@pytest.mark.parametrize(
    ("verb", "tense", "plural", "en", "finite", "end", "cluster"),
    [
        ("wait", NOW, False, "is waiting", "wartet", "", "wartet"),
        ("wait", NOW, True, "are waiting", "warten", "", "warten"),
        ("need", NOW, False, "needs", "braucht", "", "braucht"),
        ("look", PERFECT, True, "have looked for", "haben", "gesucht", "gesucht haben"),
        ("follow", PERFECT, False, "has followed", "ist", "gefolgt", "gefolgt ist"),
        ("pick", NOW, False, "is picking up", "hebt", "auf", "aufhebt"),
        ("pick", PERFECT, False, "has picked up", "hat", "aufgehoben", "aufgehoben hat"),
        ("invite", WANT, False, "wants to invite", "will", "einladen", "einladen will"),
        ("invite", WANT, True, "want to invite", "wollen", "einladen", "einladen wollen"),
        ("call", HABITS[0], False, "often calls", "ruft", "an", "anruft"),
        ("call", HABITS[0], True, "often call", "rufen", "an", "anrufen"),
    ],
)
def test_verb_groups(verb, tense, plural, en, finite, end, cluster):
    group = conjugate(VERBS[verb], tense, plural=plural)
    assert inflection.join_words(group.auxiliary, group.en) == en
    assert (group.finite, group.end, group.cluster) == (finite, end, cluster)
