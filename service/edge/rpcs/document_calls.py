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
from service.edge.models.served_model import ServedModel
from service.edge.requests.language_routes import AUTO, Route
from service.edge.requests.prompt_encoder import LanguagePair, PromptEncoder
from service.edge.rpcs.document_context import TextInContext, check_context
from service.edge.rpcs.document_formats import format_of
from service.edge.rpcs.documents import Document, check_document, check_splitter, fits, text_of, translation_of
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
        model, way = routed.route.model, routed.route
        limits = self.catalog.limits_of(way.first or model)
        prompts = await self._checked(way, first, call)
        translated = self.translated if way.first is None else partial(self.pivoted, way)
        check_splitter(first.splitter_language)
        check_context(model, first.context_sentences)
        if first.markup.tags:
            raise InvalidRequest(
                "markup.tags", "must be false: tags are those of the format; choose another format than text"
            )
        defaults = translation_of(first)
        await self.check_translation(defaults, model, call)

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
                item.use(model)
                response = await translated(model, merged(text.request, defaults), item)
                return response
            finally:
                text.end(response)

        if text is None:
            text = await text_of(first, messages, call, self.items, limit=limits.max_document_bytes)
        document = Document(text, first, call, partial(fits, prompts, limits), self.preparation)
        await document.read()
        outcomes = self.items.run(
            call,
            document.items(),
            translate,
            window=model.pool.window,
            in_order=True,
            has_client=False,
            item_bytes=defaults_bytes(defaults),
        )
        async with contextlib.aclosing(outcomes):
            async for message in document.responses(outcomes, self.items.clock):
                if message.HasField("final"):
                    routed.note(message.final)
                yield message

    async def _checked(self, way: Route, first: Any, call: Call) -> PromptEncoder:
        """What encodes the texts for the model that reads them, once their options and languages are checked."""
        model, options, languages = way.model, decoding_options(first.options), languages_of(first)
        if way.first is not None:
            check_pivot(first)
            before = LanguagePair(languages.source, way.middle)
            reads = partial(check_document, way.first, DEFAULTS, before, self.builder(way.first, call))
            languages = LanguagePair(way.middle, languages.target)
        check = partial(check_document, model, options, languages, self.builder(model, call))
        prompts = await self.built(check, first, call, is_slow=is_slow(model, options))
        return (
            prompts if way.first is None else await self.built(reads, first, call, is_slow=is_slow(way.first, DEFAULTS))
        )

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
