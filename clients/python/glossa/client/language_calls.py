"""The calls of both clients for languages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from glossa.client.fields import new_message
from glossa.client.languages import DetectedLanguage, LanguagePair
from glossa.client.methods import Call, unary
from glossa.client.requests import CallOptions, call_fields
from glossa.client.types import read
from glossa.v1 import glossa_pb2 as pb


class LanguageCalls:
    """Calls for languages. All raise ClientError."""

    @unary
    def detect_language(
        self,
        texts: Sequence[str],
        *,
        languages: Sequence[str] = (),
        max_results: int = 0,
        **options: Unpack[CallOptions],
    ) -> Call[list[tuple[DetectedLanguage, ...]]]:
        """The most probable languages of each text, best first; none for a text without letters of a known language.

        languages: codes of those to consider. max_results: of each text; 0: three. Raises TypeError for a single text.
        """
        call_fields(options)
        request = new_message(pb.DetectLanguageRequest, texts=texts, languages=languages, max_results=max_results)
        return Call(request, options, _detections)

    @unary
    def list_language_pairs(
        self,
        source_language: str = "",
        target_language: str = "",
        *,
        include_pivots: bool = False,
        timeout_s: float | None = None,
    ) -> Call[list[LanguagePair]]:
        """The pairs of languages that a translation may name without a model, sorted.

        source_language, target_language: only pairs from and into these. include_pivots: also pairs that two models
        serve, by way of a third language.
        """
        fields = {"source_language": source_language, "target_language": target_language}
        request = new_message(pb.ListLanguagePairsRequest, include_pivots=include_pivots, **fields)
        options: CallOptions = {} if timeout_s is None else {"timeout_s": timeout_s}
        return Call(request, options, lambda response: [read(LanguagePair, pair) for pair in response.pairs])


def _detections(response: pb.DetectLanguageResponse) -> list[tuple[DetectedLanguage, ...]]:
    return [tuple(read(DetectedLanguage, one) for one in result.languages) for result in response.results]
