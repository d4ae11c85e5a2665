"""Cloud Translation, version 3, as Google's clients ask for it: `google.cloud.translation.v3.TranslationService`.

Texts are translated as `Translate` of glossa.v1 does, and those of HTML with tags as `TranslateDocument` does. Projects
and locations have no meaning here.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence

from google.protobuf.message import Message

from glossa.v1 import glossa_pb2 as pb
from service.adaptors.google_translation import translation_service_pb2 as google
from service.adaptors.text_batch import check_known, named, translate_all
from service.edge.calls.call import Call
from service.edge.requests.prompt_encoder import shorten
from service.edge.rpcs.model_calls import ModelCalls
from service.edge.rpcs.servicer import Servicer
from service.errors import InvalidRequest
from service.settings.config import ServerSettings

MAX_TEXTS = 1024  # of one request
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
        is_html = _is_html(message.mime_type)

        async def answer(request: pb.TranslateRequest, item: Call) -> Message:
            if is_html and re.search("[<&]", request.text):
                return await self._glossa.translated_document(request, pb.DOCUMENT_FORMAT_HTML, item)
            response = await self._glossa.Translate(request, item)
            response.text = html.escape(response.text, quote=False) if is_html else response.text
            return response

        responses = await translate_all(self._glossa, requests, call, NAMES, answer)
        count, has_glossary = len(message.contents), message.HasField("glossary_config")
        translations = [
            google.Translation(
                translated_text=response.text,
                model=message.model,
                glossary_config=message.glossary_config if index >= count else None,
                detected_language_code=response.detected_language.language,
            )
            for index, response in enumerate(responses)
        ]
        return google.TranslateTextResponse(
            translations=translations[:count], glossary_translations=translations[count:] if has_glossary else ()
        )

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
    """The requests for the texts of a message: without its glossary, and, if it has one, once more with it. Raises
    InvalidRequest."""
    check_known(message)
    _check_parent(message.parent)
    if not 1 <= len(message.contents) <= MAX_TEXTS:
        raise InvalidRequest("contents", f"must be 1..{MAX_TEXTS}, got {len(message.contents)}")
    if message.transliteration_config.enable_transliteration:
        problem = "must be false: texts are read in the script of their language"
        raise InvalidRequest("transliteration_config.enable_transliteration", problem)
    if not message.target_language_code:
        raise InvalidRequest("target_language_code", "must name the language to translate into")
    _is_html(message.mime_type)
    base = pb.TranslateRequest(
        model=_model_of(message.model),
        source_language=message.source_language_code or "auto",
        target_language=message.target_language_code,
    )
    bases = [base]
    if message.HasField("glossary_config"):
        bases.append(pb.TranslateRequest())
        bases[1].CopyFrom(base)
        bases[1].glossary.name = _glossary_of(message.glossary_config)
    requests = []
    for each in bases:
        for text in message.contents:
            requests.append(pb.TranslateRequest(text=text))
            requests[-1].MergeFrom(each)
    return requests


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
    for field, fix in (("ignore_case", "its file says so for each term"), ("contextual_translation_enabled", "")):
        if getattr(config, field):
            problem = f"must be false{': ' if fix else ''}{fix}"
            raise InvalidRequest(f"glossary_config.{field}", problem)
    return _name_of("glossaries", "glossary_config.glossary", config.glossary)


def _text_of_page(page: str) -> str:
    """The text of HTML whose language is to be detected."""
    return html.unescape(re.sub(r"<[^<>]*>", " ", page))
