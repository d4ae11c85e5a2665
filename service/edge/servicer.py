"""gRPC services of glossa.v1: a message becomes a `Request`, the events of an engine become messages.

Every RPC is one method, found by its name in the .proto. What all calls share (ids, deadlines, admission, statuses,
logs) is in `calls`; what messages mean is in `proto_conversion`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from export.manifest import Task
from glossa.v1 import glossa_pb2 as pb
from service.edge.calls import Call, Calls, Parse
from service.edge.catalog import DECODER_TASKS, ENCODER_TASKS, Catalog
from service.edge.event_stream import EventStream
from service.edge.metrics import Rpc
from service.edge.model_description import describe
from service.edge.preparation import Preparation
from service.edge.prompt_encoder import INLINE_BYTES, NO_LANGUAGES, LanguagePair
from service.edge.proto_conversion import (
    DEFAULT_CANDIDATES,
    attend_response,
    attention_choice,
    classify_response,
    completion,
    decoding_options,
    details,
    embed_response,
    fill_mask_response,
    pooling_from,
    score_response,
)
from service.edge.request_builder import RequestBuilder
from service.edge.request_limits import answer_size
from service.edge.request_memory import answer_bytes
from service.edge.served_model import ServedModel
from service.errors import InvalidRequest
from service.options import DecodingOptions
from service.request import Finished, Request

INLINE_SIZE = 48_000  # bytes converted to messages on the event loop, in about a millisecond

SERVICES = tuple(service.full_name for service in pb.DESCRIPTOR.services_by_name.values())
RPCS = tuple(
    Rpc("server_stream" if method.server_streaming else "unary", service.full_name, method.name)
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)

T = TypeVar("T")


class Servicer:
    """The RPCs of all services. Event-loop thread only."""

    def __init__(self, catalog: Catalog, preparation: Preparation, *, log_text: bool = False) -> None:
        self._catalog, self._preparation, self._log_text = catalog, preparation, log_text

    async def Translate(self, request: pb.TranslateRequest, call: Call) -> pb.TranslateResponse:
        return pb.TranslateResponse(**await self._unary("translation", request, call))

    def StreamTranslate(
        self, request: pb.StreamTranslateRequest, call: Call
    ) -> AsyncGenerator[pb.StreamTranslateResponse, None]:
        return self._stream("translation", request, call, pb.StreamTranslateResponse)

    async def Generate(self, request: pb.GenerateRequest, call: Call) -> pb.GenerateResponse:
        return pb.GenerateResponse(**await self._unary("generation", request, call))

    def StreamGenerate(
        self, request: pb.StreamGenerateRequest, call: Call
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        return self._stream("generation", request, call, pb.StreamGenerateResponse)

    async def Score(self, request: pb.ScoreRequest, call: Call) -> pb.ScoreResponse:
        model = self._find(request, call, *DECODER_TASKS)
        if bool(request.target) == bool(request.target_tokens):
            raise InvalidRequest("target", "must be given, as text or as target_tokens, but not as both")
        build = partial(
            self._builder(model, call).scoring,
            request.text,
            request.target or tuple(request.target_tokens),
            decoding_options(request.options),
            _languages(request),
            omit_eos=request.omit_eos,
        )
        built = await self._built(build, request, call)
        finished = await self._finished(model, built, call)
        convert = partial(score_response, finished, built, model, text=request.text)
        return await convert_off_loop(self._preparation, model, built, convert)

    async def Embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        model = self._find(request, call, *ENCODER_TASKS)
        build = partial(self._builder(model, call).embedding, request.text, pooling_from(request), _languages(request))
        finished = await self._finished(model, await self._built(build, request, call), call)
        return embed_response(finished, normalize=request.normalize)

    async def FillMask(self, request: pb.FillMaskRequest, call: Call) -> pb.FillMaskResponse:
        model = self._find(request, call, "encoding", can=lambda model: bool(model.mask_token))
        top_k = request.top_k if request.HasField("top_k") else DEFAULT_CANDIDATES
        build = partial(self._builder(model, call).mask_filling, request.text, top_k)
        finished = await self._finished(model, await self._built(build, request, call), call)
        return fill_mask_response(finished, model)

    async def Classify(self, request: pb.ClassifyRequest, call: Call) -> pb.ClassifyResponse:
        model = self._find(request, call, "encoding", can=lambda model: model.is_classifier)
        classification = self._builder(model, call).classification
        build = partial(classification, request.text, token_weights=request.include_token_weights)
        finished = await self._finished(model, await self._built(build, request, call), call)
        return classify_response(finished, model, text=request.text)

    async def Attend(self, request: pb.AttendRequest, call: Call) -> pb.AttendResponse:
        model = self._find(request, call)
        if request.target and request.target_tokens:
            raise InvalidRequest("target", "must be given as text or as target_tokens, but not as both")
        build = partial(
            self._builder(model, call).attention,
            request.text,
            request.target or tuple(request.target_tokens) or None,
            attention_choice(request),
            _languages(request),
            text_only=request.text_only,
            max_tokens=request.max_tokens,
        )
        built, choice = await self._built(build, request, call)
        finished = await self._finished(model, built, call)
        return await self._preparation.convert(
            call.caller, partial(attend_response, finished, built, model, choice, request)
        )

    async def ListModels(self, request: pb.ListModelsRequest, call: Call) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[describe(model, self._catalog.limits) for model in self._catalog])

    async def GetModel(self, request: pb.GetModelRequest, call: Call) -> pb.GetModelResponse:
        return pb.GetModelResponse(model=describe(self._find(request, call), self._catalog.limits))

    def _find(
        self, request: Any, call: Call, *tasks: Task, can: Callable[[ServedModel], bool] = lambda _: True
    ) -> ServedModel:
        """The model that `request` names, noted in the call's log line. Raises as `Catalog.find`."""
        if self._log_text:
            call.texts = {name: getattr(request, name) for name in ("text", "target") if hasattr(request, name)}
        model = self._catalog.find(request.model, *tasks, can=can)
        call.model = model.name
        return model

    def _builder(self, model: ServedModel, call: Call) -> RequestBuilder:
        limits = self._catalog.limits
        return RequestBuilder(model, limits, call.request_id, call.deadline_s, call.trace_id, call.caller)

    async def _build(self, task: Task, message: Any, call: Call, *, is_streamed: bool) -> tuple[ServedModel, Request]:
        """The request of a message to translate or generate."""
        model = self._find(message, call, task)
        if self._log_text:
            call.texts["answer"] = ""
        options = decoding_options(message.options)
        if is_streamed:
            _check_streamable(options)
        languages = _languages(message) if task == "translation" else NO_LANGUAGES
        builder = self._builder(model, call)
        if len(message.text) > INLINE_BYTES:
            builder.check_length(message.text)
        build = partial(builder.decoding, message.text, options, languages, is_streamed=is_streamed)
        return model, await self._built(build, message, call, is_slow=options.use_shortlist)

    async def _unary(self, task: Task, message: Any, call: Call) -> dict[str, Any]:
        """The fields of a unary response."""
        model, request = await self._build(task, message, call, is_streamed=False)
        async with _submitted(model, request, call) as events:
            text, tokens, call.finished = await events.piece()
        assert call.finished is not None, "the answer of a request that is not streamed is one piece"
        if self._log_text:
            call.texts["answer"] = text
        prompt = message.text if request.options.echo else ""
        return {
            "text": prompt + text,
            "tokens": tokens if message.include_tokens else (),
            **completion(call.finished),
            **await self._details(call.finished, request, model, message),
        }

    async def _stream(self, task: Task, message: Any, call: Call, build: Callable[..., T]) -> AsyncGenerator[T, None]:
        """The messages of a stream, each built from its fields."""
        model, request = await self._build(task, message, call, is_streamed=True)
        prompt = message.text if request.options.echo else ""  # sent with the first text
        async with _submitted(model, request, call) as events:
            while call.finished is None:
                text, tokens, call.finished = await events.piece()
                if self._log_text:
                    call.texts["answer"] += text
                if prompt and (text or call.finished):
                    prompt, text = "", prompt + text
                fields: dict[str, Any] = {"text": text, "tokens": tokens if message.include_tokens else ()}
                if call.finished:
                    more = await self._details(call.finished, request, model, message)
                    yield build(**fields, final=pb.Completion(**completion(call.finished), **more))
                elif text or message.include_tokens:
                    yield build(**fields)

    async def _built(self, build: Callable[[], T], message: Message, call: Call, *, is_slow: bool = False) -> T:
        """`build()`, in a thread unless the message is small enough for the event loop."""
        self._preparation.see(call.caller)
        if is_slow or message.ByteSize() > INLINE_BYTES:
            return await self._preparation.prepare(call.caller, build)
        return build()

    async def _details(self, finished: Finished, request: Request, model: ServedModel, message: Any) -> dict[str, Any]:
        """The response's fields beside the best answer's text, as far as the client's message requests them."""
        convert = partial(details, finished, request, model, text=message.text, has_tokens=message.include_tokens)
        if not request.options.returns_hypotheses:
            return convert()
        return await convert_off_loop(self._preparation, model, request, convert)

    @staticmethod
    async def _finished(model: ServedModel, request: Request, call: Call) -> Finished:
        """The end of a request, without its text."""
        async with _submitted(model, request, call) as events:
            _, _, call.finished = await events.piece()
        assert call.finished is not None
        return call.finished


def generic_handlers(
    calls: Calls, catalog: Catalog, preparation: Preparation, *, log_text: bool = False
) -> list[grpc.GenericRpcHandler]:
    """The handlers of every RPC in the .proto, each a method of that name."""
    servicer, rpcs = Servicer(catalog, preparation, log_text=log_text), iter(RPCS)
    return [
        grpc.method_handlers_generic_handler(
            service.full_name,
            {
                method.name: _method_handler(calls, next(rpcs), getattr(servicer, method.name), method)
                for method in service.methods
            },
        )
        for service in pb.DESCRIPTOR.services_by_name.values()
    ]


def _method_handler(calls: Calls, rpc: Rpc, behaviour: Callable[..., Any], method: Any) -> Any:
    parse, response_type = parser_of(method.input_type._concrete_class), method.output_type._concrete_class

    async def handle(_messages: Any, context: Any) -> Any:
        return await calls.run(rpc, behaviour, context, parse)

    # Not by gRPC: parsing makes a message forty times as large, and `calls` asks first whether there is room for that.
    # On the wire a single message is a stream of one. To grpc, `handle` takes a stream: it is called before the message
    # has come, and admits or refuses the call without it.
    make = grpc.stream_stream_rpc_method_handler if method.server_streaming else grpc.stream_unary_rpc_method_handler
    return make(handle, None, response_type.SerializeToString)


def parser_of(message_type: Any) -> Parse:
    """What makes a message of bytes, or None of those that are none."""

    def parse(data: bytes) -> Message | None:
        message: Message | None = None
        with contextlib.suppress(DecodeError):
            message = message_type.FromString(data)
        return message

    return parse


@contextlib.asynccontextmanager
async def _submitted(model: ServedModel, request: Request, call: Call) -> AsyncIterator[EventStream]:
    """The events of a request in an engine. Leaving before the end cancels it: its rows are free one step later."""
    call.memory.grow(answer_bytes(*answer_size(model.manifest, request)))
    events = EventStream()
    cancel = model.pool.submit(request, asyncio.get_running_loop(), events)
    call.is_accepted = True
    try:
        yield events
    finally:
        if call.finished is None:
            cancel()
            call.finished = events.unread  # computed, if for nobody


async def convert_off_loop(
    preparation: Preparation, model: ServedModel, request: Request, convert: Callable[[], T]
) -> T:
    """`convert()`, in a thread when the response may be too large to convert on the event loop."""
    size = answer_size(model.manifest, request)
    return convert() if sum(size) <= INLINE_SIZE else await preparation.convert(request.caller, convert)


def _languages(request: Any) -> LanguagePair:
    return LanguagePair(request.source_language, request.target_language)


def _check_streamable(options: DecodingOptions) -> None:
    """Rejects options whose answer has no text before its end."""
    fix = "call the method that does not stream"
    if options.num_sequences > 1:
        raise InvalidRequest("options.num_sequences", f"must be 1 in a stream, got {options.num_sequences}; {fix}")
    if options.return_alternatives:
        raise InvalidRequest("options.return_alternatives", f"must be false in a stream, got true; {fix}")
