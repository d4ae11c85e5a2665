"""A call with many items (`BatchCall`): how they become messages, and messages their results. Knows no connection."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from glossa.client.errors import ClientError
from glossa.client.fields import new_message
from glossa.client.requests import CallOptions
from glossa.v1 import glossa_pb2 as pb

Result = TypeVar("Result", covariant=True)


class BatchCall(NamedTuple, Generic[Result]):
    """A call with many items. name: of its method. texts: the caller's items, each of which `request` makes a request
    of, merged into `defaults`. options: of the whole call. reply: makes a result of a response. concurrency: of calls
    with one item each; 0: one call with all items."""

    name: str
    texts: Iterable[Any] | AsyncIterable[Any]
    request: Callable[[Any], Any]
    defaults: Any
    options: CallOptions
    reply: Callable[[Any], Result]
    concurrency: int = 0

    def message(self, items: Sequence[Any], *, is_first: bool) -> Any:
        """A message of the call."""
        first = {"defaults": self.defaults} if is_first else {}
        return getattr(pb, f"{self.name}Request")(items=items, **first)

    def requests(self) -> Callable[[Any], Any]:
        """Makes the request of one item after the other. Raises TypeError with its place, from 0, for what is none."""
        places = itertools.count()

        def request(text: Any) -> Any:
            place = next(places)
            try:
                return self.request(text)
            except TypeError as error:
                raise TypeError(f"item {place} (from 0): {error}") from None

        return request

    def items(self) -> Callable[[Any], Any]:
        """Makes one item of a message after the other; raises as `requests`."""
        kind, request = getattr(pb, f"{self.name}Item"), self.requests()
        return lambda text: kind(request=request(text))

    def unary(self, own: Any) -> tuple[str, Any]:
        """The method and the message that make a call of one item. own: its request."""
        request = type(self.defaults)()
        request.CopyFrom(self.defaults)
        request.MergeFrom(own)
        return f"{self.name.removesuffix('Batch')}Request", request

    def outcome(self, result: Any, place: int) -> Result | ClientError:
        """The result of an item, or its error. place: of the item."""
        return ClientError.of_status(result.error, place) if result.HasField("error") else self.reply(result.response)


def request_of(kind: Any, item: Any) -> Any:
    """The request of a text, or the item itself if it is one."""
    return item if isinstance(item, kind) else new_message(kind, text=item)


def score_request(item: Any) -> Any:
    """The request of a pair of text and target, or the item itself if it is one."""
    if isinstance(item, pb.ScoreRequest):
        return item
    if isinstance(item, str) or not isinstance(item, Sequence) or len(item) != 2:
        raise TypeError(f"must be a pair of text and target, got {item!r:.80}")
    return new_message(pb.ScoreRequest, text=item[0], target=item[1])
