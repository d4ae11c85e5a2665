"""Cloud Translation, version 3: `google.cloud.translation.v3.TranslationService`.

Texts are translated as `Translate` of glossa.v1 does, those of HTML as documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from glossa.v1 import glossa_pb2 as pb
from service.adaptors.google_translation import translation_service_pb2 as google
from service.adaptors.text_batch import check_known, translate_all
from service.edge.calls.call import Call
from service.edge.requests.prompt_encoder import shorten
from service.edge.rpcs.model_calls import ModelCalls
from service.edge.rpcs.servicer import Servicer
from service.errors import InvalidRequest
from service.settings.config import ServerSettings

MAX_TEXTS = 1024  # of one request
HTML, PLAIN = "text/html", "text/plain"
NAMES = {
    "text": "contents[{}]",
    "source_language": "source_language_code",
    "target_language": "target_language_code",
    "glossary.name": "glossary_config.glossary",
}
_PARENT = r"projects/[^/]+(?:/locations/[^/]+)?"
_NAME = re.compile(rf"{_PARENT}/(?P<kind>models|glossaries)/(?P<name>.+)")
GENERAL = "general/nmt"


class GoogleTranslation(ModelCalls):
    """The RPCs of the service. Event-loop thread only."""

    FILE = google.DESCRIPTOR
    PROBES = ()

    def __init__(self, glossa: Servicer, settings: ServerSettings, _not_ready: Callable[[], Sequence[str]]) -> None:
        super().__init__(glossa.catalog, glossa.preparation, log_text=settings.log_text)
        self._glossa = glossa

    async def TranslateText(self, message: google.TranslateTextRequest, call: Call) -> google.TranslateTextResponse:
        requests = await self.built(lambda: _requests(message), message, call)
        responses = await translate_all(self._glossa, requests, call, NAMES)
        return google.TranslateTextResponse(
            translations=[google.Translation(translated_text=one.text, model=message.model) for one in responses]
        )

    async def DetectLanguage(self, message: google.DetectLanguageRequest, call: Call) -> google.DetectLanguageResponse:
        raise NotImplementedError

    async def GetSupportedLanguages(
        self, message: google.GetSupportedLanguagesRequest, call: Call
    ) -> google.SupportedLanguages:
        raise NotImplementedError


def _requests(message: google.TranslateTextRequest) -> list[pb.TranslateRequest]:
    raise NotImplementedError
