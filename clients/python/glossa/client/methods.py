"""Methods of both clients, each defined once.

A method builds a `Call`: a request and the function from its response to the result. `unary` and `streaming` turn it
into a method of both clients: of `Client` with the result, of `AsyncClient` with a coroutine or an asynchronous
generator.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload

from glossa.client import batches
from glossa.client.help_text import with_help
from glossa.client.requests import CallOptions
from glossa.client.types import Piece, Stream

P = ParamSpec("P")
Reply = TypeVar("Reply")
Blocking = TypeVar("Blocking", covariant=True)
Asynchronous = TypeVar("Asynchronous", covariant=True)


class Call(NamedTuple, Generic[Reply]):
    """A request, its keyword arguments, and the function from the response to the result. stream: makes what turns the
    messages of a stream into pieces. many: the name of the requests that `request` iterates over; without timeout_s
    such a call has no deadline."""

    request: Any
    options: CallOptions
    reply: Callable[[Any], Reply]
    stream: Callable[[], Any] = Stream
    many: str = ""


class Method(Protocol[P, Blocking, Asynchronous]):
    """The type of a method of both clients."""

    @overload
    def __get__(self, client: None, kind: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: batches.Blocking, kind: type | None = None) -> Callable[P, Blocking]: ...
    @overload
    def __get__(self, client: batches.Asynchronous, kind: type | None = None) -> Callable[P, Asynchronous]: ...


def method_of(build: Callable[..., Call[Any]], run: str, returns: str = "{}") -> Any:
    """A method that passes its call to the client's method `run`. returns: see `with_help`."""

    @functools.wraps(build)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self, run)(build(self, *arguments, **options))

    return with_help(method, build, returns)


def unary(build: Callable[Concatenate[Any, P], Call[Reply]]) -> Method[P, Reply, Coroutine[Any, Any, Reply]]:
    """A method that returns the result of a call, in an AsyncClient as a coroutine."""
    return cast(Method[P, Reply, Coroutine[Any, Any, Reply]], method_of(build, "_run"))


def streaming(
    build: Callable[Concatenate[Any, P], Call[Any]],
) -> Method[P, Generator[Piece, None, None], AsyncGenerator[Piece, None]]:
    """A method that yields the pieces of an answer, in an AsyncClient asynchronously."""
    return cast(
        Method[P, Generator[Piece, None, None], AsyncGenerator[Piece, None]],
        method_of(build, "_pieces", "Iterator[Piece]"),
    )
