"""Cloud Translation, version 3, as Google's clients ask for it: `google.cloud.translation.v3.TranslationService`.

Texts are translated as `Translate` of glossa.v1 does, and those of HTML with tags as `TranslateDocument` does. Projects
and locations have no meaning here.
"""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Callable, Sequence

from glossa.v1 import glossa_pb2 as pb
from service.adaptors.google_translation import translation_service_pb2 as google
from service.adaptors.text_batch import check_known, named, translate_all
from service.edge.calls.call import Call
from service.edge.requests.language_routes import AUTO, Route
from service.edge.requests.prompt_encoder import LanguagePair, shorten
from service.edge.rpcs.languages.routed_calls import joined_words, untagged
from service.edge.rpcs.model_calls import ModelCalls
from service.edge.rpcs.servicer import Servicer
from service.errors import InvalidRequest
from service.settings.config import ServerSettings

MAX_TEXTS = 1024  # of one request
TOGETHER = 16  # texts whose language is detected in one turn of the event loop, in 1 to 2 ms
PLAIN, HTML = "text/plain", "text/html"
NAMES = {
    "text": "contents[{}]",
    "texts": "content",
    "source_language": "source_language_code",
    "target_language": "target_language_code",
    "glossary.name": "glossary_config.glossary",
}
_PROJECT = r"projects/[^/]+(?:/locations/[^/]+)?"
_PARENT = re.compile(_PROJECT)
_NAMED = {kind: re.compile(rf"{_PROJECT}/{kind}/(?P<name>.+)") for kind in ("models", "glossaries")}
GENERAL = "general/nmt"  # the model that stands for any
DETECTOR = "language-detection/default"


class GoogleTranslation(ModelCalls):
    """The RPCs of the service. Event-loop thread only."""

    FILE = google.DESCRIPTOR
    PROBES = ()

    def __init__(self, glossa: Servicer, settings: ServerSettings, _not_ready: Callable[[], Sequence[str]]) -> None:
        super().__init__(glossa.catalog, glossa.preparation, log_text=settings.log_text)
        self._glossa = glossa

    async def TranslateText(self, message: google.TranslateTextRequest, call: Call) -> google.TranslateTextResponse:
        requests = await self.built(lambda: _requests(message), message, call)
        is_html, count = _is_html(message.mime_type), len(message.contents)
        detected = [""] * count
        if not message.source_language_code:
            detected = await self._detected(requests, call, is_html=is_html)
        if message.HasField("glossary_config"):
            requests += _with_glossary(requests, _glossary_of(message.glossary_config))

        async def translate(route: Route, request: pb.TranslateRequest, item: Call) -> pb.TranslateResponse:
            if is_html and re.search("[<&]", request.text):
                return await self._glossa.translated_document(route, request, pb.DOCUMENT_FORMAT_HTML, item)
            response = await self._glossa.translated_item(route, request, item)
            if is_html:
                response.text = html.escape(response.text, quote=False)
            return response

        responses = await translate_all(self._glossa, requests, call, NAMES, translate)
        translations = [
            google.Translation(
                translated_text=response.text,
                model=message.model,
                glossary_config=message.glossary_config if index >= count else None,
                detected_language_code=detected[index % count],
            )
            for index, response in enumerate(responses)
        ]
        return google.TranslateTextResponse(
            translations=translations[:count], glossary_translations=translations[count:]
        )

    async def _detected(self, requests: Sequence[pb.TranslateRequest], call: Call, *, is_html: bool) -> list[str]:
        """The language of each request's text, which it names from then on. One that is too short for it has the
        language of all texts together. Raises InvalidRequest."""
        texts = [_text_of_page(request.text) if is_html else request.text for request in requests]
        together = joined_words(texts)
        for index, (request, text) in enumerate(zip(requests, texts, strict=True)):
            if index % TOGETHER == TOGETHER - 1:
                await asyncio.sleep(0)  # other calls have their turn
            try:
                await self._glossa.detected_source(request, call, text)
            except InvalidRequest:
                with named(NAMES, index):
                    await self._glossa.detected_source(request, call, together)
        self._check_one_route(requests)
        return [request.source_language for request in requests]

    def _check_one_route(self, requests: Sequence[pb.TranslateRequest]) -> None:
        """Refuses texts of several languages that different models translate."""
        languages = sorted({request.source_language for request in requests})
        if requests[0].model or len(languages) == 1:
            return
        pairs = [LanguagePair(language, requests[0].target_language) for language in languages]
        with named(NAMES):
            routes = [self._glossa.routes.route(pair) for pair in pairs]
        if any(route != routes[0] for route in routes):
            problem = (
                f"must be in languages that one model translates, got {', '.join(languages)}; make a call for each"
            )
            raise InvalidRequest("contents", problem)

    async def DetectLanguage(self, message: google.DetectLanguageRequest, call: Call) -> google.DetectLanguageResponse:
        check_known(message)
        _check_parent(message.parent)
        if message.model and _name_of("models", "model", message.model) != DETECTOR:
            raise InvalidRequest("model", f"must be empty or end with models/{DETECTOR}, got {message.model!r:.100}")
        text = _text_of_page(message.content) if _is_html(message.mime_type) else message.content
        with named(NAMES):
            response = await self._glossa.DetectLanguage(pb.DetectLanguageRequest(texts=[text]), call)
        return google.DetectLanguageResponse(
            languages=[
                google.DetectedLanguage(language_code=one.language, confidence=one.probability)
                for one in response.results[0].languages
            ]
        )

    async def GetSupportedLanguages(
        self, message: google.GetSupportedLanguagesRequest, call: Call
    ) -> google.SupportedLanguages:
        check_known(message)
        _check_parent(message.parent)
        if message.display_language_code:
            raise InvalidRequest("display_language_code", "must be empty: the server has no names of languages")
        if name := _model_of(message.model):
            model = (await self._glossa.GetModel(pb.GetModelRequest(model=name), call)).model
            sources, targets = set(model.source_languages), set(model.target_languages)
        else:
            listed = await self._glossa.ListLanguagePairs(pb.ListLanguagePairsRequest(include_pivots=True), call)
            sources = {pair.source_language for pair in listed.pairs}
            targets = {pair.target_language for pair in listed.pairs}
        return google.SupportedLanguages(
            languages=[
                google.SupportedLanguage(
                    language_code=code, support_source=code in sources, support_target=code in targets
                )
                for code in sorted(sources | targets)
            ]
        )


def _requests(message: google.TranslateTextRequest) -> list[pb.TranslateRequest]:
    """The requests for the texts of a message, without its glossary. Raises InvalidRequest."""
    check_known(message)
    _check_parent(message.parent)
    if not 1 <= len(message.contents) <= MAX_TEXTS:
        raise InvalidRequest("contents", f"must be 1..{MAX_TEXTS}, got {len(message.contents)}")
    if message.transliteration_config.enable_transliteration:
        problem = "must be false: texts are read in the script of their language"
        raise InvalidRequest("transliteration_config.enable_transliteration", problem)
    if not message.target_language_code:
        raise InvalidRequest("target_language_code", "must name the language to translate into")
    return [
        pb.TranslateRequest(
            model=_model_of(message.model),
            text=text,
            source_language=message.source_language_code or AUTO,
            target_language=message.target_language_code,
        )
        for text in message.contents
    ]


def _with_glossary(requests: Sequence[pb.TranslateRequest], name: str) -> list[pb.TranslateRequest]:
    """The same requests with a glossary of the server."""
    found = [pb.TranslateRequest.FromString(request.SerializeToString()) for request in requests]
    for request in found:
        request.glossary.name = name
    return found


def _is_html(mime_type: str) -> bool:
    if mime_type not in ("", PLAIN, HTML):
        raise InvalidRequest("mime_type", f"must be {PLAIN}, or {HTML}, the default, got {mime_type!r:.40}")
    return mime_type != PLAIN


def _check_parent(parent: str) -> None:
    if not _PARENT.fullmatch(parent):
        raise InvalidRequest("parent", f"must be projects/* or projects/*/locations/*, got {parent!r:.100}")


def _name_of(kind: str, field: str, name: str) -> str:
    """What the name of a resource ends with. kind: models or glossaries."""
    match = _NAMED[kind].fullmatch(name)
    if match is None:
        problem = f"must be projects/*/{kind}/NAME or projects/*/locations/*/{kind}/NAME"
        raise InvalidRequest(field, f"{problem}, got {shorten(name, 100)!r}")
    return match["name"]


def _model_of(name: str) -> str:
    """The name of a model of the server; empty: the one for the pair of languages."""
    found = _name_of("models", "model", name) if name else GENERAL
    return "" if found == GENERAL else found


def _glossary_of(config: google.TranslateTextGlossaryConfig) -> str:
    """The name of a glossary of the server."""
    if config.ignore_case:
        raise InvalidRequest("glossary_config.ignore_case", "must be false: the glossary's file says so for each term")
    if config.contextual_translation_enabled:
        raise InvalidRequest("glossary_config.contextual_translation_enabled", "must be false: no model does that")
    return _name_of("glossaries", "glossary_config.glossary", config.glossary)


def _text_of_page(page: str) -> str:
    """The text of HTML whose language is to be detected."""
    return html.unescape(untagged(page))
