"""Texts of several sentences for a model that translates one at a time (`SentenceCalls`): each sentence is a part of
the call, translated as a text of its own, and the answer is one.

How texts are split is in `service.text.source_sentences`, what answers become in `sentence_answers`. Options are those
of each sentence, but for max_tokens, which limits the whole: sentences are then translated one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.batches import defaults_bytes
from service.edge.calls.call import Call
from service.edge.calls.items import RESULT_FACTOR, Item
from service.edge.calls.record import together
from service.edge.models.answer_cache import NOTHING
from service.edge.models.served_model import ServedModel
from service.edge.requests.prompt_encoder import PromptEncoder
from service.edge.requests.request_builder import seed_of
from service.edge.rpcs.documents import check_splitter
from service.edge.rpcs.model_calls import INLINE_SIZE
from service.edge.rpcs.proto_conversion import decoding_options
from service.edge.rpcs.sentence_answers import is_cut, joined
from service.edge.rpcs.text_calls import TextCalls
from service.errors import InvalidRequest, RequestError
from service.option_checks import check
from service.options import DEFAULTS
from service.request import Finished
from service.text.glossary import Glossary
from service.text.inline_markup import MarkupError, extract
from service.text.mark_scanner import Kinds
from service.text.segmentation import splitter_for
from service.text.source_sentences import SplitText, may_have_several, split, unsplit

# Options about an answer as a whole, which no sentence's answer can have for it.
OF_WHOLE = (
    *("min_tokens", "stop", "ignore_eos", "prefix", "prefix_tokens", "return_alternatives", "phrases"),
    *("regex", "json_schema", "lark"),
)

Answer = Callable[[ServedModel, Any, Call], Awaitable[pb.TranslateResponse]]
"""Answers the request for one sentence."""
Stream = Callable[[ServedModel, Any, Call], AsyncGenerator[Any, None]]
"""The same in pieces."""


class WholeRequest(NamedTuple):
    """A request to translate a text, and its sentences."""

    message: pb.TranslateRequest
    text: SplitText


class Sentences:
    """The requests for the sentences of one text. message: the client's. Raises InvalidRequest for options that are
    about the whole answer."""

    def __init__(self, text: SplitText, message: Any, model: ServedModel) -> None:
        self.text, self.message, self._model = text, message, model
        self.options = decoding_options(message.options)
        for name in OF_WHOLE:
            if getattr(self.options, name) != getattr(DEFAULTS, name):
                problem = "must be left out for a text of several sentences, each of which has an answer of its own"
                raise InvalidRequest(f"options.{name}", f"{problem}; send one sentence, or split_sentences false")
        check(self.options)
        self.ended = list[Finished]()  # of those that were answered
        self._left = self.options.max_tokens  # tokens of the sentences to come; 0 without max_tokens
        self.base = type(message)()
        self.base.CopyFrom(message)
        for field in ("model", "text", "split_sentences", "splitter_language"):
            self.base.ClearField(field)
        self.is_random = self.options.is_sampling and self.options.seed is None
        if self.options.is_sampling:
            self.base.options.seed = seed_of(self.options)
        if self._left:
            self.base.include_tokens = True

    @property
    def window(self) -> int:
        """How many of them may be in flight together."""
        return 1 if self.options.max_tokens else len(self.text.sentences)

    def request(self, index: int) -> Any | None:
        """The request for a sentence; None if max_tokens has no room for it."""
        if self.options.max_tokens and self._left <= 0:
            return None
        request = type(self.base)()
        request.CopyFrom(self.base)
        request.text = self.text.sentences[index].text
        if self._left:
            request.options.max_tokens = min(self._left, self._model.max_tokens)
        return request

    def answered(self, answer: pb.TranslateResponse) -> None:
        """Notes how long an answer is: of several, the longest."""
        self._left -= max(map(len, (answer.tokens, *(one.tokens for one in answer.hypotheses))))

    def located(self, error: RequestError, index: int) -> RequestError:
        """The error of a sentence, as that of the text."""
        if not isinstance(error, InvalidRequest) or error.field != "text":
            return error
        before = self.text.sentences[:index]
        start = sum(len(one.before) + len(one.original) for one in before) + len(self.text.sentences[index].before)
        return InvalidRequest("text", f"{error.problem} (the sentence at character {start + 1})")


class SentenceCalls(TextCalls):
    """Calls to models that translate. Event-loop thread only."""

    async def split(self, message: Any, model: ServedModel, call: Call) -> SplitText | None:
        """The sentences of a message's text, if they are to be translated one by one. Raises InvalidRequest."""
        if not _is_split(message, model) or not may_have_several(message.text):
            return None
        return await self.built(partial(self.split_now, message, model), message, call)

    def split_now(self, message: Any, model: ServedModel) -> SplitText | None:
        """As `split`. Takes milliseconds for a long text."""
        if not _is_split(message, model):
            return None
        self.catalog.limits_of(model).check_text(message.text)
        splitter = splitter_for(message.splitter_language or message.source_language or model.manifest.source_language)
        kinds = Kinds(*(getattr(message.markup, kind) for kind in Kinds._fields))
        found = split(message.text, splitter, kinds, PromptEncoder(model).fits)
        if found is not None and any(kinds):
            try:
                extract(message.text, kinds)
            except MarkupError as error:
                raise InvalidRequest("text", str(error)) from error
        return found

    def split_together(self, messages: Iterable[pb.TranslateRequest], model: ServedModel) -> list[WholeRequest]:
        """The sentences of several texts, of those that are not split one each; or nothing if no text is split."""
        found = [(message, self.split_now(message, model)) for message in messages]
        if not any(text for _, text in found):
            return []
        return [WholeRequest(message, text or unsplit(message.text)) for message, text in found]

    async def in_sentences(
        self,
        text: SplitText,
        message: Any,
        model: ServedModel,
        call: Call,
        answer: Answer,
        glossary: Glossary | None = None,
    ) -> pb.TranslateResponse:
        """The answer to a text, of those to its sentences. glossary: that of the message."""
        sentences, answers = Sentences(text, message, model), list[pb.TranslateResponse]()

        async def translate(index: int, part: Call) -> pb.TranslateResponse:
            if (request := sentences.request(index)) is None:
                return pb.TranslateResponse()
            response = await answer(model, request, part)
            sentences.answered(response)
            return response

        async with contextlib.aclosing(self._parts(sentences, model, call, translate)) as found:
            async for response in found:
                answers.append(response)
        return await self._joined(sentences, answers, call, glossary)

    def stream_translated(
        self, model: ServedModel, message: Any, call: Call
    ) -> AsyncGenerator[pb.StreamTranslateResponse, None]:
        """The messages of a stream about a text that the model reads as a whole."""
        return self.stream(model, message, call, pb.StreamTranslateResponse)

    async def stream_in_sentences(
        self, text: SplitText, message: Any, model: ServedModel, call: Call, stream: Stream | None = None
    ) -> AsyncGenerator[pb.StreamTranslateResponse, None]:
        """The messages of a stream: the text of each sentence as it grows, after those before it. stream: those about
        one."""
        stream = stream or self.stream_translated
        sentences, answers = Sentences(text, message, model), list[pb.TranslateResponse]()
        pieces = _Pieces(len(text.sentences))

        async def translate(index: int, part: Call) -> pb.TranslateResponse:
            response = pb.TranslateResponse()
            if (request := sentences.request(index)) is not None:
                async with contextlib.aclosing(stream(model, request, part)) as messages:
                    async for piece in messages:
                        pieces.add(index, piece)
                        _extend(response, piece)
                sentences.answered(response)
            pieces.end(index)
            return response

        async def collect() -> None:
            async with contextlib.aclosing(self._parts(sentences, model, call, translate)) as found:
                async for response in found:
                    answers.append(response)
                    await pieces.sent(len(answers) - 1)

        collecting = asyncio.create_task(collect())
        collecting.add_done_callback(lambda _: pieces.changed.set())
        try:
            for index, sentence in enumerate(text.sentences):
                before = sentence.before
                async for piece in pieces.of(index, collecting):
                    shown, before = before + piece.text, ""
                    if self.log_text:
                        call.record.note_answer(shown)
                    if shown or message.include_tokens:
                        yield pb.StreamTranslateResponse(
                            text=shown, tokens=piece.tokens if message.include_tokens else ()
                        )
            await collecting
        finally:
            collecting.cancel()
            await asyncio.gather(collecting, return_exceptions=True)
        whole = await self._joined(sentences, answers, call)
        names = [field.name for field in pb.Completion.DESCRIPTOR.fields]
        final = pb.Completion(**{field.name: value for field, value in whole.ListFields() if field.name in names})
        after = "" if is_cut(text, answers, sentences.options) else text.after
        yield pb.StreamTranslateResponse(text=after, final=final)

    async def _parts(
        self,
        sentences: Sentences,
        model: ServedModel,
        call: Call,
        translate: Callable[[int, Call], Awaitable[pb.TranslateResponse]],
    ) -> AsyncGenerator[pb.TranslateResponse, None]:
        """The answers to sentences, in order, to the first one that max_tokens has no room for."""

        async def begun(index: int, part: Call) -> pb.TranslateResponse:
            part.use(model)
            if sentences.is_random:
                part.limit(part.rpc._replace(cache=NOTHING))
            response = await translate(index, part)
            if part.record.finished is not None:
                sentences.ended.append(part.record.finished)
            return response

        async def source() -> AsyncGenerator[Iterable[Item], None]:
            yield [Item(str(index), index) for index in range(len(sentences.text.sentences))]

        with call.budget.window(min(sentences.window, model.pool.window)) as window:
            outcomes = self.items.run(
                call,
                source(),
                begun,
                window=window,
                in_order=True,
                is_one=True,
                item_bytes=defaults_bytes(sentences.base),
            )
            async with contextlib.aclosing(outcomes):
                async for some in outcomes:
                    for outcome in some:
                        if outcome.error is not None:
                            raise sentences.located(outcome.error, int(outcome.id))
                        assert isinstance(outcome.response, pb.TranslateResponse)
                        if not outcome.response.finish_reason:
                            return
                        call.budget.memory.grow(RESULT_FACTOR * outcome.size)
                        yield outcome.response

    async def _joined(
        self,
        sentences: Sentences,
        answers: list[pb.TranslateResponse],
        call: Call,
        glossary: Glossary | None = None,
    ) -> pb.TranslateResponse:
        finished = together(sentences.ended)
        join = partial(joined, sentences.text, answers, sentences.message, sentences.options, finished, glossary)
        if sum(answer.ByteSize() for answer in answers) <= INLINE_SIZE:
            return join()
        return await self.preparation.convert(call.rpc.caller, join)


def _is_split(message: Any, model: ServedModel) -> bool:
    """Whether a text of several sentences is split. Raises InvalidRequest."""
    is_split = model.manifest.source_unit == "sentence"
    if message.HasField("split_sentences"):
        is_split = message.split_sentences
    if message.splitter_language:
        check_splitter(message.splitter_language)
        if not is_split:
            raise InvalidRequest("splitter_language", "must be left out where texts are not split; set split_sentences")
    return is_split


class _Pieces:
    """The pieces of streams that come at the same time, to be sent one stream after the other."""

    def __init__(self, count: int) -> None:
        self._waiting = [deque[Any]() for _ in range(count)]
        self._ended, self._sent = set[int](), 0
        self.changed = asyncio.Event()
        self._is_sent = asyncio.Event()

    def add(self, index: int, piece: Any) -> None:
        """A piece of a stream has come."""
        self._waiting[index].append(piece)
        self.changed.set()

    def end(self, index: int) -> None:
        """A stream has ended."""
        self._ended.add(index)
        self.changed.set()

    async def sent(self, index: int) -> None:
        """Returns when a stream was sent."""
        while self._sent <= index:
            self._is_sent.clear()
            await self._is_sent.wait()

    async def of(self, index: int, collecting: asyncio.Task[None]) -> AsyncGenerator[Any, None]:
        """The pieces of a stream, until it ends or `collecting` does, whose error is raised."""
        waiting = self._waiting[index]
        while waiting or index not in self._ended:
            if waiting:
                yield waiting.popleft()
                continue
            if collecting.done():
                collecting.result()
                return
            self.changed.clear()
            await self.changed.wait()
        self._sent = index + 1
        self._is_sent.set()


def _extend(response: pb.TranslateResponse, piece: pb.StreamTranslateResponse) -> None:
    """Adds a piece of a stream to the answer."""
    response.text += piece.text
    response.tokens.extend(piece.tokens)
    for field, value in piece.final.ListFields():
        if field.message_type and not field.is_repeated:
            getattr(response, field.name).CopyFrom(value)
        elif field.is_repeated:
            getattr(response, field.name).extend(value)
        else:
            setattr(response, field.name, value)
