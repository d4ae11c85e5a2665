"""The RPCs of LanguageService: which language texts are in, and between which the server translates. No engine is
involved."""

from __future__ import annotations

from functools import partial

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.call import Call
from service.edge.requests.detected_language import detection
from service.edge.requests.language_routes import Pair
from service.edge.requests.prompt_encoder import shorten
from service.edge.rpcs.languages.routed_calls import RoutedCalls
from service.errors import InvalidRequest
from service.text.language_detection import known_languages

MAX_TEXTS, MAX_BYTES = 1024, 1 << 20  # of a call
MAX_RESULTS, DEFAULT_RESULTS = 20, 3
TOGETHER = 64  # texts that are looked at in one turn of a thread: 10 ms


class LanguageCalls(RoutedCalls):
    """The RPCs of LanguageService. Event-loop thread only."""

    async def DetectLanguage(self, request: pb.DetectLanguageRequest, call: Call) -> pb.DetectLanguageResponse:
        texts, most = list(request.texts), request.max_results or DEFAULT_RESULTS
        if self.log_text:
            call.record.note(texts="\n".join(texts))
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequest("texts", f"must be 1..{MAX_TEXTS}, got {len(texts)}")
        if (size := sum(len(text.encode()) for text in texts)) > MAX_BYTES:
            raise InvalidRequest("texts", f"must be at most {MAX_BYTES} bytes together, got {size}; send several calls")
        if not 1 <= most <= MAX_RESULTS:
            raise InvalidRequest("max_results", f"must be 1..{MAX_RESULTS}, got {most}")
        languages, results = tuple(request.languages), list[pb.LanguageDetection]()
        await self.preparation.prepare(call.rpc.caller, partial(_check_languages, languages))
        for start in range(0, len(texts), TOGETHER):  # other tenants' work goes between them
            some = partial(_detections, texts[start : start + TOGETHER], languages, most)
            results += await self.preparation.convert(call.rpc.caller, some)
        return pb.DetectLanguageResponse(results=results)

    async def ListLanguagePairs(self, request: pb.ListLanguagePairsRequest, call: Call) -> pb.ListLanguagePairsResponse:
        find = partial(
            self.routes.pairs, request.source_language, request.target_language, has_pivots=request.include_pivots
        )

        def convert() -> pb.ListLanguagePairsResponse:
            return pb.ListLanguagePairsResponse(pairs=map(_pair, find()))

        return await self.preparation.prepare(call.rpc.caller, convert)


def _check_languages(languages: tuple[str, ...]) -> None:
    """Refuses codes of languages that are not known, of which none would ever be found. Loads the model."""
    detection("")  # raises Unsupported without the library
    known = known_languages()
    for index, code in enumerate(languages):
        if not known.find(code):
            names = shorten(", ".join(sorted(known)), 1000)
            raise InvalidRequest(f"languages[{index}]", f"must be one of {names}, got {shorten(code, 64)!r}")


def _detections(texts: list[str], languages: tuple[str, ...], most: int) -> list[pb.LanguageDetection]:
    return [
        pb.LanguageDetection(
            languages=[pb.DetectedLanguage(**guess._asdict()) for guess in detection(text, languages).guesses[:most]]
        )
        for text in texts
    ]


def _pair(pair: Pair) -> pb.LanguagePair:
    return pb.LanguagePair(
        source_language=pair.source, target_language=pair.target, models=pair.models, pivot_languages=pair.middles
    )
