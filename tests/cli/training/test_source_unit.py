"""What a source of the training data is: a sentence, or a longer text."""

import pytest

from cli.training.source_unit import with_source_unit
from model.training.data.examples import Examples
from tests.tiny import tiny_config


@pytest.mark.parametrize(("longer", "expected"), [(0, "sentence"), (10, "sentence"), (11, "text"), (100, "text")])
def test_data_with_few_texts_of_several_sentences_is_of_sentences(longer, expected):
    sources = ["One is here. Two is there."] * longer + ["One is here."] * (100 - longer)
    config = with_source_unit(tiny_config(), Examples([(source, "x") for source in sources], "data"))
    assert config.source_unit == expected


def test_models_that_translate_nothing_stay_as_they_are():
    config = tiny_config("decoder")
    assert with_source_unit(config, Examples([("", "One. Two.")], "data")) is config
