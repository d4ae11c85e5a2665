"""The texts of a document with context: each waits for those before it in its paragraph (`TextInContext`).

A text that failed ends the context, and the text after it begins anew. Nothing here knows tokens or models.
"""

from __future__ import annotations

import asyncio
from typing import Any

from glossa.v1 import glossa_pb2 as pb
from service.edge.models.served_model import ServedModel
from service.edge.requests.prompt_encoder import ContextSentence
from service.errors import InvalidRequest


def check_context(model: ServedModel, sentences: int) -> None:
    """Refuses more sentences before each text than the model was trained with. Raises InvalidRequest."""
    most, field = model.context_sentences, "context_sentences"
    if not most and sentences:
        problem = f"must be 0: model {model.name!r} was trained without context, got {sentences}"
        raise InvalidRequest(field, f"{problem}; train one with the field {field}")
    if not 0 <= sentences <= most:
        raise InvalidRequest(field, f"must be 0..{most} for model {model.name!r}, got {sentences}")


class TextInContext:
    """A text to translate. Event-loop thread only.

    request: for the text. before: the text before it in its paragraph, None for the first. size: the most sentences
    that are read with the text after it.
    """

    def __init__(self, request: Any, before: TextInContext | None, size: int) -> None:
        self.request, self._before, self._size = request, before, size
        self._context: tuple[ContextSentence, ...] = ()
        self._window: asyncio.Future[tuple[ContextSentence, ...]] = asyncio.get_running_loop().create_future()

    async def context(self) -> tuple[ContextSentence, ...]:
        """The sentences before the text, oldest first. Returns when they are translated."""
        if self._before is not None:
            self._context = await asyncio.shield(self._before._window)
            self._before = None  # a paragraph may be as long as its document
        return self._context

    def end(self, response: pb.TranslateResponse | None) -> None:
        """Notes the translation, None for a text without one; the first call counts."""
        if self._window.done() or not self._size:
            return
        window: tuple[ContextSentence, ...] = ()
        if response is not None:
            has_marks = response.HasField("markup")
            source = response.markup.source_text if has_marks else self.request.text
            translation = response.markup.plain_text if has_marks else response.text
            window = (*self._context, ContextSentence(source, translation))[-self._size :]
        self._window.set_result(window)
