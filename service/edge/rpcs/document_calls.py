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
from service.edge.rpcs.document_context import TextInContext, check_context
from service.edge.rpcs.documents import Document, check_document, check_splitter, fits, text_of, translation_of
from service.edge.rpcs.item_calls import ItemCalls
from service.edge.rpcs.model_calls import languages_of
from service.edge.rpcs.proto_conversion import decoding_options
from service.edge.rpcs.text_calls import is_slow
from service.errors import InvalidRequest


class DocumentCalls(ItemCalls):
    """Calls for documents. Event-loop thread only."""

    if TYPE_CHECKING:  # of the class that has all RPCs

        async def translated(
            self, model: ServedModel, message: pb.TranslateRequest, call: Call
        ) -> pb.TranslateResponse: ...

        async def check_translation(self, request: pb.TranslateRequest, model: ServedModel, call: Call) -> None: ...

    @takes_items
    async def TranslateDocument(
        self, messages: AsyncGenerator[Any, None], call: Call
    ) -> AsyncGenerator[pb.TranslateDocumentResponse, None]:
        first = await anext(messages)
        model = self.find(first.model, call, "translation", by_prompt=True)
        limits = self.catalog.limits_of(model)
        options, builder = decoding_options(first.options), self.builder(model, call)
        check = partial(check_document, model, options, languages_of(first), builder)
        prompts = await self.built(check, first, call, is_slow=is_slow(model, options))
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
                response = await self.translated(model, merged(text.request, defaults), item)
                return response
            finally:
                text.end(response)

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
                yield message
