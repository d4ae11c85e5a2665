"""Languages in LibreTranslate's form: their codes and names, the targets of each, and those of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from glossa.client import AsyncClient
from glossa.client.languages import DetectedLanguage, LanguagePair

_NAMES = (
    "af Afrikaans|ar Arabic|az Azerbaijani|be Belarusian|bg Bulgarian|bn Bengali|ca Catalan|cs Czech|cy Welsh|"
    "da Danish|de German|el Greek|en English|eo Esperanto|es Spanish|et Estonian|eu Basque|fa Persian|fi Finnish|"
    "fr French|ga Irish|gl Galician|gu Gujarati|he Hebrew|hi Hindi|hr Croatian|hu Hungarian|hy Armenian|"
    "id Indonesian|is Icelandic|it Italian|ja Japanese|ka Georgian|kk Kazakh|ko Korean|lt Lithuanian|lv Latvian|"
    "mk Macedonian|ml Malayalam|mr Marathi|ms Malay|mt Maltese|nb Norwegian Bokmål|ne Nepali|nl Dutch|no Norwegian|"
    "pa Punjabi|pl Polish|pt Portuguese|ro Romanian|ru Russian|sk Slovak|sl Slovenian|sq Albanian|sr Serbian|"
    "sv Swedish|sw Swahili|ta Tamil|te Telugu|th Thai|tl Tagalog|tr Turkish|uk Ukrainian|ur Urdu|uz Uzbek|"
    "vi Vietnamese|zh Chinese"
)
NAMES = dict(entry.split(" ", 1) for entry in _NAMES.split("|"))
"""Of the languages that most people ask for; others have their code for a name."""


def name_of(code: str) -> str:
    """English (GB) for en-GB, the code itself if the language has no name here."""
    language, _, rest = code.replace("_", "-").partition("-")
    known = NAMES.get(language.lower())
    return code if known is None else f"{known} ({rest})" if rest else known


def listed(pairs: Iterable[LanguagePair]) -> list[dict[str, Any]]:
    """The languages that can be translated, each with its targets."""
    targets: dict[str, list[str]] = {}
    for pair in pairs:
        targets.setdefault(pair.source_language, []).append(pair.target_language)
    return [{"code": code, "name": name_of(code), "targets": sorted(found)} for code, found in sorted(targets.items())]


async def detections(client: AsyncClient, texts: Sequence[str]) -> list[list[dict[str, Any]]]:
    """The likely languages of each text, best first. Raises ClientError."""
    return [[guess_of(guess) for guess in found] for found in await client.detect_language(texts)]


def guess_of(guess: DetectedLanguage) -> dict[str, Any]:
    """A detected language; its confidence is a percentage."""
    return {"language": guess.language, "confidence": round(100 * guess.probability, 1)}
