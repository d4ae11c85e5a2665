from model.corpus.senses import CROSSED, DONE, Sense, sentences


def test_the_sense_is_that_of_the_words_around():
    drawn = sentences(1, 300)
    for one in drawn:
        assert one.en.split().count("bank") + one.en.split().count("bank.") == 1
        assert ("Ufer" in one.de) == (one.sense == "shore") != ("Bank" in one.de)
        signs = [*CROSSED[one.sense], *(deed.en for deed in DONE[one.sense])]
        other: Sense = "money" if one.sense == "shore" else "shore"
        wrong = [*CROSSED[other], *(deed.en for deed in DONE[other])]
        assert any(f" {sign}" in one.en for sign in signs)
        assert not any(f" {sign}" in one.en for sign in wrong if sign != "crossing")
    assert drawn == sentences(1, 300)
    assert len({one.en for one in drawn}) > 150
