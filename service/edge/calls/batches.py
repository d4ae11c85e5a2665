"""Messages of calls with many items ↔ `items`, for every kind alike: TranslateBatchRequest, ScoreBatchResponse, ….

What a request of an item means is known to the unary method of its kind, which answers it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any, TypeVar

from google.protobuf.message import Message

from service.edge.calls.call import Call
from service.edge.calls.items import Item, Outcome
from service.edge.models.served_model import ServedModel
from service.edge.observability.status import rich_status
from service.edge.requests.prompt_encoder import shorten
from service.errors import InvalidRequest

MAX_ITEMS = 1000  # of a message
MAX_ID = 128  # characters
DEFAULTS_FACTOR = 8  # of its size on the wire, with a glossary of short terms

M = TypeVar("M", bound=Message)


async def items_of(first: Any, messages: AsyncGenerator[Any, None], call: Call) -> AsyncGenerator[list[Item], None]:
    """The items of a call, message by message. Their memory is theirs from then on. first: the message that has been
    read of `messages`. Raises InvalidRequest."""
    number = 0
    yield _items(first, number, call)
    number += len(first.items)
    async for message in messages:
        for field in ("defaults", "in_order"):
            if message.HasField(field) if field == "defaults" else message.in_order:
                raise InvalidRequest(field, "must be set in the first message of a call only")
        yield _items(message, number, call)
        number += len(message.items)


def _items(message: Any, number: int, call: Call) -> list[Item]:
    """number: of the first of these items in the call."""
    if len(message.items) > MAX_ITEMS:
        raise InvalidRequest("items", f"must be at most {MAX_ITEMS} in a message, got {len(message.items)}; send more")
    for index, item in enumerate(message.items):
        if len(item.id) > MAX_ID:
            raise InvalidRequest(f"items[{index}].id", f"must be at most {MAX_ID} characters, got {len(item.id)}")
    parts = call.budget.memory.split(len(message.items))
    return [
        Item(item.id or str(number + index), item.request, part)
        for index, (item, part) in enumerate(zip(message.items, parts, strict=True))
    ]


def merged(request: M, defaults: M) -> M:
    """A request with the fields of `defaults` that it lacks. Made when an item begins: defaults may be large."""
    merged = type(defaults)()
    merged.CopyFrom(defaults)
    merged.MergeFrom(request)
    return merged


def defaults_bytes(defaults: Message) -> int:
    """What an item's copy of `defaults` takes."""
    return DEFAULTS_FACTOR * defaults.ByteSize()


def check_model(name: str, defaults: Any, model: ServedModel) -> None:
    """Rejects an item for another model than that of its call. name: which it asks for."""
    if name not in ("", defaults.model, model.name, f"{model.name}@{model.version}"):
        raise InvalidRequest(
            "model",
            f"must be that of the call's defaults, {model.name!r}, or empty, got {shorten(name, MAX_ID)!r}; "
            "make a call for each model",
        )


def response_of(response_type: type[Any], outcomes: Iterable[Outcome]) -> Any:
    """The message with these outcomes."""
    message = response_type()
    for outcome in outcomes:
        result = message.results.add(id=outcome.id)
        if outcome.error is None:
            result.response.CopyFrom(outcome.response)
        else:
            result.error.CopyFrom(rich_status(outcome.error))
    return message
