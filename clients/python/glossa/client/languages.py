"""Results of calls about languages, and what translations tell of theirs: frozen dataclasses as in `types`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DetectedLanguage:
    """A language that a text may be in."""

    language: str  # its code; of a translation's text as the model has it
    probability: float  # among the languages that were considered


@dataclass(frozen=True)
class TranslationRoute:
    """Which models a translation came from."""

    model: str
    first_model: str = ""  # of two; empty: one model translated directly
    pivot_language: str = ""  # between the two
    pivot_text: str = ""  # the translation into it, without marks


@dataclass(frozen=True)
class LanguagePair:
    """A pair of languages that a server translates."""

    source_language: str
    target_language: str
    models: tuple[str, ...]  # that translate directly
    pivot_languages: tuple[str, ...]  # without such a model: by way of which two translate, the one taken first
