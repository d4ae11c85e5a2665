"""gRPC services of glossa.v1: a message becomes a `Request`, the events of an engine become messages.

Every RPC is one method, found by its name in the .proto. What all calls share (ids, deadlines, admission, statuses,
logs) is in `calls`; what messages mean is in `proto_conversion`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from export.manifest import Task
from glossa.v1 import glossa_pb2 as pb
from service.decoding.request_processors import SLOW_OPTIONS
from service.edge.attention_builder import AttentionRequestBuilder
from service.edge.calls import Call, Calls
from service.edge.catalog import DECODER_TASKS, ENCODER_TASKS, Catalog
from service.edge.event_stream import EventStream
from service.edge.metrics import Rpc
from service.edge.model_description import describe
from service.edge.prompt_encoder import NO_LANGUAGES, LanguagePair
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
from service.edge.request_limits import response_size
from service.edge.served_model import ServedModel, Submission
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

_Message = TypeVar("_Message")


class Servicer:
    """What the services share: finding the model, and a request's way through an engine. Event-loop thread only."""

    def __init__(self, catalog: Catalog, *, log_text: bool = False) -> None:
        self.catalog, self.log_text = catalog, log_text

    def find_model(
        self, request: Any, call: Call, *tasks: Task, can: Callable[[ServedModel], bool] = lambda _: True
    ) -> ServedModel:
        """The model that `request` names, noted in the call's log line. Raises as `Catalog.find`."""
        if self.log_text:
            call.texts = {name: getattr(request, name) for name in ("text", "target") if hasattr(request, name)}
        model = self.catalog.find(request.model, *tasks, can=can)
        call.model = model.name
        return model

    def builder(self, model: ServedModel) -> RequestBuilder:
        """The builder of requests to `model`, with this server's limits."""
        return RequestBuilder(model, self.catalog.limits)

    @contextlib.asynccontextmanager
    async def submitted(self, model: ServedModel, request: Request, call: Call) -> AsyncIterator[EventStream]:
        """The events of a request in an engine. Leaving before the end cancels it: its rows are free one step later."""
        events = EventStream()
        submit = functools.partial(model.pool.submit, request, asyncio.get_running_loop(), events)
        is_slow = any(getattr(request.options, name) for name in SLOW_OPTIONS)
        submission = await _submitted_in_thread(submit) if is_slow else submit()
        try:
            yield events
        finally:
            if call.finished is None:
                submission.cancel()

    async def complete(self, model: ServedModel, request: Request, call: Call) -> tuple[str, list[int], Finished]:
        """The whole answer of an engine: its text, its token ids, and its end."""
        text, tokens = "", list[int]()
        async with self.submitted(model, request, call) as events:
            while call.finished is None:
                new_text, new_tokens, call.finished = await events.piece()
                text += new_text
                tokens += new_tokens
        return text, tokens, call.finished


class DecodingServicer(Servicer):
    """TranslationService and GenerationService."""

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

    async def _build(self, task: Task, message: Any, call: Call, *, is_streamed: bool) -> tuple[ServedModel, Request]:
        model = self.find_model(message, call, task)
        if self.log_text:
            call.texts["answer"] = ""
        options = decoding_options(message.options)
        if is_streamed:
            _check_streamable(options)
        languages = _languages(message) if task == "translation" else NO_LANGUAGES
        request = await self.builder(model).decoding(
            call.info, message.text, options, languages, is_streamed=is_streamed
        )
        return model, request

    async def _unary(self, task: Task, message: Any, call: Call) -> dict[str, Any]:
        """The fields of a unary response."""
        model, request = await self._build(task, message, call, is_streamed=False)
        text, tokens, finished = await self.complete(model, request, call)
        if self.log_text:
            call.texts["answer"] = text
        prompt = message.text if request.options.echo else ""
        return {
            "text": prompt + text,
            "tokens": tokens if message.include_tokens else (),
            **completion(finished),
            **await _details(finished, request, model, message),
        }

    async def _stream(
        self, task: Task, message: Any, call: Call, build: Callable[..., _Message]
    ) -> AsyncGenerator[_Message, None]:
        """The messages of a stream, each built from its fields."""
        model, request = await self._build(task, message, call, is_streamed=True)
        prompt = message.text if request.options.echo else ""  # sent with the first text
        async with self.submitted(model, request, call) as events:
            while call.finished is None:
                text, tokens, call.finished = await events.piece()
                if self.log_text:
                    call.texts["answer"] += text
                if prompt and (text or call.finished):
                    prompt, text = "", prompt + text
                fields: dict[str, Any] = {"text": text, "tokens": tokens if message.include_tokens else ()}
                if call.finished:
                    more = await _details(call.finished, request, model, message)
                    yield build(**fields, final=pb.Completion(**completion(call.finished), **more))
                elif text or message.include_tokens:
                    yield build(**fields)


class ScoringServicer(Servicer):
    """ScoringService."""

    async def Score(self, request: pb.ScoreRequest, call: Call) -> pb.ScoreResponse:
        model = self.find_model(request, call, *DECODER_TASKS)
        if bool(request.target) == bool(request.target_tokens):
            raise InvalidRequest("target", "must be given, as text or as target_tokens, but not as both")
        built = await self.builder(model).scoring(
            call.info,
            request.text,
            request.target or tuple(request.target_tokens),
            decoding_options(request.options),
            _languages(request),
            omit_eos=request.omit_eos,
        )
        _, _, finished = await self.complete(model, built, call)
        return await convert_off_loop(
            model, built, functools.partial(score_response, finished, built, model, text=request.text)
        )


class EncodingServicer(Servicer):
    """EncodingService."""

    async def Embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        model = self.find_model(request, call, *ENCODER_TASKS)
        built = await self.builder(model).embedding(call.info, request.text, pooling_from(request), _languages(request))
        _, _, finished = await self.complete(model, built, call)
        return embed_response(finished, normalize=request.normalize)

    async def FillMask(self, request: pb.FillMaskRequest, call: Call) -> pb.FillMaskResponse:
        model = self.find_model(request, call, "encoding", can=lambda model: bool(model.mask_token))
        top_k = request.top_k if request.HasField("top_k") else DEFAULT_CANDIDATES
        built = await self.builder(model).mask_filling(call.info, request.text, top_k)
        _, _, finished = await self.complete(model, built, call)
        return fill_mask_response(finished, model)

    async def Classify(self, request: pb.ClassifyRequest, call: Call) -> pb.ClassifyResponse:
        model = self.find_model(request, call, "encoding", can=lambda model: model.is_classifier)
        built = await self.builder(model).classification(
            call.info, request.text, token_weights=request.include_token_weights
        )
        _, _, finished = await self.complete(model, built, call)
        return classify_response(finished, model, text=request.text)


class AttentionServicer(Servicer):
    """AttentionService."""

    async def Attend(self, request: pb.AttendRequest, call: Call) -> pb.AttendResponse:
        model = self.find_model(request, call)
        if request.target and request.target_tokens:
            raise InvalidRequest("target", "must be given as text or as target_tokens, but not as both")
        built, choice = await AttentionRequestBuilder(model, self.catalog.limits).attention(
            call.info,
            request.text,
            request.target or tuple(request.target_tokens) or None,
            attention_choice(request),
            _languages(request),
            text_only=request.text_only,
            max_tokens=request.max_tokens,
        )
        _, _, finished = await self.complete(model, built, call)
        return await asyncio.to_thread(attend_response, finished, built, model, choice, request)


class ModelServicer(Servicer):
    """ModelService."""

    async def ListModels(self, request: pb.ListModelsRequest, call: Call) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[describe(model, self.catalog.limits) for model in self.catalog])

    async def GetModel(self, request: pb.GetModelRequest, call: Call) -> pb.GetModelResponse:
        return pb.GetModelResponse(model=describe(self.find_model(request, call), self.catalog.limits))


SERVICERS: Sequence[type[Servicer]] = (
    DecodingServicer,
    ScoringServicer,
    EncodingServicer,
    AttentionServicer,
    ModelServicer,
)


def generic_handlers(calls: Calls, catalog: Catalog, *, log_text: bool = False) -> list[grpc.GenericRpcHandler]:
    """The handlers of every RPC in the .proto, each a method of that name of one servicer."""
    servicers = [kind(catalog, log_text=log_text) for kind in SERVICERS]
    handlers = []
    for service in pb.DESCRIPTOR.services_by_name.values():
        methods = {}
        for method in service.methods:
            (rpc,) = [rpc for rpc in RPCS if (rpc.service, rpc.method) == (service.full_name, method.name)]
            (behaviour,) = [getattr(each, method.name) for each in servicers if hasattr(each, method.name)]
            methods[method.name] = _method_handler(calls, rpc, behaviour, method)
        handlers.append(grpc.method_handlers_generic_handler(service.full_name, methods))
    return handlers


def _method_handler(calls: Calls, rpc: Rpc, behaviour: Callable[..., Any], method: Any) -> Any:
    request_type, response_type = method.input_type._concrete_class, method.output_type._concrete_class

    async def handle(message: Message | None, context: Any) -> Any:
        return await calls.run(rpc, behaviour, message, context)

    make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    return make(handle, _parser(request_type), response_type.SerializeToString)


def _parser(kind: type[Message]) -> Callable[[bytes], Message | None]:
    """Bytes to message, or None: an exception here would reach the client as UNKNOWN with our text in it."""

    def parse(data: bytes) -> Message | None:
        try:
            return kind.FromString(data)
        except DecodeError:
            return None

    return parse


def _languages(request: Any) -> LanguagePair:
    return LanguagePair(request.source_language, request.target_language)


def _check_streamable(options: DecodingOptions) -> None:
    """Rejects options whose answer has no text before its end."""
    fix = "call the method that does not stream"
    if options.num_sequences > 1:
        raise InvalidRequest("options.num_sequences", f"must be 1 in a stream, got {options.num_sequences}; {fix}")
    if options.return_alternatives:
        raise InvalidRequest("options.return_alternatives", f"must be false in a stream, got true; {fix}")


async def _submitted_in_thread(submit: Callable[[], Submission]) -> Submission:
    """`submit()` in a thread. A call that ends meanwhile cancels what is submitted after its end."""
    submitting = asyncio.ensure_future(asyncio.to_thread(submit))
    try:
        return await asyncio.shield(submitting)
    except asyncio.CancelledError:
        submitting.add_done_callback(_cancel_submission)
        raise


def _cancel_submission(submitting: asyncio.Future[Submission]) -> None:
    if submitting.exception() is None:
        submitting.result().cancel()


async def _details(finished: Finished, request: Request, model: ServedModel, message: Any) -> dict[str, Any]:
    """The response's fields beside the best answer's text, as far as the client's message requests them."""
    convert = functools.partial(details, finished, request, model, text=message.text, has_tokens=message.include_tokens)
    return await convert_off_loop(model, request, convert) if request.options.returns_hypotheses else convert()


async def convert_off_loop(model: ServedModel, request: Request, convert: Callable[[], _Message]) -> _Message:
    """`convert()`, in a thread when the response may be too large to convert on the event loop."""
    size = response_size(model.manifest, request.options, request.max_tokens, len(request.source))
    return convert() if sum(size) <= INLINE_SIZE else await asyncio.to_thread(convert)
