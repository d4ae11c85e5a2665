"""Many requests in one call: `BatchCalls`, the methods of both clients, and how they are run.

How items become messages and results is in `batch_call`, when they are sent in `feed`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

import grpc

from glossa.client.batch_call import BatchCall, request_of, score_request
from glossa.client.embeddings import Embedding, embed_request
from glossa.client.errors import ClientError, ServerStatus
from glossa.client.feed import AsyncFeed, Feed, each
from glossa.client.fields import check_list, new_message
from glossa.client.help_text import with_help
from glossa.client.requests import (
    CallOptions,
    Pooling,
    ScoreOptions,
    TranslateOptions,
    call_fields,
    text_fields,
    translation_fields,
)
from glossa.client.types import Classification, Score, Translation, read
from glossa.v1 import glossa_pb2 as pb

P = ParamSpec("P")
Reply = TypeVar("Reply")


class _InOrder:
    """Puts results into the order of their items; in the server, a slow item would keep others from beginning."""

    def __init__(self) -> None:
        self._early: dict[int, Any] = {}  # by number
        self._next = 0

    def take(self, message: Any) -> Iterator[Any]:
        """The results whose turn it is, once those of a message have come."""
        for result in message.results:
            self._early[int(result.id)] = result
            while (due := self._early.pop(self._next, None)) is not None:
                self._next += 1
                yield due


class _Attempts:
    """The calls of a batch, of which there is more than one if connections are lost: a server ends each connection some
    time, with the calls on it. The next call begins with the items that have no result; results are those of one call.

    A call that brought no result is the last, so that a server that is gone is noticed.
    """

    def __init__(self, options: CallOptions) -> None:
        self._options, self._began_s = options, time.monotonic()
        self._results, self._has_answered = _InOrder(), False
        self.goes_on = True

    def options(self) -> CallOptions:
        """The options of the next call, which has the time that is left."""
        self._results, self._has_answered = _InOrder(), False
        if (timeout_s := self._options.get("timeout_s")) is None:
            return self._options
        return {**self._options, "timeout_s": max(0.0, self._began_s + timeout_s - time.monotonic())}

    def results(self, message: Any) -> Iterator[Any]:
        """`_InOrder.take` of the current call."""
        for result in self._results.take(message):
            self._has_answered = True
            yield result

    def end(self) -> None:
        """The call has brought all results."""
        self.goes_on = False

    def fail(self, error: ClientError) -> None:
        """Raises the error of a call unless another call may follow: the connection was lost, or the server, which
        goes on, has replaced the model or given the place of a call that waited to others. Not after a server that
        drains: a stream that it refuses before it ends may wait forever (grpcio 1.81 to 1.85)."""
        is_lost = error.code == "UNAVAILABLE" and not error.reason
        if not (self._has_answered and (is_lost or error.reason in ("ENGINE_UNAVAILABLE", "MESSAGES_MISSING"))):
            raise error from None


class Batch(Generic[Reply]):
    """The results of a call with many items, in their order: an iterator that ends with the first error, which it
    raises. `outcomes` goes on after the errors of items. Leave it early with `close`, so that the server stops."""

    def __init__(self, outcomes: Generator[Reply | ClientError, None, None]) -> None:
        self._outcomes = outcomes

    def outcomes(self) -> Iterator[Reply | ClientError]:
        """The result of each item, or its error. Raises ClientError for an error of the whole call."""
        return self._outcomes

    def close(self) -> None:
        """Ends the call."""
        self._outcomes.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Reply:
        outcome = next(self._outcomes)
        if isinstance(outcome, ClientError):
            self.close()
            raise outcome.placed()
        return outcome


class AsyncBatch(Generic[Reply]):
    """`Batch` for asyncio; leave it early with `contextlib.aclosing`."""

    def __init__(self, outcomes: AsyncGenerator[Reply | ClientError, None]) -> None:
        self._outcomes = outcomes

    def outcomes(self) -> AsyncIterator[Reply | ClientError]:
        """The result of each item, or its error. Raises ClientError for an error of the whole call."""
        return self._outcomes

    async def aclose(self) -> None:
        """Ends the call."""
        await self._outcomes.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Reply:
        outcome = await anext(self._outcomes)
        if isinstance(outcome, ClientError):
            await self.aclose()
            raise outcome.placed()
        return outcome


class _Method(Protocol[P, Reply]):
    """The type of a method of both clients."""

    @overload
    def __get__(self, client: None, kind: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: Blocking, kind: type | None = None) -> Callable[P, Batch[Reply]]: ...
    @overload
    def __get__(self, client: Asynchronous, kind: type | None = None) -> Callable[P, AsyncBatch[Reply]]: ...


def batch(build: Callable[Concatenate[Any, P], BatchCall[Reply]]) -> _Method[P, Reply]:
    """A method that returns the results of a call with many items."""

    name = build.__code__.co_varnames[1]

    @functools.wraps(build)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        call = build(self, *arguments, **options)
        if not isinstance(call.texts, AsyncIterable):
            check_list(name, call.texts, "items")
        return self._batch(call)

    return cast(_Method[P, Reply], with_help(method, build, "Batch[{}]"))


class BatchCalls:
    """Every call with many items. Without `timeout_s` such a call has no deadline.

    The items may be an iterable, or with an AsyncClient an asynchronous one; it is read from another thread, or another
    task, than that of the caller, ahead of the results. An item is a text, or a request of glossa.v1, whose fields go
    before the options. With `concurrency`, each item has a call of its own, at most so many together: such calls spread
    over the connections of the client, and over replicas. A single text instead of items raises TypeError.
    """

    @batch
    def translate_batch(
        self,
        texts: Iterable[str | pb.TranslateRequest] | AsyncIterable[str | pb.TranslateRequest],
        *,
        concurrency: int = 0,
        **options: Unpack[TranslateOptions],
    ) -> BatchCall[Translation]:
        """Translate many texts in one call."""
        tokens = options.get("include_tokens") or False
        defaults = new_message(pb.TranslateRequest, include_tokens=tokens, **translation_fields("", options))
        make, reply = functools.partial(request_of, pb.TranslateRequest), functools.partial(read, Translation)
        return BatchCall("TranslateBatch", texts, make, defaults, options, reply, concurrency)

    @batch
    def score_batch(
        self,
        pairs: Iterable[tuple[str, str] | pb.ScoreRequest] | AsyncIterable[tuple[str, str] | pb.ScoreRequest],
        *,
        omit_eos: bool = False,
        concurrency: int = 0,
        **options: Unpack[ScoreOptions],
    ) -> BatchCall[Score]:
        """Score many targets in one call, each a pair of text and target. omit_eos: as of `score`."""
        defaults = new_message(pb.ScoreRequest, omit_eos=omit_eos, **text_fields("", options))
        return BatchCall(
            "ScoreBatch", pairs, score_request, defaults, options, functools.partial(read, Score), concurrency
        )

    @batch
    def embed_batch(
        self,
        texts: Iterable[str | pb.EmbedRequest] | AsyncIterable[str | pb.EmbedRequest],
        *,
        normalize: bool = False,
        pooling: Pooling | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        concurrency: int = 0,
        **options: Unpack[CallOptions],
    ) -> BatchCall[Embedding]:
        """Embed many texts in one call, as `embed` does. Raises ValueError for an unknown pooling."""
        fields: dict[str, Any] = {"normalize": normalize, "truncate": truncate}
        defaults = embed_request(options, pooling=pooling, prompt_name=prompt_name, **fields)
        make = functools.partial(request_of, pb.EmbedRequest)
        return BatchCall("EmbedBatch", texts, make, defaults, options, Embedding, concurrency)

    @batch
    def classify_batch(
        self,
        texts: Iterable[str | pb.ClassifyRequest] | AsyncIterable[str | pb.ClassifyRequest],
        *,
        token_weights: bool = False,
        concurrency: int = 0,
        **options: Unpack[CallOptions],
    ) -> BatchCall[Classification]:
        """Label probabilities of many texts in one call."""
        defaults = new_message(pb.ClassifyRequest, include_token_weights=token_weights, **call_fields(options))
        make = functools.partial(request_of, pb.ClassifyRequest)
        reply = functools.partial(read, Classification)
        return BatchCall("ClassifyBatch", texts, make, defaults, options, reply, concurrency)


class Blocking(BatchCalls):
    """The calls with many items of a blocking client."""

    _start_batch: Callable[[str, Any, CallOptions], Any]
    _start_unary: Callable[[str, Any, CallOptions], Any]

    def _batch(self, call: BatchCall[Reply]) -> Batch[Reply]:
        return Batch(self._separately(call) if call.concurrency else self._batch_outcomes(call))

    def _separately(self, call: BatchCall[Reply]) -> Generator[Reply | ClientError, None, None]:
        running, places, request = deque[Any](), itertools.count(), call.requests()

        def first() -> Reply | ClientError:
            place = next(places)
            try:
                return call.reply(running.popleft().result())
            except grpc.RpcError as error:
                return ClientError(error, place)

        try:
            for text in cast(Iterable[Any], call.texts):
                running.append(self._start_unary(*call.unary(request(text)), call.options))
                if len(running) >= call.concurrency:
                    yield first()
            while running:
                yield first()
        finally:
            for one in running:
                one.cancel()

    def _batch_outcomes(self, call: BatchCall[Reply]) -> Generator[Reply | ClientError, None, None]:
        feed, attempts = Feed(cast(Iterable[Any], call.texts), call.items(), call.message), _Attempts(call.options)
        running, places = None, itertools.count()
        try:
            while attempts.goes_on:
                try:
                    running = self._start_batch(call.name, feed.messages(), attempts.options())
                    for message in running:
                        for result in attempts.results(message):
                            feed.answered()
                            yield call.outcome(result, next(places))
                    attempts.end()
                except grpc.RpcError as error:
                    attempts.fail(ClientError(error))
        finally:
            if running is not None:
                running.cancel()
            feed.close()
        if feed.failure is not None:
            raise feed.failure


class Asynchronous(BatchCalls):
    """The calls with many items of a client for asyncio."""

    _start_batch: Callable[[str, Any, CallOptions], Any]
    _start_unary: Callable[[str, Any, CallOptions], Any]

    def _batch(self, call: BatchCall[Reply]) -> AsyncBatch[Reply]:
        return AsyncBatch(self._separately(call) if call.concurrency else self._batch_outcomes(call))

    async def _separately(self, call: BatchCall[Reply]) -> AsyncGenerator[Reply | ClientError, None]:
        running, places, request = deque[Any](), itertools.count(), call.requests()

        async def first() -> Reply | ClientError:
            place = next(places)
            try:
                return call.reply(await running[0])
            except grpc.RpcError as error:
                return ClientError(error, place)
            finally:
                running.popleft().cancel()

        try:
            async with contextlib.aclosing(each(call.texts)) as texts:
                async for text in texts:
                    running.append(self._start_unary(*call.unary(request(text)), call.options))
                    if len(running) >= call.concurrency:
                        yield await first()
            while running:
                yield await first()
        finally:
            for one in running:
                one.cancel()

    async def _batch_outcomes(self, call: BatchCall[Reply]) -> AsyncGenerator[Reply | ClientError, None]:
        feed, attempts, running = AsyncFeed(call.texts, call.items(), call.message), _Attempts(call.options), None
        places = itertools.count()
        try:
            while attempts.goes_on:
                try:
                    running = self._start_batch(call.name, feed.messages(), attempts.options())
                    status = ServerStatus(running)
                    async for message in running:
                        for result in attempts.results(message):
                            feed.answered()
                            yield call.outcome(result, next(places))
                    attempts.end()
                except grpc.RpcError as error:
                    attempts.fail(ClientError(await status.of(error)))
        finally:
            if running is not None:
                running.cancel()
            await feed.aclose()
        if feed.failure is not None:
            raise feed.failure
