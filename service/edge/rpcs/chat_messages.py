"""The messages of a chat in glossa.v1 ↔ the service's own values, and the warnings of answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glossa.v1 import glossa_pb2 as pb
from service.edge.models.served_model import ServedModel
from service.edge.requests.chat_prompts import Chat, Spelled
from service.errors import InvalidRequest

EXACT = 2**53  # whole numbers that a Value holds exactly are below it
SPELLED = "SPECIAL_TOKEN_IN_TEXT"
MAX_WARNINGS = 16  # of one answer


def chat_of(message: Any) -> Chat | None:
    """The chat of a message that may have one; None: it has none. Raises InvalidRequest."""
    if not message.messages:
        if message.HasField("chat"):
            raise InvalidRequest("chat", "must be left out without messages")
        return None
    options = message.chat
    return Chat(
        messages=[_message(place, one) for place, one in enumerate(message.messages)],
        arguments=_object(options.template_arguments),
        add_generation_prompt=options.add_generation_prompt if options.HasField("add_generation_prompt") else None,
        continue_final_message=options.continue_final_message,
    )


def warnings_of(spelled: Iterable[Spelled]) -> list[pb.Warning]:
    """The warnings of an answer: the first ones."""
    return [pb.Warning(reason=SPELLED, message=one.problem) for one in list(spelled)[:MAX_WARNINGS]]


def spelled_in(text: str, field: str, model: ServedModel) -> list[Spelled]:
    """The special tokens that the text of a prompt spells."""
    return [Spelled(field, name) for name in dict.fromkeys(model.special_names.findall(text))]


def _message(place: int, message: pb.ChatMessage) -> dict[str, Any]:
    fields = {name: value for name, value in _object(message.fields).items() if value is not None}
    for name in ("role", "content"):
        if name in fields:
            raise InvalidRequest(f"messages[{place}].fields", f"must not have {name}; set messages[{place}].{name}")
    return {"role": message.role, "content": message.content, **fields}


def _object(value: Any) -> dict[str, Any]:
    """A google.protobuf.Struct as JSON has it; whole numbers are ints."""
    return {name: _plain(item) for name, item in value.fields.items()}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _object(value.struct_value)
    if kind == "list_value":
        return [_plain(item) for item in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) < EXACT else number
    return getattr(value, kind) if kind in ("string_value", "bool_value") else None
