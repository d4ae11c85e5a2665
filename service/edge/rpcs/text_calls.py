"""Calls that are answered with text: a message to translate or generate becomes a request, its answer a response
(`TextCalls`), for every protocol whose messages have these fields."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.call import Call
from service.edge.models.answer_confidence import (
    INLINE_TOKENS,
    UNCERTAIN_BELOW,
    AnswerConfidence,
    answer_confidence,
    as_asked,
    with_logprobs,
)
from service.edge.models.served_model import ServedModel
from service.edge.requests.chat_prompts import ChatPrompts, Spelled
from service.edge.requests.prompt_encoder import INLINE_BYTES
from service.edge.requests.request_builder import RequestBuilder
from service.edge.rpcs.chat_messages import chat_of, spelled_in, warnings_of
from service.edge.rpcs.item_calls import ItemCalls
from service.edge.rpcs.model_calls import convert_off_loop, is_slow, languages_of, submitted
from service.edge.rpcs.proto_conversion import completion, decoding_options, details
from service.errors import InvalidRequest
from service.options import DecodingOptions
from service.request import Finished, Request

T = TypeVar("T")


class TextCalls(ItemCalls):
    """Calls to models that answer in text. Event-loop thread only."""

    async def unary(self, model: ServedModel, message: Any, call: Call) -> dict[str, Any]:
        """The fields of a unary response."""
        request, warnings = await self._build(model, message, call, is_streamed=False)
        text, tokens, finished = await self.answered(model, request, call, asked=as_asked(request, message))
        if self.log_text:
            call.record.note(answer=text)
        prompt = request.continued_text if request.options.echo else ""
        return {
            "text": prompt + text,
            "tokens": tokens if message.include_tokens else (),
            **completion(finished),
            **await self._details(finished, request, model, message, call),
            **warnings,
        }

    async def stream(
        self, model: ServedModel, message: Any, call: Call, build: Callable[..., T]
    ) -> AsyncGenerator[T, None]:
        """The messages of a stream, each built from its fields."""
        request, warnings = await self._build(model, message, call, is_streamed=True)
        prompt = request.continued_text if request.options.echo else ""  # sent with the first text
        async with submitted(model, request, call, asked=as_asked(request, message)) as events:
            finished = None
            while finished is None:
                text, tokens, finished = await events.piece()
                call.record.finish(finished)
                if self.log_text:
                    call.record.note_answer(text)
                if prompt and (text or finished):
                    prompt, text = "", prompt + text
                fields: dict[str, Any] = {"text": text, "tokens": tokens if message.include_tokens else ()}
                if finished:
                    more = await self._details(finished, request, model, message, call)
                    yield build(**fields, final=pb.Completion(**completion(finished), **more, **warnings))
                elif text or message.include_tokens:
                    yield build(**fields)

    async def _build(
        self, model: ServedModel, message: Any, call: Call, *, is_streamed: bool
    ) -> tuple[Request, dict[str, Any]]:
        """The request of a message to translate or generate, and the field with warnings of its answer, if any."""
        if self.log_text:
            call.record.note(answer="")
        options = decoding_options(message.options)
        if is_streamed:
            check_streamable(options)
        if has_confidence := answer_confidence(message, model) is not None:
            options = dataclasses.replace(options, token_logprobs=True)
        builder = self.builder(model, call)
        if isinstance(message, pb.GenerateRequest | pb.StreamGenerateRequest):
            return await self._continuation(builder, model, message, options, call, is_streamed=is_streamed)
        languages = languages_of(message)
        if len(message.text) > INLINE_BYTES:
            builder.check_length(message.text)
        decoding = partial(builder.decoding, is_streamed=is_streamed, has_confidence=has_confidence)
        build = partial(decoding, message.text, options, languages, context=call.context)
        request = await self.built(build, message, call, is_slow=is_slow(model, options))
        return request if has_confidence else with_logprobs(request, model), {}

    async def _continuation(
        self,
        builder: RequestBuilder,
        model: ServedModel,
        message: Any,
        options: DecodingOptions,
        call: Call,
        *,
        is_streamed: bool,
    ) -> tuple[Request, dict[str, Any]]:
        """The same of a message to continue a text, tokens or a chat."""
        given = [name for name in ("text", "prompt_tokens", "messages") if getattr(message, name)]
        if len(given) > 1:
            raise InvalidRequest(given[1], f"must be empty with {given[0]}")
        continuation = partial(builder.continuation, is_streamed=is_streamed)

        def build() -> tuple[Request, Sequence[Spelled]]:
            if (chat := chat_of(message)) is not None:
                prompt, spelled = ChatPrompts(model, self.catalog.limits_of(model)).prompt(chat)
                return continuation(prompt, options, field="messages"), spelled
            if message.prompt_tokens:
                return continuation(tuple(message.prompt_tokens), options, field="prompt_tokens"), ()
            request = builder.decoding(message.text, options, is_streamed=is_streamed)
            return request, spelled_in(message.text, "text", model)

        if len(message.text) > INLINE_BYTES:
            builder.check_length(message.text)
        renders = bool(message.messages)  # a template may take as long as its bounds allow
        request, spelled = await self.built(build, message, call, is_slow=renders or options.use_shortlist)
        if self.log_text and not message.text:
            call.record.note(text=request.continued_text)
        return request, {"warnings": warnings_of(spelled)} if spelled else {}

    async def _details(
        self, finished: Finished, request: Request, model: ServedModel, message: Any, call: Call
    ) -> dict[str, Any]:
        """The response's fields beside the best answer's text, as far as the client's message requests them."""
        confidence = answer_confidence(message, model)
        if (asked := as_asked(request, message)) is not request:
            request = asked
            note_confidence(finished, request, model, message.text, call)
        convert = partial(
            details,
            finished,
            request,
            model,
            text=request.continued_text or message.text,
            has_tokens=message.include_tokens,
        )
        if not request.options.returns_hypotheses:
            return convert()
        if confidence is not None:
            convert = partial(convert, confidence=confidence, has_logprobs=message.options.token_logprobs)
            if finished.generated_tokens > INLINE_TOKENS:
                fields = await self.preparation.convert(request.caller, convert)
            else:
                fields = await convert_off_loop(self.preparation, model, request, convert)
            if fields["confidence"].calibrated:
                call.record.note_confidence(fields["confidence"].sentence)
            return fields
        return await convert_off_loop(self.preparation, model, request, convert)


def note_confidence(finished: Finished, request: Request, model: ServedModel, text: str, call: Call) -> None:
    """Notes the confidence of an answer for its metric, unless that would take the event loop long, or the answer was
    kept, and without what confidence is computed from."""
    best = next(iter(finished.hypotheses), None)
    if best is None or not best.token_logprobs:
        return
    if model.calibration is not None and finished.generated_tokens <= INLINE_TOKENS:
        sure = AnswerConfidence(model, model.calibration, UNCERTAIN_BELOW)
        found = sure.of(best, source=request.source, text=text, options=request.options)
        call.record.note_confidence(found.sentence)


def check_streamable(options: DecodingOptions) -> None:
    """Rejects options whose answer has no text before its end."""
    fix = "call the method that does not stream"
    if options.num_sequences > 1:
        raise InvalidRequest("options.num_sequences", f"must be 1 in a stream, got {options.num_sequences}; {fix}")
    if options.return_alternatives:
        raise InvalidRequest("options.return_alternatives", f"must be false in a stream, got true; {fix}")
