"""The messages of a chat as fields of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glossa.client.fields import check_list
from glossa.v1 import glossa_pb2 as pb

Message = Mapping[str, Any]


def chat_fields(
    messages: Sequence[Message],
    template_arguments: Mapping[str, Any] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool,
) -> dict[str, Any]:
    """The fields of a request with a chat. messages: dictionaries with role, content and whatever else the model's chat
    template reads. Raises TypeError with the place of what is none."""
    check_list("messages", messages, "dictionaries with role and content")
    options = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message or None}
    for name, value in options.items():
        if not (value is None or isinstance(value, bool)):
            raise TypeError(f"{name} must be true or false, got {value!r:.80}")
    fields: dict[str, Any] = {"messages": [_message(place, message) for place, message in enumerate(messages)]}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if given or template_arguments:
        fields["chat"] = pb.ChatOptions(**given)
        _fill(fields["chat"].template_arguments, "template_arguments", template_arguments or {})
    return fields


def _message(place: int, message: Message) -> pb.ChatMessage:
    where = f"messages[{place}]"
    if not isinstance(message, Mapping):
        raise TypeError(f"{where} must be a dictionary with role and content, got {message!r:.80}")
    texts = {"role": message.get("role"), "content": message.get("content", "")}
    texts["content"] = "" if texts["content"] is None else texts["content"]
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{where}[{name!r}] must be a text, got {text!r:.80}")
    made = pb.ChatMessage(**texts)
    _fill(made.fields, where, {name: value for name, value in message.items() if name not in texts})
    return made


def _fill(struct: Any, where: str, values: Mapping[str, Any]) -> None:
    if not isinstance(values, Mapping):
        raise TypeError(f"{where} must be a dictionary, got {values!r:.80}")
    for name, value in values.items():
        try:
            struct[name] = value
        except (ValueError, TypeError) as error:
            raise TypeError(f"{where}[{name!r}] must be a plain JSON value, got {value!r:.80}") from error
