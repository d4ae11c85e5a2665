from model.corpus.coreference import ADJECTIVES, ANIMALS, PLACES, PRONOUNS, held_out, sentences

GENDERS = {noun.en: noun.gender for noun in (*ANIMALS, *PLACES)}


def test_the_pronoun_has_the_gender_of_what_the_adjective_describes():
    kinds = {adjective: kind for kind, pairs in ADJECTIVES.items() for adjective, _ in pairs}
    drawn = sentences(1, 300, "train")
    for one in drawn:
        noun = {"animal": one.animal, "place": one.place}[kinds[one.adjective]]
        assert (one.antecedent, one.pronoun) == (kinds[one.adjective], PRONOUNS[GENDERS[noun]])
        assert f"weil {one.pronoun} zu " in one.de
        assert one.en == f"The {one.animal} did not cross the {one.place} because it was too {one.adjective}."
    assert {one.antecedent for one in drawn} == {"animal", "place"}
    assert drawn == sentences(1, 300, "train")


def test_pairs_of_nouns_are_held_out():
    unseen = {(animal.en, place.en) for animal, place in held_out()}
    train, test = ({(one.animal, one.place) for one in sentences(1, 3000, split)} for split in ("train", "test"))
    assert test == unseen
    assert not train & unseen
    assert len(train | test) == len(ANIMALS) * len(PLACES)
    assert next(iter(held_out()))[0].en == "animal"
    assert next(iter(held_out()))[1].en == "street"
