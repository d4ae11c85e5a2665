"""Several texts of one message of another protocol, each translated as an item of a batch of glossa.v1
(`translate_all`).

What a protocol's messages mean is in its servicer; how its fields are called, in the names that errors get here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.call import Call
from service.edge.calls.items import RESULT_FACTOR, Item
from service.edge.requests.language_routes import Route
from service.edge.rpcs.servicer import Servicer
from service.errors import InvalidRequest

Translate = Callable[[Route, pb.TranslateRequest, Call], Awaitable[pb.TranslateResponse]]
"""Answers an item of a call by the models of a route, as `Servicer.translated_item`."""


def check_known(message: Message) -> None:
    """Refuses fields that this version of the protocol does not know: they may change the answer. Raises
    InvalidRequest."""
    unknown: Any = UnknownFieldSet(message)
    if len(unknown):
        raise InvalidRequest(f"field {unknown[0].field_number}", "must be left out: this server does not know it")


@contextlib.contextmanager
def named(names: Mapping[str, str], index: int = 0) -> Iterator[None]:
    """Errors about fields of glossa.v1 name those of the protocol: `names`, in which {} is the text's index."""
    try:
        yield
    except InvalidRequest as error:
        field = names[error.field].format(index) if error.field in names else error.field
        raise InvalidRequest(field, error.problem) from None


async def translate_all(
    glossa: Servicer,
    requests: Sequence[pb.TranslateRequest],
    call: Call,
    names: Mapping[str, str],
    translate: Translate | None = None,
) -> list[pb.TranslateResponse]:
    """The answers to requests that have model and languages in common, side by side. If one fails, so does the call,
    and the others are cancelled. translate: instead of `Servicer.translated_item`. names: see `named`."""
    with named(names):
        route = glossa.route_of_items(requests[0], call)

    async def source() -> AsyncGenerator[list[Item], None]:
        yield [Item(str(index), request) for index, request in enumerate(requests)]

    responses, answer = list[pb.TranslateResponse](), partial(translate or glossa.translated_item, route)
    window = route.model.pool.window
    outcomes = glossa.items.run(call, source(), answer, window=window, in_order=True, is_one=True)
    async with contextlib.aclosing(outcomes):
        async for some in outcomes:
            for outcome in some:
                with named(names, int(outcome.id)):
                    if outcome.error is not None:
                        raise outcome.error
                assert isinstance(outcome.response, pb.TranslateResponse)
                call.budget.memory.grow(RESULT_FACTOR * outcome.size)
                responses.append(outcome.response)
    return responses
