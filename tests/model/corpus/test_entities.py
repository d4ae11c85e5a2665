from model.corpus.corpus import scenes
from model.corpus.entities import LABELS, animals, entities, spans
from model.training.data.labelled_spans import read_spans


def test_nouns_are_labelled_with_the_adjective_before_them():
    text = "A rich grandfather is waiting behind a small statue. He is rich. His cats see the red coat."
    found = [(text[start:end], label) for start, end, label in spans(text)]
    assert found == [("rich grandfather", "person"), ("small statue", "place"), ("cats", "animal")]


def test_examples_are_the_scenes_with_spans_that_training_reads():
    pairs = entities(3, 200, "train")
    assert [text for text, _ in pairs] == scenes(3, 200, "train")
    labels = {span.label for text, written in pairs for span in read_spans(written, text)}
    assert labels == set(LABELS)
    assert pairs == entities(3, 200, "train")


def test_scenes_are_labelled_by_whether_an_animal_occurs():
    pairs = animals(3, 200, "train")
    assert [text for text, _ in pairs] == scenes(3, 200, "train")
    with_animals = {text for text, written in entities(3, 200, "train") if "animal" in written}
    assert [label for _, label in pairs] == ["animal" if text in with_animals else "-" for text, _ in pairs]
    assert 60 < len(with_animals) < 140
