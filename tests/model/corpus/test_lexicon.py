import pytest

from model.corpus import lexicon

NOUNS = (
    *lexicon.PEOPLE,
    *lexicon.ANIMALS,
    *lexicon.LYING_THINGS,
    *lexicon.STANDING_THINGS,
    *lexicon.GARMENTS,
    *lexicon.ACCESSORIES,
)


def test_every_place_that_can_be_near_has_a_genitive():
    for place in lexicon.PLACES:
        assert bool(place.genitive) == (lexicon.PREPOSITIONS["near"] in place.where), place.en
        if place.genitive:
            assert place.genitive.endswith("s") == (place.gender != "f"), place.en


@pytest.mark.parametrize(
    "words", [NOUNS, lexicon.PLACES, tuple(lexicon.VERBS.values())], ids=["nouns", "places", "verbs"]
)
def test_an_english_word_has_one_entry(words):
    english = [entry.en for entry in words]
    assert len(set(english)) == len(english)


def test_words_that_do_not_suit_each_other_exist():
    adjectives = {adjective.en for group in lexicon.ADJECTIVES.values() for adjective in group}
    nouns = {noun.en for noun in NOUNS} | {place.en for place in lexicon.PLACES}
    for adjective, noun in lexicon.UNSUITABLE:
        assert adjective in adjectives, adjective
        assert noun in nouns, noun


def test_verb_forms_are_read_in_their_order():
    pick = lexicon.VERBS["pick"]
    assert (pick.en_third, pick.en_ing, pick.en_participle, pick.particle) == ("picks", "picking", "picked", "up")
    assert (pick.prefix, pick.infinitive, pick.third, pick.participle) == ("auf", "heben", "hebt", "aufgehoben")
