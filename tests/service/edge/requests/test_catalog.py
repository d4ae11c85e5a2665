import pytest

from service.edge.requests.catalog import Catalog
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


def test_a_name_is_its_default_version_and_each_version_has_a_name_of_its_own():
    old, new, other = (served("m", FakePool(), version=version) for version in ("old", "new", "other"))
    catalog = Catalog([old])
    catalog.add(new, is_default=False)
    catalog.add(other, is_default=False)
    assert [model.version for model in catalog] == ["old", "new", "other"]
    assert catalog.find("m") is catalog.find("") is catalog.find("m@old") is catalog.default("m") is old
    assert catalog.find("m@new") is catalog.version("m", "new") is new
    catalog.set_default(new)
    assert [(model.version, catalog.is_default(model)) for model in catalog] == [
        ("new", True),
        ("old", False),
        ("other", False),
    ]
    assert catalog.defaults == (new,)
    catalog.remove(old)
    with pytest.raises(ModelNotFound, match="'m@old' is not served here; models: m, m@new, m@other"):
        catalog.find("m@old")
    with pytest.raises(ModelNotFound, match=r"'x@new' is not served here; models: m$"):
        catalog.find("x@new")
    for name in ("x", "m@new"):
        with pytest.raises(ModelNotFound):
            catalog.default(name)
