"""Translation for clients of NVIDIA Riva: `nvidia.riva.nmt.RivaTranslation`.

Texts are translated as `Translate` of glossa.v1 does. Phrases with fixed translations are terms of a glossary, as is
what a text has between <dnt> and </dnt>, which stays. Speech is not answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from glossa.v1 import glossa_pb2 as pb
from service.adaptors.riva import riva_translation_pb2 as riva
from service.adaptors.text_batch import check_known, translate_all
from service.edge.calls.call import Call
from service.edge.requests.prompt_encoder import shorten
from service.edge.rpcs.model_calls import ModelCalls
from service.edge.rpcs.servicer import Servicer
from service.errors import InvalidRequest
from service.settings.config import ServerSettings

MAX_TEXTS = 1024  # of one request
NAMES = {
    "text": "texts[{}]",
    "glossary": "dnt_phrases",
    "glossary.terms": "dnt_phrases",
}
_KEPT = re.compile(r"<(/?)dnt>")
_SEPARATOR = "##"


class RivaTranslation(ModelCalls):
    """The RPCs of the service. Event-loop thread only."""

    FILE = riva.DESCRIPTOR
    PROBES = ()

    def __init__(self, glossa: Servicer, settings: ServerSettings, _not_ready: Callable[[], Sequence[str]]) -> None:
        super().__init__(glossa.catalog, glossa.preparation, log_text=settings.log_text)
        self._glossa = glossa

    async def TranslateText(self, message: riva.TranslateTextRequest, call: Call) -> riva.TranslateTextResponse:
        requests = await self.built(lambda: _requests(message), message, call)
        responses = await translate_all(self._glossa, requests, call, NAMES)
        language = message.target_language
        return riva.TranslateTextResponse(
            translations=[riva.Translation(text=one.text, language=language) for one in responses],
            id=message.id if message.HasField("id") else None,
        )

    async def ListSupportedLanguagePairs(
        self, message: riva.AvailableLanguageRequest, call: Call
    ) -> riva.AvailableLanguageResponse:
        check_known(message)
        if message.model:
            models = [(await self._glossa.GetModel(pb.GetModelRequest(model=message.model), call)).model]
        else:
            models = list((await self._glossa.ListModels(pb.ListModelsRequest(), call)).models)
        pair = riva.AvailableLanguageResponse.LanguagePair
        return riva.AvailableLanguageResponse(
            languages={
                model.name: pair(src_lang=model.source_languages, tgt_lang=model.target_languages)
                for model in models
                if model.is_default and model.target_languages
            }
        )


def _requests(message: riva.TranslateTextRequest) -> list[pb.TranslateRequest]:
    """The requests for the texts of a message. Raises InvalidRequest."""
    check_known(message)
    if not 1 <= len(message.texts) <= MAX_TEXTS:
        raise InvalidRequest("texts", f"must be 1..{MAX_TEXTS}, got {len(message.texts)}")
    if message.max_len_variation:
        problem = "must be empty: only the model's own limit bounds an answer; with glossa.v1, options.max_tokens does"
        raise InvalidRequest("max_len_variation", problem)
    phrases = fixed_phrases(message.dnt_phrases)
    requests = []
    for index, text in enumerate(message.texts):
        plain, kept = without_tags(text, f"texts[{index}]")
        terms = phrases | {phrase: phrase for phrase in kept}
        request = pb.TranslateRequest(
            model=message.model,
            text=plain,
            source_language=message.source_language,
            target_language=message.target_language,
        )
        request.glossary.terms.extend(
            pb.GlossaryTerm(source=one, targets=[terms[one]]) for one in terms if one in plain
        )
        if not request.glossary.terms:
            request.ClearField("glossary")
        requests.append(request)
    return requests


def fixed_phrases(entries: Iterable[str]) -> dict[str, str]:
    """The translation of each phrase of dnt_phrases: `phrase##translation`, or `phrase` alone, several separated by
    commas. Raises InvalidRequest for a part without a phrase, for a phrase with two translations, and for parts with
    and without a translation in one entry: clients do not escape the commas of phrases."""
    phrases: dict[str, str] = {}
    for index, entry in enumerate(entries):
        parts = [part.partition(_SEPARATOR) for part in entry.split(",")]
        field = f"dnt_phrases[{index}]"
        if len({separator for _, separator, _ in parts}) > 1:
            problem = (
                "must separate phrases by commas, all with a translation or all without: no phrase may have a comma"
            )
            raise InvalidRequest(field, f"{problem}, got {shorten(entry, 64)!r}")
        for phrase, _, translation in parts:
            source, target = phrase.strip(), translation.strip() or phrase.strip()
            if not source:
                raise InvalidRequest(field, f"must name a phrase before {_SEPARATOR}, got {shorten(entry, 64)!r}")
            if (known := phrases.setdefault(source, target)) != target:
                both = " and ".join(repr(shorten(one, 64)) for one in (known, target))
                raise InvalidRequest(field, f"{shorten(source, 64)!r} has two translations, {both}")
    return phrases


def without_tags(text: str, field: str) -> tuple[str, list[str]]:
    """A text without <dnt> and </dnt>, and what it has between them. Raises InvalidRequest, which names `field`, where
    the tags are no pairs or enclose nothing."""
    pieces, kept, start, opened = list[str](), list[str](), 0, -1
    for tag in _KEPT.finditer(text):
        if bool(tag[1]) == (opened < 0):
            problem = f"has {tag[0]} at character {tag.start() + 1} without its partner"
            raise InvalidRequest(field, problem)
        piece = text[start : tag.start()]
        if tag[1]:
            if not piece.strip():
                raise InvalidRequest(field, f"has nothing between the tags <dnt> at character {opened + 1}")
            kept.append(piece.strip())
        pieces.append(piece)
        start, opened = tag.end(), -1 if tag[1] else tag.start()
    if opened >= 0:
        raise InvalidRequest(field, f"has <dnt> at character {opened + 1} without its partner")
    return "".join((*pieces, text[start:])), kept
