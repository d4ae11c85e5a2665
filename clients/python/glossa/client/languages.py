"""Languages as results of calls. Knows no gRPC."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DetectedLanguage:
    """A language that was detected."""

    language: str  # its code
    probability: float  # among the languages that were considered


@dataclass(frozen=True)
class Route:
    """Which models a translation came from that named languages instead of a model."""

    model: str
    first_model: str  # of two models; else empty, as the following
    pivot_language: str
    pivot_text: str


@dataclass(frozen=True)
class LanguagePair:
    """A pair of languages and what serves it."""

    source_language: str
    target_language: str
    models: tuple[str, ...]  # that translate directly; a request for a pair with several must name one
    pivot_languages: tuple[str, ...]  # without such a model: those by way of which two translate, the first is taken
