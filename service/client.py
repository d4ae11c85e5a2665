"""A small client of the service: `Client` (blocking) and `AsyncClient`. Needs only grpcio and the stubs.

Retries, deadlines and keepalive are set as the server expects them. Retrying is gRPC's own (service config): calls
that no server has begun to answer, after UNAVAILABLE, or after RESOURCE_EXHAUSTED with the pause the server names.
Every call is cancelled when its caller leaves it: grpc never collects an abandoned asyncio call, and the server would
go on.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos.glossa.v1 import glossa_pb2 as pb
from protos.glossa.v1 import glossa_pb2_grpc as stubs

TIMEOUT_S = 60.0
CONCURRENCY = 32
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        }
    ],
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
}
OPTIONS = [
    ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    ("grpc.keepalive_time_ms", 20_000),  # above the 5 s that the server takes as too often
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", 4 << 20),
]


class ClientError(Exception):
    """A call failed. `code` is the gRPC status by name, `reason` the server's UPPER_SNAKE_CASE reason or ""."""

    def __init__(self, error: grpc.RpcError) -> None:
        call = cast(Any, error)
        self.code: str = call.code().name
        self.message: str = call.details() or ""
        self.reason = ""
        self.field_violations: dict[str, str] = {}  # field → what is wrong with it
        self.retry_after_s: float | None = None
        super().__init__(f"{self.code}: {self.message}")
        status = rpc_status.from_call(call)
        for detail in status.details if status else ():
            self._take(detail)

    def _take(self, detail: Any) -> None:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            self.reason = info.reason
        elif detail.Unpack(bad):
            self.field_violations |= {violation.field: violation.description for violation in bad.field_violations}
        elif detail.Unpack(retry):
            self.retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()


class Options(TypedDict, total=False):
    """Keyword arguments of every call that produces text; each may be left out."""

    model: str  # may be empty when the server has one that fits
    max_tokens: int  # 0: the model's own limit
    stop: Sequence[str]
    include_tokens: bool
    timeout_s: float  # of this call, instead of the client's


@dataclass(frozen=True)
class Answer:
    """A whole answer. Times in seconds, measured in the server."""

    text: str
    finish_reason: str  # end_of_sequence, length or stop_string
    prompt_tokens: int
    generated_tokens: int
    queue_s: float
    prefill_s: float
    first_token_s: float
    total_s: float
    tokens: tuple[int, ...] = ()  # only when asked for


@dataclass(frozen=True)
class Piece:
    """A piece of a streamed answer; `answer` is the whole, in the last piece only."""

    text: str
    tokens: tuple[int, ...] = ()
    answer: Answer | None = None


@dataclass
class _Stream:
    """Turns messages of a stream into pieces."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def piece(self, message: Any) -> Piece:
        self.texts.append(message.text)
        self.tokens += message.tokens
        answer = None
        if message.HasField("final"):
            answer = _answer("".join(self.texts), self.tokens, message.final)
        return Piece(message.text, tuple(message.tokens), answer)


def _answer(text: str, tokens: Iterable[int], end: Any) -> Answer:
    """end: a message with finish_reason, usage and timings."""
    timings = end.timings
    return Answer(
        text=text,
        finish_reason=pb.FinishReason.Name(end.finish_reason).removeprefix("FINISH_REASON_").lower(),
        prompt_tokens=end.usage.prompt_tokens,
        generated_tokens=end.usage.generated_tokens,
        queue_s=timings.queue.ToTimedelta().total_seconds(),
        prefill_s=timings.prefill.ToTimedelta().total_seconds(),
        first_token_s=timings.first_token.ToTimedelta().total_seconds(),
        total_s=timings.total.ToTimedelta().total_seconds(),
        tokens=tuple(tokens),
    )


_Message = TypeVar("_Message")


def _request(kind: Callable[..., _Message], text: str, options: Options) -> _Message:
    decoding = pb.DecodingOptions(max_tokens=options.get("max_tokens", 0), stop=options.get("stop", ()))
    tokens = options.get("include_tokens", False)
    return kind(model=options.get("model", ""), text=text, options=decoding, include_tokens=tokens)


class _Stubs:
    def __init__(self, channel: Any) -> None:
        untyped: Any = stubs  # the generator writes no types for these
        self.translation = untyped.TranslationServiceStub(channel)
        self.generation = untyped.GenerationServiceStub(channel)
        self.models = untyped.ModelServiceStub(channel)


class Client:
    """Blocking calls; may be shared by threads. Close it, or use it in a `with`. All calls raise ClientError."""

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._stubs, self._timeout_s = _Stubs(self._channel), timeout_s

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def translate(self, text: str, **options: Unpack[Options]) -> Answer:
        return self._whole(self._stubs.translation.Translate, _request(pb.TranslateRequest, text, options), options)

    def stream_translate(self, text: str, **options: Unpack[Options]) -> Generator[Piece, None, None]:
        request = _request(pb.StreamTranslateRequest, text, options)
        return self._pieces(self._stubs.translation.StreamTranslate, request, options)

    def generate(self, text: str, **options: Unpack[Options]) -> Answer:
        return self._whole(self._stubs.generation.Generate, _request(pb.GenerateRequest, text, options), options)

    def stream_generate(self, text: str, **options: Unpack[Options]) -> Generator[Piece, None, None]:
        request = _request(pb.StreamGenerateRequest, text, options)
        return self._pieces(self._stubs.generation.StreamGenerate, request, options)

    def translate_batch(
        self, texts: Iterable[str], *, concurrency: int = CONCURRENCY, **options: Unpack[Options]
    ) -> Generator[Answer, None, None]:
        """Answers in the order of the texts, at most `concurrency` calls at once. The first failure ends it."""
        with ThreadPoolExecutor(concurrency, thread_name_prefix="translate") as threads:
            running: deque[Future[Answer]] = deque()
            try:
                for text in texts:
                    running.append(threads.submit(self.translate, text, **options))
                    if len(running) >= concurrency:
                        yield running.popleft().result()
                while running:
                    yield running.popleft().result()
            finally:
                for future in running:
                    future.cancel()

    def list_models(self) -> list[pb.Model]:
        return list(self._call(self._stubs.models.ListModels, pb.ListModelsRequest(), {}).models)

    def get_model(self, model: str = "") -> pb.Model:
        response: pb.GetModelResponse = self._call(self._stubs.models.GetModel, pb.GetModelRequest(model=model), {})
        return response.model

    def _call(self, method: Any, request: Any, options: Options) -> Any:
        try:
            return method(request, timeout=options.get("timeout_s", self._timeout_s))
        except grpc.RpcError as error:
            raise ClientError(error) from None

    def _whole(self, method: Any, request: Any, options: Options) -> Answer:
        response = self._call(method, request, options)
        return _answer(response.text, response.tokens, response)

    def _pieces(self, method: Any, request: Any, options: Options) -> Generator[Piece, None, None]:
        call, stream = method(request, timeout=options.get("timeout_s", self._timeout_s)), _Stream()
        try:
            for message in call:
                yield stream.piece(message)
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            call.cancel()


class AsyncClient:
    """The same calls for asyncio. Leave a stream early with `contextlib.aclosing`, so that the server stops at once."""

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._stubs, self._timeout_s = _Stubs(self._channel), timeout_s

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def translate(self, text: str, **options: Unpack[Options]) -> Answer:
        request = _request(pb.TranslateRequest, text, options)
        return await self._whole(self._stubs.translation.Translate, request, options)

    def stream_translate(self, text: str, **options: Unpack[Options]) -> AsyncGenerator[Piece, None]:
        request = _request(pb.StreamTranslateRequest, text, options)
        return self._pieces(self._stubs.translation.StreamTranslate, request, options)

    async def generate(self, text: str, **options: Unpack[Options]) -> Answer:
        request = _request(pb.GenerateRequest, text, options)
        return await self._whole(self._stubs.generation.Generate, request, options)

    def stream_generate(self, text: str, **options: Unpack[Options]) -> AsyncGenerator[Piece, None]:
        request = _request(pb.StreamGenerateRequest, text, options)
        return self._pieces(self._stubs.generation.StreamGenerate, request, options)

    async def translate_batch(
        self, texts: Iterable[str], *, concurrency: int = CONCURRENCY, **options: Unpack[Options]
    ) -> AsyncGenerator[Answer, None]:
        """Answers in the order of the texts, at most `concurrency` calls at once. The first failure ends it."""
        running: deque[asyncio.Task[Answer]] = deque()
        try:
            for text in texts:
                running.append(asyncio.create_task(self.translate(text, **options)))
                if len(running) >= concurrency:
                    yield await running.popleft()
            while running:
                yield await running.popleft()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def list_models(self) -> list[pb.Model]:
        response: pb.ListModelsResponse = await self._call(self._stubs.models.ListModels, pb.ListModelsRequest(), {})
        return list(response.models)

    async def get_model(self, model: str = "") -> pb.Model:
        request = pb.GetModelRequest(model=model)
        response: pb.GetModelResponse = await self._call(self._stubs.models.GetModel, request, {})
        return response.model

    async def _call(self, method: Any, request: Any, options: Options) -> Any:
        call = method(request, timeout=options.get("timeout_s", self._timeout_s))
        try:
            return await call
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            call.cancel()

    async def _whole(self, method: Any, request: Any, options: Options) -> Answer:
        response = await self._call(method, request, options)
        return _answer(response.text, response.tokens, response)

    async def _pieces(self, method: Any, request: Any, options: Options) -> AsyncGenerator[Piece, None]:
        call, stream = method(request, timeout=options.get("timeout_s", self._timeout_s)), _Stream()
        try:
            async for message in call:
                yield stream.piece(message)
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            call.cancel()
