"""Languages in LibreTranslate's form."""

import pytest

from glossa.client.languages import DetectedLanguage, LanguagePair
from glossa.web.languages import guess_of, listed, name_of


@pytest.mark.parametrize(
    ("code", "name"), [("de", "German"), ("en-GB", "English (GB)"), ("zh_Hant", "Chinese (Hant)"), ("xx", "xx")]
)
def test_a_language_is_named(code, name):
    assert name_of(code) == name


def test_each_language_is_listed_with_its_targets():
    pairs = [LanguagePair(*codes, ("m",), ()) for codes in [("en", "fr"), ("de", "en"), ("en", "de")]]
    assert listed(pairs) == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
    ]


def test_probabilities_are_percentages():
    assert guess_of(DetectedLanguage("de", 0.98765)) == {"language": "de", "confidence": 98.8}
