import pytest

from service.edge.catalog import Catalog
from service.errors import InvalidRequest, ModelNotFound, Unsupported
from tests.edge import GENERATION, TRANSLATION, FakePool, served


def test_a_model_is_found_by_name_or_by_being_the_only_one():
    catalog = Catalog([TRANSLATION, GENERATION])
    assert [model.name for model in catalog] == ["en", "en-de"]
    assert catalog.find("en") is catalog.find("", "generation") is GENERATION
    assert catalog.find("en-de", "translation") is catalog.find("", "translation") is TRANSLATION


def test_a_model_that_is_missing_or_made_for_something_else():
    catalog = Catalog([GENERATION])
    with pytest.raises(ModelNotFound, match="'de' is not served here; models: en"):
        catalog.find("de")
    with pytest.raises(Unsupported, match="serves generation, not translation; call GenerationService"):
        catalog.find("en", "translation")
    with pytest.raises(Unsupported, match="no model for translation is served here; models: en"):
        catalog.find("", "translation")
    with pytest.raises(InvalidRequest, match="one of: a, b"):
        Catalog([served("b", FakePool()), served("a", FakePool())]).find("", "translation")
