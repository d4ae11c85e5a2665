"""What imported models read at a time: a sentence or a text, by their families unless it is given."""

import pytest

from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import FAMILIES, SENTENCE_FAMILIES, with_source_unit
from tests.tiny import tiny_config


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        *[(family, "sentence") for family in ("marian", "mbart", "m2m_100")],
        *[(family, "text") for family in ("t5", "mt5", "bart")],
    ],
)
def test_the_family_decides(family, expected):
    assert family in FAMILIES
    assert with_source_unit(tiny_config(), None, family).source_unit == expected
    assert with_source_unit(tiny_config(), "text", family).source_unit == "text"


def test_a_model_that_translates_nothing_has_none():
    config = tiny_config("decoder")
    assert with_source_unit(config, None, "gpt2") is config
    assert set(SENTENCE_FAMILIES) <= set(FAMILIES)
    with pytest.raises(PretrainedError, match="source_unit: must be left out, a gpt2 model translates nothing"):
        with_source_unit(config, "sentence", "gpt2")
