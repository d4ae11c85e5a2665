"""The calls of both clients for languages: which one texts are in, and between which a server translates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glossa.client.fields import check_list, check_seconds, new_message
from glossa.client.languages import DetectedLanguage, LanguagePair
from glossa.client.methods import Call, unary
from glossa.client.requests import CallOptions
from glossa.client.types import read
from glossa.v1 import glossa_pb2 as pb


class LanguageCalls:
    """Calls about languages. All raise ClientError."""

    @unary
    def detect_language(
        self,
        texts: Sequence[str],
        *,
        languages: Sequence[str] = (),
        max_results: int = 3,
        timeout_s: float | None = None,
    ) -> Call[list[tuple[DetectedLanguage, ...]]]:
        """The most probable languages of each text, best first; none for a text without words.

        languages: consider these alone, by their codes. Raises TypeError for a single text.
        """
        check_list("texts", texts, "texts")
        check_list("languages", languages, "codes")
        fields = {"texts": texts, "languages": languages, "max_results": max_results}
        request = new_message(pb.DetectLanguageRequest, **fields)
        return Call(request, _options(timeout_s), lambda response: list(map(_detected, response.results)))

    @unary
    def list_language_pairs(
        self,
        source_language: str = "",
        target_language: str = "",
        *,
        include_pivots: bool = False,
        timeout_s: float | None = None,
    ) -> Call[list[LanguagePair]]:
        """The pairs of languages that a call without a model's name may give, and the models that serve each.

        source_language, target_language: only pairs of these. include_pivots: also those by way of a third language.
        """
        fields = {"source_language": source_language, "target_language": target_language}
        request = new_message(pb.ListLanguagePairsRequest, include_pivots=include_pivots, **fields)
        return Call(
            request, _options(timeout_s), lambda response: [read(LanguagePair, pair) for pair in response.pairs]
        )


def _options(timeout_s: float | None) -> CallOptions:
    check_seconds("timeout_s", timeout_s)
    return {} if timeout_s is None else {"timeout_s": timeout_s}


def _detected(text: Any) -> tuple[DetectedLanguage, ...]:
    return tuple(read(DetectedLanguage, one) for one in text.languages)
