"""The RPC for documents: a document becomes items, which are answered as Translate answers (`DocumentCalls`).

How documents are read and written is in `documents`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING, Any

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.batches import defaults_bytes, merged
from service.edge.calls.call import Call
from service.edge.calls.conversation import takes_items
from service.edge.calls.items import Answer, Outcome
from service.edge.models.served_model import ServedModel
from service.edge.requests.language_routes import AUTO, Route
from service.edge.requests.prompt_encoder import LanguagePair, PromptEncoder
from service.edge.requests.request_limits import TextLimits
from service.edge.rpcs.document_context import TextInContext, check_context
from service.edge.rpcs.document_formats import format_of
from service.edge.rpcs.documents import (
    DOCUMENT_FACTOR,
    Document,
    check_document,
    check_splitter,
    fits,
    text_of,
    translation_of,
)
from service.edge.rpcs.languages.pivot_calls import PivotCalls, check_pivot
from service.edge.rpcs.languages.routed_calls import joined_words
from service.edge.rpcs.model_calls import is_slow, languages_of
from service.edge.rpcs.proto_conversion import decoding_options
from service.errors import InvalidRequest
from service.options import DEFAULTS
from service.text.language_detection import Guess
from service.text.languages import Languages
from service.text.segmentation import splitter_for
from service.text.segments import DocumentError, Text


class DocumentCalls(PivotCalls):
    """Calls for documents. Event-loop thread only."""

    if TYPE_CHECKING:  # of the class that has all RPCs

        async def check_translation(self, request: pb.TranslateRequest, model: ServedModel, call: Call) -> None: ...

    @takes_items
    async def TranslateDocument(
        self, messages: AsyncGenerator[Any, None], call: Call
    ) -> AsyncGenerator[pb.TranslateDocumentResponse, None]:
        first = await anext(messages)
        text = sample = None
        if first.source_language == AUTO:
            text = await text_of(first, messages, call, self.items, limit=self.catalog.limits.max_document_bytes)
            sample = await self._sample(text, first, call)
        routed = await self.routed(first, call, sample=sample, is_logged=False)
        if text is not None and routed.guess is None:  # the document named it
            routed = routed._replace(guess=Guess(first.source_language, 1.0))
        prompts, defaults = await self._checked(first, routed.route, call)
        limits = self._limits(routed.route)
        if text is None:
            text = await text_of(first, messages, call, self.items, limit=limits.max_document_bytes)
        document = Document(text, first, call, partial(fits, prompts, limits), self.preparation)
        await document.read()
        window = routed.route.model.pool.window
        outcomes = self._outcomes(document, first, defaults, routed.route, call, window=window)
        async with contextlib.aclosing(outcomes):
            async for message in document.responses(outcomes, self.items.clock):
                if message.HasField("final"):
                    routed.note(message.final)
                yield message

    async def translated_document(
        self, route: Route, message: pb.TranslateRequest, format: pb.DocumentFormat, item: Call
    ) -> pb.TranslateResponse:
        """The translation of a text that is a document, an item of a call. What fails one of its segments fails the
        item. Of the message, languages and glossary are read. route: that of `route_of_items`."""
        first = pb.TranslateDocumentRequest(
            text=message.text,
            format=format,
            source_language=message.source_language,
            target_language=message.target_language,
            glossary=message.glossary if message.HasField("glossary") else None,
        )
        item.use(route.model)
        prompts, defaults = await self._checked(first, route, item)
        limits, size = self._limits(route), len(first.text.encode())
        if size > limits.max_document_bytes:
            raise InvalidRequest("text", f"must be at most {limits.max_document_bytes} bytes, got {size}; split it")
        await item.reserve(DOCUMENT_FACTOR * size)
        document = Document(first.text, first, item, partial(fits, prompts, limits), self.preparation)
        await document.read()
        response = pb.TranslateResponse()
        with item.budget.window(route.model.pool.window) as window:
            outcomes = self._outcomes(document, first, defaults, route, item, window=window, is_one=True)
            async with contextlib.aclosing(_without_errors(outcomes)) as successes:
                async for part in document.responses(successes, self.items.clock):
                    for segment in part.segments:
                        if segment.HasField("error"):
                            raise InvalidRequest("text", segment.error.message)
                        response.text += segment.text
        return response

    def _limits(self, route: Route) -> TextLimits:
        """The limits of the texts of a document."""
        return self.catalog.limits_of(route.first or route.model)

    async def _checked(
        self, first: pb.TranslateDocumentRequest, route: Route, call: Call
    ) -> tuple[PromptEncoder, pb.TranslateRequest]:
        """What encodes the texts of a document, and the request for each, but for its text. Refuses what would be
        refused of every text. Raises InvalidRequest and Unsupported."""
        model, options, languages = route.model, decoding_options(first.options), languages_of(first)
        if route.first is not None:
            check_pivot(first, route)
            before = LanguagePair(languages.source, route.middle)
            reads = partial(check_document, route.first, DEFAULTS, before, self.builder(route.first, call))
            languages = LanguagePair(route.middle, languages.target)
        check = partial(check_document, model, options, languages, self.builder(model, call))
        prompts = await self.built(check, first, call, is_slow=is_slow(model, options))
        if route.first is not None:
            prompts = await self.built(reads, first, call, is_slow=is_slow(route.first, DEFAULTS))
        check_splitter(first.splitter_language)
        check_context(model, first.context_sentences)
        if first.markup.tags:
            raise InvalidRequest(
                "markup.tags", "must be false: tags are those of the format; choose another format than text"
            )
        defaults = translation_of(first)
        if route.first is not None:
            check_pivot(defaults, route)
        await self.check_translation(defaults, model, call)
        return prompts, defaults

    def _outcomes(
        self,
        document: Document,
        first: pb.TranslateDocumentRequest,
        defaults: pb.TranslateRequest,
        route: Route,
        call: Call,
        *,
        window: int,
        is_one: bool = False,
    ) -> AsyncGenerator[list[Outcome], None]:
        """Those of the texts of a document, in their order. is_one: see `ItemRunner.run`."""
        return self.items.run(
            call,
            document.items(),
            self._answer(first, defaults, route, call),
            window=window,
            in_order=True,
            has_client=False,
            is_one=is_one,
            item_bytes=defaults_bytes(defaults),
        )

    def _answer(
        self, first: pb.TranslateDocumentRequest, defaults: pb.TranslateRequest, route: Route, call: Call
    ) -> Answer:
        """What translates the texts of a document, each an item of the call."""
        translated = self.translated if route.first is None else partial(self.pivoted, route)

        async def translate(text: TextInContext, item: Call) -> pb.TranslateResponse:
            response = None
            try:
                if first.context_sentences:
                    # An item that waits for another one holds no memory that the other may need.
                    reserved = item.budget.memory.size
                    item.budget.memory.release()
                    item.read_after(await text.context())
                    await item.reserve(reserved)
                    self.items.begin(item, call)
                item.use(route.model)
                response = await translated(route.model, merged(text.request, defaults), item)
                return response
            finally:
                text.end(response)

        return translate

    async def _sample(self, text: str, first: Any, call: Call) -> str:
        """The beginning of a document's texts. first: its first message, which names its language from then on if the
        document does: an XLIFF file must, what an HTML page says is often that of its template."""
        format = format_of(first.format)

        def read() -> tuple[str, str]:
            try:
                named = format.check(text, first.target_language)
            except DocumentError as error:
                raise InvalidRequest("text", str(error)) from None
            segments = format.segments(text, splitter_for(""), Languages("", first.target_language))
            return named, joined_words(part.plain for one in segments for part in one.parts if isinstance(part, Text))

        named, sample = await self.preparation.prepare(call.rpc.caller, read)
        if named and first.format == pb.DOCUMENT_FORMAT_XLIFF:
            first.source_language = named
        return sample


async def _without_errors(outcomes: AsyncGenerator[list[Outcome], None]) -> AsyncGenerator[list[Outcome], None]:
    """The outcomes of items until one has failed. Raises its error."""
    async with contextlib.aclosing(outcomes):
        async for some in outcomes:
            for outcome in some:
                if outcome.error is not None:
                    raise outcome.error
            yield some
