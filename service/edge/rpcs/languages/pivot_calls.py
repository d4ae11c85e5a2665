"""Translations by two models, the first into a language between (`PivotCalls`): one call with one deadline, one share
of its tenant's, and the text between in its answer.

The first answer is decoded by the search of the request, a beam or greedy; every other option is of the second one.
Marks, terms and alignments are those of the text and the second answer, by both alignments (`PivotRewriting`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.call import Call
from service.edge.models.served_model import ServedModel
from service.edge.requests.glossaries import Glossaries
from service.edge.requests.language_routes import Route
from service.edge.requests.prompt_encoder import INLINE_BYTES, LanguagePair
from service.edge.rpcs.languages.pivot_rewriting import PivotRewriting, pivot_confidence
from service.edge.rpcs.languages.routed_calls import RoutedCalls, route_message
from service.edge.rpcs.model_calls import is_slow
from service.edge.rpcs.proto_conversion import completion
from service.edge.rpcs.rewriting import Rewriting, is_rewritten, summed
from service.errors import InvalidRequest
from service.request import Finished

# Of decoding options, those of the search.
SEARCH = ("beam_size", "length_penalty", "length_normalization", "patience", "early_stopping", "use_shortlist")


class PivotCalls(RoutedCalls):
    """Calls to two models that translate one after the other. Event-loop thread only."""

    glossaries: Glossaries  # of the server

    if TYPE_CHECKING:  # of the class that has all RPCs

        async def translated(
            self, model: ServedModel, message: Any, call: Call, *, is_fragment: bool = False
        ) -> pb.TranslateResponse: ...

        async def answer_rewritten(
            self, rewriting: Rewriting, message: Any, model: ServedModel, call: Call
        ) -> pb.TranslateResponse: ...

        def stream(self, model: ServedModel, message: Any, call: Call, build: Any) -> AsyncGenerator[Any, None]: ...

    async def pivoted(
        self, way: Route, model: ServedModel, message: Any, call: Call, *, is_fragment: bool = False
    ) -> pb.TranslateResponse:
        """The response to a request whose text the first model reads as a whole. model: the second one. is_fragment:
        as of `translated`."""
        if _needs_links(message):
            return await self._pivot_rewritten(way, message, call, is_fragment=is_fragment)
        before, first = await self._between(way, message, call)
        second = _second(message, before.text, way.middle)
        with _of_text_between(way):
            response = await self.translated(model, second, call)
        self._complete(response, way, before, first, call)
        return response

    async def stream_pivoted(
        self, way: Route, model: ServedModel, message: Any, call: Call
    ) -> AsyncGenerator[pb.StreamTranslateResponse, None]:
        """The messages of a stream: those of the second answer, once the first one is complete."""
        before, first = await self._between(way, message, call)
        second = _second(message, before.text, way.middle)
        responses = self.stream(model, second, call, pb.StreamTranslateResponse)
        with _of_text_between(way):
            async with contextlib.aclosing(responses):
                async for response in responses:
                    if response.HasField("final"):
                        self._complete(response.final, way, before, first, call)
                    yield response

    async def _between(self, way: Route, message: Any, call: Call) -> tuple[pb.TranslateResponse, Finished | None]:
        """The first model's answer."""
        check_pivot(message, way)
        assert way.first is not None
        request = pb.TranslateRequest(
            text=message.text, source_language=message.source_language, target_language=way.middle
        )
        request.options.CopyFrom(search_of(message.options))
        response = await self.translated(way.first, request, call)
        _check_words(response.text, way)
        return response, call.record.finished

    async def _pivot_rewritten(
        self, way: Route, message: Any, call: Call, *, is_fragment: bool
    ) -> pb.TranslateResponse:
        """The response to a request with marks, terms, an alignment or a confidence."""
        check_pivot(message, way)
        assert way.first is not None
        limits = self.catalog.limits_of(way.first)
        read = partial(PivotRewriting, message, way, limits, self.glossaries, is_fragment=is_fragment)
        rewriting = await self.built(read, message, call, is_slow=message.ByteSize() > INLINE_BYTES // 2)
        options = rewriting.first_options(search_of(message.options))
        languages = LanguagePair(message.source_language, way.middle)
        decoding = partial(self.builder(way.first, call).decoding, rewriting.text, options, languages)
        build = partial(decoding, is_streamed=False, has_confidence=message.include_confidence)
        request = await self.built(build, message, call, is_slow=is_slow(way.first, options))
        text, _, first = await self.answered(way.first, request, call)
        _check_words(text, way)
        rewriting.begin(text, first.hypotheses[0] if first.hypotheses else None, request)
        with _of_text_between(way):
            second = _second(message, text, way.middle)
            response = await self.answer_rewritten(rewriting, second, way.model, call)
        if not message.HasField("markup"):
            for hypothesis in response.hypotheses:
                hypothesis.ClearField("plain_text")
        self._complete(response, way, pb.TranslateResponse(text=text, **completion(first)), first, call)
        return response

    @staticmethod
    def _complete(answer: Any, way: Route, before: pb.TranslateResponse, first: Finished | None, call: Call) -> None:
        """Adds what the first answer cost, and its text, to the last one. answer: a response, or the end of a
        stream."""
        _add_cost(answer, before)
        answer.route.CopyFrom(route_message(way, before.text))
        if first is not None and call.record.finished is not None:
            both = summed(first, call.record.finished)
            call.record.finish(dataclasses.replace(both, prompt_tokens=first.prompt_tokens))


@contextlib.contextmanager
def _of_text_between(way: Route) -> Iterator[None]:
    """Tells that an error about a text is about the one between two models."""
    try:
        yield
    except InvalidRequest as error:
        if error.field != "text":
            raise
        assert way.first is not None
        problem = f"its translation into {way.middle} by model {way.first.name!r} {error.problem}"
        raise InvalidRequest("text", problem) from error


def check_pivot(message: Any, way: Route) -> None:
    """Refuses what two models cannot do together. message: of a document, the request for each of its texts, too.
    Raises InvalidRequest, Unsupported."""
    problem = "in a translation by way of another language"
    if not isinstance(message, pb.TranslateDocumentRequest):
        pivot_confidence(message, way)
    if isinstance(message, pb.TranslateDocumentRequest) and message.context_sentences:
        raise InvalidRequest("context_sentences", f"must be 0 {problem}; translate in two calls")
    if isinstance(message, pb.StreamTranslateRequest) and message.include_confidence:
        raise InvalidRequest("include_confidence", f"must be false in a stream {problem}; call Translate")
    if isinstance(message, pb.StreamTranslateRequest) and _needs_links(message):
        raise InvalidRequest("options.alignment", f"must be none in a stream {problem}; call Translate")


def _needs_links(message: Any) -> bool:
    """Whether the answer has something of both alignments."""
    none = (pb.ALIGNMENT_KIND_UNSPECIFIED, pb.ALIGNMENT_KIND_NONE)
    return is_rewritten(message) or message.include_confidence or message.options.alignment not in none


def _check_words(text: str, way: Route) -> None:
    """Refuses an empty text between."""
    if not text.strip():
        assert way.first is not None
        problem = f"model {way.first.name!r} has no words for it, and so nothing for {way.model.name!r}"
        raise InvalidRequest("text", f"{problem}; name another pivot_language, or a model")


def search_of(options: pb.DecodingOptions) -> pb.DecodingOptions:
    """Those of the first answer."""
    found = pb.DecodingOptions()
    for field, value in options.ListFields():
        if field.name in SEARCH:
            setattr(found, field.name, value)
    return found


def _second(message: Any, text: str, middle: str) -> Any:
    """The second model's request."""
    request = type(message)()
    request.CopyFrom(message)
    request.text, request.source_language = text, middle
    return request


def _add_cost(response: Any, before: pb.TranslateResponse) -> None:
    """Adds the first answer's cost. The prompt is the client's text alone."""
    response.usage.prompt_tokens = before.usage.prompt_tokens
    response.usage.generated_tokens += before.usage.generated_tokens
    own, other = response.timings, before.timings
    for total, part in ((own.queue, other.queue), (own.prefill, other.prefill)):
        total.FromTimedelta(total.ToTimedelta() + part.ToTimedelta())
    for total in (own.first_token, own.total):
        total.FromTimedelta(total.ToTimedelta() + other.total.ToTimedelta())
