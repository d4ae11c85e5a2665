import pytest

from service.edge.requests.detected_language import LEAST, detected
from service.errors import InvalidRequest

GERMAN = "Meine Schwester fährt morgen mit dem Zug nach Hause."


def test_a_certain_language_has_the_code_of_the_model():
    guess = detected(GERMAN, ("eng_Latn", "deu_Latn"))
    assert guess.language == "deu_Latn"
    assert guess.probability > LEAST


@pytest.mark.parametrize(
    ("text", "languages", "problem"),
    [
        ("", ("de", "en"), "the text has no words by which its language is known; name one of de, en"),
        ("Hund", ("de", "en"), "the text has no words by which its language is known; name one of de, en"),
        ("12 + 30 = 42", ("de", "en"), "the text has no words by which its language is known; name one of de, en"),
        (
            GERMAN,
            ("tlh",),
            r"the text seems to be in de \(1\.00\), and is translated from tlh alone; name its language",
        ),
        (
            GERMAN,
            ("en", "fr"),
            r"the text seems to be in de \(1\.00\), and is translated from en, fr alone; name its language",
        ),
        (
            "pain",
            ("de", "en", "fr"),
            r"must be certain by 0\.6, the text may be in \w\w \(0\.\d\d\) or \w\w \(0\.\d\d\)",
        ),
    ],
)
def test_what_is_uncertain_is_refused_with_the_candidates(text, languages, problem):
    with pytest.raises(InvalidRequest, match=f"source_language: auto: {problem}") as caught:
        detected(text, languages)
    assert caught.value.field == "source_language"
