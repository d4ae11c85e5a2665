"""gRPC: parse → call → convert. What a client sends becomes a `Request`, what happens becomes messages and statuses.

Every RPC runs inside `Servicer._run`, which gives it an id, counts it, admits it, and ends it exactly once: with an
answer, or with a status from the one table below. Text of an unexpected exception stays in the log. Health and
reflection do not come through here, so they are answered when requests are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from export.bundle import Task
from glossa.v1 import glossa_pb2 as pb
from service.edge import logs
from service.edge.catalog import DECODING, NO_LANGUAGES, READING, Catalog, Languages, ServedModel, Submission
from service.edge.event_stream import EventStream
from service.edge.metrics import Metrics, Rpc
from service.edge.proto_conversion import (
    FILLINGS,
    attended,
    attention_choice,
    classification,
    completion,
    decoding_options,
    describe,
    details,
    embedding,
    filling,
    pooling_from,
    score,
)
from service.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalFailure,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RequestError,
    ShuttingDown,
    Unsatisfiable,
    Unsupported,
)
from service.options import DecodingOptions
from service.request import Finished, Request

STATUS: dict[type[RequestError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    ModelNotFound: grpc.StatusCode.NOT_FOUND,
    Unsupported: grpc.StatusCode.FAILED_PRECONDITION,
    Unsatisfiable: grpc.StatusCode.FAILED_PRECONDITION,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ShuttingDown: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Cancelled: grpc.StatusCode.CANCELLED,
    InternalFailure: grpc.StatusCode.INTERNAL,
}

DOMAIN = "glossa"
REQUEST_ID = "x-request-id"
SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
RETRY_ELSEWHERE_S = 1.0  # told to clients of a server that drains
INLINE_SIZE = 48_000  # bytes turned into messages on the event loop: about a millisecond
RETRY_WHEN_FULL_S = 0.5  # told when the whole server, not one queue, is full

SERVICES = tuple(service.full_name for service in pb.DESCRIPTOR.services_by_name.values())
RPCS = tuple(
    Rpc("server_stream" if method.server_streaming else "unary", service.full_name, method.name)
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)

_Message = TypeVar("_Message")
_IDS = random.Random()  # names, not secrets: to ask the system for random bits takes 0.1 ms


def error_details(error: RequestError) -> Iterator[Message]:
    """The google.rpc details of an error, ErrorInfo first."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    if isinstance(error, ModelNotFound):
        info.metadata["models"] = ",".join(error.known)
    yield info
    match error:
        case InvalidRequest():
            violation = {"field": error.field, "description": error.problem, "reason": error.reason}
            yield error_details_pb2.BadRequest(field_violations=[violation])
        case ModelNotFound():
            yield error_details_pb2.ResourceInfo(
                resource_type="glossa.v1.Model", resource_name=error.name, description=str(error)
            )
        case Unsupported() | Unsatisfiable():
            subject = "model" if isinstance(error, Unsupported) else "options"
            violation = {"type": error.reason, "subject": subject, "description": str(error)}
            yield error_details_pb2.PreconditionFailure(violations=[violation])
        case Overloaded():
            yield error_details_pb2.RetryInfo(retry_delay=timedelta(seconds=error.retry_after_s))
            violation = {"subject": "requests", "description": f"at most {error.limit} at once"}
            yield error_details_pb2.QuotaFailure(violations=[violation])
        case ShuttingDown():
            yield error_details_pb2.RetryInfo(retry_delay=timedelta(seconds=RETRY_ELSEWHERE_S))
        case InternalFailure():
            yield error_details_pb2.RequestInfo(request_id=error.request_id)


def _languages(request: Any) -> Languages:
    return Languages(request.source_language, request.target_language)


def status_code(error: RequestError) -> grpc.StatusCode:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


class Call:
    """One RPC on its way: its id, its deadline, and what its log line will say."""

    def __init__(self, rpc: Rpc, request_id: str, started_s: float, deadline_s: float) -> None:
        self.rpc, self.request_id, self.started_s, self.deadline_s = rpc, request_id, started_s, deadline_s
        self.model = ""
        self.messages = 0  # sent
        self.finished: Finished | None = None
        self.texts: dict[str, str] = {}  # for the log; filled only when the operator wants it

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata: the id, and where the time went."""
        parts: dict[str, float] = {}
        if self.finished is not None:
            timings = self.finished.timings
            decode_s = max(0.0, timings.total_s - timings.queue_s - timings.prefill_s)
            parts = {"queue": timings.queue_s, "prefill": timings.prefill_s, "decode": decode_s}
        times = [(f"x-glossa-{name}-ms", f"{seconds * 1000:.3f}") for name, seconds in parts.items()]
        return ((REQUEST_ID, self.request_id), *times)


class Servicer:
    """All services of glossa.v1. Lives on the event-loop thread."""

    def __init__(
        self,
        catalog: Catalog,
        metrics: Metrics,
        *,
        max_requests: int = 1024,
        default_deadline_s: float = 60.0,
        max_deadline_s: float = 600.0,
        stall_timeout_s: float = 30.0,
        log_text: bool = False,
    ) -> None:
        self._catalog, self._metrics = catalog, metrics
        self._max_requests, self._stall_timeout_s, self._log_text = max_requests, stall_timeout_s, log_text
        self._default_deadline_s, self._max_deadline_s = default_deadline_s, max_deadline_s
        self._live: set[Call] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    # ---- the RPCs

    async def Translate(self, request: pb.TranslateRequest, call: Call) -> pb.TranslateResponse:
        return pb.TranslateResponse(**await self._whole("translation", request, call))

    def StreamTranslate(
        self, request: pb.StreamTranslateRequest, call: Call
    ) -> AsyncGenerator[pb.StreamTranslateResponse, None]:
        return self._pieces("translation", request, call, pb.StreamTranslateResponse)

    async def Generate(self, request: pb.GenerateRequest, call: Call) -> pb.GenerateResponse:
        return pb.GenerateResponse(**await self._whole("generation", request, call))

    def StreamGenerate(
        self, request: pb.StreamGenerateRequest, call: Call
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        return self._pieces("generation", request, call, pb.StreamGenerateResponse)

    async def Score(self, request: pb.ScoreRequest, call: Call) -> pb.ScoreResponse:
        if self._log_text:
            call.texts = {"text": request.text, "target": request.target}
        model = self._catalog.find(request.model, *DECODING)
        call.model = model.name
        if bool(request.target) == bool(request.target_tokens):
            raise InvalidRequest("target", "must be given, as text or as target_tokens, but not as both")
        prepared = await model.scoring(
            call.request_id,
            request.text,
            request.target or tuple(request.target_tokens),
            decoding_options(request.options),
            languages=_languages(request),
            omit_eos=request.omit_eos,
            deadline_s=call.deadline_s,
            limits=self._catalog.limits,
        )
        _, _, finished = await self._finished(model, prepared, call)
        told = functools.partial(score, finished, prepared, model, text=request.text)
        return await _told(model, prepared, told)

    async def Embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        if self._log_text:
            call.texts = {"text": request.text}
        model = self._catalog.find(request.model, *READING)
        call.model = model.name
        prepared = await model.embedding(
            call.request_id,
            request.text,
            pooling_from(request),
            languages=_languages(request),
            deadline_s=call.deadline_s,
            limits=self._catalog.limits,
        )
        _, _, finished = await self._finished(model, prepared, call)
        return embedding(finished, normalize=request.normalize)

    async def Attend(self, request: pb.AttendRequest, call: Call) -> pb.AttendResponse:
        if self._log_text:
            call.texts = {"text": request.text, "target": request.target}
        model = self._catalog.find(request.model)
        call.model = model.name
        if request.target and request.target_tokens:
            raise InvalidRequest("target", "must be given as text or as target_tokens, but not as both")
        prepared, choice = await model.attention(
            call.request_id,
            request.text,
            request.target or tuple(request.target_tokens) or None,
            attention_choice(request),
            languages=_languages(request),
            text_only=request.text_only,
            max_tokens=request.max_tokens,
            deadline_s=call.deadline_s,
            limits=self._catalog.limits,
        )
        _, _, finished = await self._finished(model, prepared, call)
        return await asyncio.to_thread(attended, finished, prepared, model, choice, request)

    async def FillMask(self, request: pb.FillMaskRequest, call: Call) -> pb.FillMaskResponse:
        if self._log_text:
            call.texts = {"text": request.text}
        model = self._catalog.find(request.model, "encoding", can=lambda model: bool(model.mask))
        call.model = model.name
        prepared = await model.filling(
            call.request_id,
            request.text,
            request.top_k if request.HasField("top_k") else FILLINGS,
            deadline_s=call.deadline_s,
            limits=self._catalog.limits,
        )
        _, _, finished = await self._finished(model, prepared, call)
        return filling(finished, model)

    async def Classify(self, request: pb.ClassifyRequest, call: Call) -> pb.ClassifyResponse:
        if self._log_text:
            call.texts = {"text": request.text}
        model = self._catalog.find(
            request.model, "encoding", can=lambda model: bool(model.encoding and model.encoding.labels)
        )
        call.model = model.name
        prepared = await model.classification(
            call.request_id,
            request.text,
            token_weights=request.include_token_weights,
            deadline_s=call.deadline_s,
            limits=self._catalog.limits,
        )
        _, _, finished = await self._finished(model, prepared, call)
        return classification(finished, model, text=request.text)

    async def ListModels(self, request: pb.ListModelsRequest, call: Call) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[describe(model, self._catalog.limits) for model in self._catalog])

    async def GetModel(self, request: pb.GetModelRequest, call: Call) -> pb.GetModelResponse:
        model = self._catalog.find(request.model)
        call.model = model.name
        return pb.GetModelResponse(model=describe(model, self._catalog.limits))

    # ---- what they share

    @contextlib.contextmanager
    def _submitted(self, model: ServedModel, request: Request, call: Call) -> Iterator[EventStream]:
        """The answer to a request in an engine. Leaving early cancels it: its rows are free one step later."""
        answer = EventStream()
        submission: Submission = model.pool.submit(request, asyncio.get_running_loop(), answer)
        try:
            yield answer
        finally:
            if call.finished is None:
                submission.cancel()

    async def _finished(self, model: ServedModel, request: Request, call: Call) -> tuple[str, list[int], Finished]:
        """A whole answer: its text, its tokens, and its end."""
        whole, all_tokens = "", list[int]()
        with self._submitted(model, request, call) as answer:
            while call.finished is None:
                text, tokens, call.finished = await answer.piece()
                whole += text
                all_tokens += tokens
        return whole, all_tokens, call.finished

    async def _prepared(
        self, task: Task, request: Any, call: Call, *, is_streamed: bool
    ) -> tuple[ServedModel, Request]:
        """The model that is to answer, and what it is asked."""
        if self._log_text:
            call.texts = {"text": request.text, "answer": ""}
        model = self._catalog.find(request.model, task)
        call.model = model.name
        options = decoding_options(request.options)
        if is_streamed:
            _check_streamable(options)
        prepared = await model.request(
            call.request_id,
            request.text,
            options,
            languages=_languages(request) if task == "translation" else NO_LANGUAGES,
            deadline_s=call.deadline_s,
            limits=self._catalog.limits,
            is_streamed=is_streamed,
        )
        return model, prepared

    async def _pieces(
        self, task: Task, request: Any, call: Call, build: Callable[..., _Message]
    ) -> AsyncGenerator[_Message, None]:
        """The messages of a stream, each built from its fields."""
        model, prepared = await self._prepared(task, request, call, is_streamed=True)
        has_tokens = request.include_tokens
        begin = request.text if prepared.options.echo else ""  # of the text that is sent first
        with self._submitted(model, prepared, call) as answer:
            while call.finished is None:
                text, tokens, call.finished = await answer.piece()
                if self._log_text:
                    call.texts["answer"] += text
                if begin and (text or call.finished):
                    begin, text = "", begin + text
                told = tokens if has_tokens else ()
                if call.finished:
                    more = await _details(call.finished, prepared, model, request)
                    yield build(text=text, tokens=told, final=pb.Completion(**completion(call.finished), **more))
                elif text or has_tokens:
                    yield build(text=text, tokens=told)

    async def _whole(self, task: Task, request: Any, call: Call) -> dict[str, Any]:
        """The fields of a unary answer."""
        model, prepared = await self._prepared(task, request, call, is_streamed=False)
        text, tokens, finished = await self._finished(model, prepared, call)
        if self._log_text:
            call.texts["answer"] = text
        more = await _details(finished, prepared, model, request)
        told = tokens if request.include_tokens else ()
        begin = request.text if prepared.options.echo else ""
        return {"text": begin + text, "tokens": told, **completion(finished), **more}

    # ---- the life of a call

    async def idle(self) -> None:
        """Returns when no call is being handled. grpc's own stop() returns before aborted handlers have ended."""
        await self._idle.wait()

    async def _run(self, rpc: Rpc, behaviour: Callable[..., Any], message: Message | None, context: Any) -> Any:
        """One RPC from start to end. message: None if its bytes could not be parsed."""
        call = self._begin(rpc, context)
        error: RequestError | None = None
        response = None
        try:
            self._admit(message)
            if rpc.type == "unary":
                response = await behaviour(message, call)
                call.messages = 1
            else:
                await self._stream(behaviour, message, call, context)
        except RequestError as failure:
            error = failure
        except asyncio.CancelledError:
            late = time.monotonic() >= call.deadline_s
            error = DeadlineExceeded("the deadline passed") if late else Cancelled("the client went away")
            raise  # swallowing it leaks memory inside grpc
        except Exception as failure:
            fields = {"request_id": call.request_id, "method": rpc.method}
            logs.event("internal_error", fields, level=logs.ERROR, exception=failure)
            error = InternalFailure(call.request_id)
        finally:
            self._end(call, error)
        # The call is over for us. What is left may wait for the client for long: nothing of ours is held meanwhile.
        if error is not None:
            await _abort(context, error, call)
        context.set_trailing_metadata(call.trailers)
        return response

    async def _stream(self, behaviour: Callable[..., Any], message: Message | None, call: Call, context: Any) -> None:
        stall = _Stall(self._stall_timeout_s)
        try:
            async with stall, contextlib.aclosing(behaviour(message, call)) as responses:
                async for response in responses:
                    stall.begin()
                    if not call.messages:
                        await _greet(call, context)
                    call.messages += 1
                    await context.write(response)
                    stall.end()
        except _Stalled:
            raise DeadlineExceeded(f"the client read nothing for {self._stall_timeout_s:g} s") from None

    def _begin(self, rpc: Rpc, context: Any) -> Call:
        now_s = time.monotonic()
        remaining_s = context.time_remaining()
        limit_s = min(self._default_deadline_s if remaining_s is None else remaining_s, self._max_deadline_s)
        call = Call(rpc, _request_id(context), now_s, now_s + limit_s)
        self._live.add(call)
        self._idle.clear()
        self._metrics.rpc_started(rpc)
        return call

    def _admit(self, message: Message | None) -> None:
        if len(self._live) > self._max_requests:
            raise Overloaded(
                f"{self._max_requests} requests are being handled already; try again in {RETRY_WHEN_FULL_S} s",
                retry_after_s=RETRY_WHEN_FULL_S,
                limit=self._max_requests,
            )
        if message is None:
            raise InvalidRequest("request", "is not a message of this method, or has text that is not UTF-8")

    def _end(self, call: Call, error: RequestError | None) -> None:
        self._live.discard(call)
        if not self._live:
            self._idle.set()
        code = status_code(error) if error else grpc.StatusCode.OK
        seconds = time.monotonic() - call.started_s
        self._metrics.rpc_handled(call.rpc, code=code.value[0], seconds=seconds, messages=call.messages)
        if isinstance(error, InvalidRequest | ModelNotFound | Unsupported | Overloaded | ShuttingDown):
            self._metrics.request_rejected(error)
        fields: dict[str, Any] = {
            "request_id": call.request_id,
            "method": f"{call.rpc.service}/{call.rpc.method}",
            "code": code.name,
            "model": call.model,
            "total_s": round(seconds, 6),
        }
        if error:
            fields["reason"] = error.reason
        if finished := call.finished:
            fields |= {"prompt_tokens": finished.prompt_tokens, "generated_tokens": finished.generated_tokens}
            fields |= {
                "queue_s": round(finished.timings.queue_s, 6),
                "ttft_s": round(finished.timings.first_token_s, 6),
            }
        logs.event("request", fields | call.texts)


class _Stalled(Exception):
    """A client read nothing for too long."""


class _Stall:
    """Raises _Stalled inside a stream, one of whose writes takes longer than `limit_s`.

    One timer for all messages of a stream, which looks from time to time: making one for each message took a tenth of
    what a message costs.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._began_s: float | None = None

    def begin(self) -> None:
        """A message is being sent from now on."""
        self._began_s = self._loop.time()

    def end(self) -> None:
        """It was sent."""
        self._began_s = None

    def _look(self) -> None:
        now_s = self._loop.time()
        until_s = (now_s if self._began_s is None else self._began_s) + self._limit_s
        if now_s >= until_s:
            self._timeout.reschedule(now_s)
        else:
            self._timer = self._loop.call_at(until_s, self._look)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(self._limit_s, self._look)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        self._timer.cancel()
        try:
            await self._timeout.__aexit__(kind, error, at)
        except TimeoutError:
            raise _Stalled from None


def generic_handlers(servicer: Servicer) -> list[grpc.GenericRpcHandler]:
    """The handlers of every RPC in the .proto, each found by its name in the servicer."""
    handlers = []
    for service in pb.DESCRIPTOR.services_by_name.values():
        methods = {
            method.name: _method_handler(servicer, rpc, method)
            for method in service.methods
            for rpc in RPCS
            if (rpc.service, rpc.method) == (service.full_name, method.name)
        }
        handlers.append(grpc.method_handlers_generic_handler(service.full_name, methods))
    return handlers


def _method_handler(servicer: Servicer, rpc: Rpc, method: Any) -> Any:
    behaviour = getattr(servicer, rpc.method)
    request_type, response_type = method.input_type._concrete_class, method.output_type._concrete_class

    async def handle(message: Message | None, context: Any) -> Any:
        return await servicer._run(rpc, behaviour, message, context)

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


def _check_streamable(options: DecodingOptions) -> None:
    """A stream is the text of one answer as it grows: refused where there is no such text before the end."""
    fix = "call the method that does not stream"
    if options.num_sequences > 1:
        raise InvalidRequest("options.num_sequences", f"must be 1 in a stream, got {options.num_sequences}; {fix}")
    if options.return_alternatives:
        raise InvalidRequest("options.return_alternatives", f"must be false in a stream, got true; {fix}")


async def _greet(call: Call, context: Any) -> None:
    """Tells the id of a stream with its first message, and not before: a client retries only what has not begun. Unary
    answers have it in the trailing metadata alone: grpc.aio sends initial metadata by itself, which takes 0.4 ms."""
    await context.send_initial_metadata(((REQUEST_ID, call.request_id),))


async def _details(finished: Finished, prepared: Request, model: ServedModel, request: Any) -> dict[str, Any]:
    """What is told beside the best answer's text, for those who asked. request: the client's message."""
    told = functools.partial(details, finished, prepared, model, text=request.text, has_tokens=request.include_tokens)
    return await _told(model, prepared, told) if prepared.options.returns_hypotheses else told()


async def _told(model: ServedModel, request: Request, tell: Callable[[], _Message]) -> _Message:
    """`tell()`; in a thread, when it takes long to turn so many numbers into messages."""
    size = model.size(request.options, request.max_tokens, len(request.source))
    return tell() if sum(size) <= INLINE_SIZE else await asyncio.to_thread(tell)


def _request_id(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and SAFE_REQUEST_ID.fullmatch(value):
            return value
    return f"{_IDS.getrandbits(128):032x}"


async def _abort(context: Any, error: RequestError, call: Call) -> None:
    """Ends the RPC with the status and details of `error`. Raises, as grpc wants it."""
    status = status_pb2.Status(code=status_code(error).value[0], message=str(error))
    for detail in error_details(error):
        status.details.add().Pack(detail)
    rich = rpc_status.to_status(status)
    trailers = [*call.trailers, *rich.trailing_metadata]
    if isinstance(error, Overloaded):
        trailers.append(("grpc-retry-pushback-ms", str(round(error.retry_after_s * 1000))))
    await context.abort(rich.code, rich.details, tuple(trailers))
