"""The client for asyncio. Every call is cancelled when its caller leaves it: grpc never collects an abandoned asyncio
call, and the server would continue it."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

import grpc

from glossa.client import calls
from glossa.client.calls import (
    CANDIDATES,
    CONCURRENCY,
    AttendOptions,
    Call,
    CallOptions,
    Options,
    Pooling,
    Reply,
    ScoreOptions,
    Stubs,
)
from glossa.client.channel import NO_RETRIES, OPTIONS, OWN_CONNECTION, TIMEOUT_S, Tls, endpoint
from glossa.client.errors import ClientError
from glossa.client.types import Answer, Attended, Classification, Piece, Score, Stream, TokenCandidate
from glossa.v1 import glossa_pb2 as pb


class AsyncClient:
    """The calls of `Client` for asyncio. Leave a stream early with `contextlib.aclosing`, so that the server stops it.
    All calls raise ClientError."""

    def __init__(
        self,
        address: str,
        *,
        tls: Tls = False,
        token: str = "",
        metadata: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        connections: int = 1,
        retries: bool = True,
    ) -> None:
        """As `Client`. connections: used in turn; one carries as many concurrent calls as the server's setting
        `max_concurrent_streams`, further ones wait in this process. retries: False reports every refusal."""
        server = endpoint(address, tls=tls, token=token, metadata=metadata)
        options = [*OPTIONS, *([OWN_CONNECTION] if connections > 1 else []), *([] if retries else [NO_RETRIES])]
        self._channels = [
            grpc.aio.insecure_channel(address, options=options)
            if server.credentials is None
            else grpc.aio.secure_channel(address, server.credentials, options=options)
            for _ in range(connections)
        ]
        self._turns = itertools.cycle([Stubs(channel) for channel in self._channels])
        self._timeout_s, self._metadata = timeout_s, server.metadata

    async def close(self) -> None:
        """Close the connections; running calls are cancelled."""
        for channel in self._channels:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def translate(self, text: str, **options: Unpack[Options]) -> Answer:
        """Translate a text."""
        return await self._run(calls.whole("translation", text, options))

    def stream_translate(self, text: str, **options: Unpack[Options]) -> AsyncGenerator[Piece, None]:
        """Translate a text, in pieces as they are certain; the last one has the whole answer."""
        return self._pieces(calls.streamed("translation", text, options))

    async def generate(self, text: str, **options: Unpack[Options]) -> Answer:
        """Continue a prompt."""
        return await self._run(calls.whole("generation", text, options))

    def stream_generate(self, text: str, **options: Unpack[Options]) -> AsyncGenerator[Piece, None]:
        """Continue a prompt, in pieces as they are certain; the last one has the whole answer."""
        return self._pieces(calls.streamed("generation", text, options))

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

    async def score(
        self,
        text: str,
        target: str = "",
        *,
        target_tokens: Sequence[int] = (),
        omit_eos: bool = False,
        **options: Unpack[ScoreOptions],
    ) -> Score:
        """Score `target`, or its tokens, as the translation or continuation of `text`.

        omit_eos: the target continues after its last word, so no end token is scored.
        """
        return await self._run(calls.score(text, target, target_tokens, omit_eos, options))

    async def embed(
        self, text: str, *, normalize: bool = False, pooling: Pooling = "mean", **options: Unpack[CallOptions]
    ) -> list[float]:
        """Embed a text: the mean of the last hidden states, the first one, or that through the model's pooler.

        normalize: scale to length 1.
        """
        return await self._run(calls.embed(text, normalize, pooling, options))

    async def fill_mask(
        self, text: str, *, top_k: int = CANDIDATES, **options: Unpack[CallOptions]
    ) -> list[tuple[TokenCandidate, ...]]:
        """Predict each masked token: the most likely ones, best first. `Model.mask` is how a mask is written."""
        return await self._run(calls.fill_mask(text, top_k, options))

    async def classify(
        self, text: str, *, token_weights: bool = False, **options: Unpack[CallOptions]
    ) -> Classification:
        """Probabilities of all labels; with token_weights also how much each token contributed."""
        return await self._run(calls.classify(text, token_weights, options))

    async def attend(self, text: str, **options: Unpack[AttendOptions]) -> Attended:
        """Attention weights of a text and its answer; the model generates the answer unless one is given."""
        return await self._run(calls.attend(text, options))

    async def list_models(self) -> list[pb.Model]:
        """All models of the server."""
        return await self._run(calls.list_models())

    async def get_model(self, model: str = "") -> pb.Model:
        """One model; without a name the only one."""
        return await self._run(calls.get_model(model))

    def _start(self, call: Call[Any]) -> Any:
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        return call.method(next(self._turns))(call.request, timeout=timeout_s, metadata=self._metadata)

    async def _run(self, call: Call[Reply]) -> Reply:
        running = self._start(call)
        try:
            return call.reply(await running)
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            running.cancel()

    async def _pieces(self, call: Call[Any]) -> AsyncGenerator[Piece, None]:
        running, stream = self._start(call), Stream()
        try:
            async for message in running:
                yield stream.piece(message)
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            running.cancel()
