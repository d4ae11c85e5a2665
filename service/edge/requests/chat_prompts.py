"""The messages of a chat → the prompt of one model (`ChatPrompts`), rendered by the model's chat template.

What a client may send is bounded here, what a template may do in `model.prompts.chat_template`. Which parts of the
prompt are special tokens is decided in `model.prompts.chat_tokens`. Nothing here knows gRPC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from model.prompts.chat_template import GIVEN, ChatRefused, ChatTemplateError, ChatTooLong
from model.prompts.chat_tokens import ChatTokens
from service.edge.models.served_model import ServedModel
from service.edge.requests.prompt_encoder import shorten
from service.edge.requests.request_limits import TextLimits
from service.errors import InvalidRequest, Unsupported

MAX_MESSAGES = 1000
ROLE = re.compile(r"[^\W\d][\w.-]{0,63}")
ROLES = ("system", "developer", "user", "assistant", "model", "tool", "function", "ipython", "observation")
"""Roles that templates know. Another one must not be the word of a special token, of which a template may be made."""


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A chat as a client sends it. messages: each with role, content and further fields, plain JSON values. arguments:
    variables of the template. add_generation_prompt: None: unless the last message is continued."""

    messages: Sequence[Mapping[str, Any]]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


class Spelled(NamedTuple):
    """A special token that a text spells, and the field with the text."""

    field: str
    name: str

    @property
    def problem(self) -> str:
        """What a client should know about it."""
        return f"{self.field}: spells the special token {self.name}, which was read as plain text"


class ChatPrompt(NamedTuple):
    """The tokens of a chat. spelled: special tokens in the client's texts."""

    tokens: tuple[int, ...]
    spelled: tuple[Spelled, ...]


class ChatPrompts:
    """Renders the chats of one model. Raises InvalidRequest, and Unsupported for a model without a template."""

    def __init__(self, model: ServedModel, limits: TextLimits) -> None:
        self._model, self._limits = model, limits

    def prompt(self, chat: Chat) -> ChatPrompt:
        """The prompt of a chat. Takes milliseconds, and as long as the bounds of the template allow."""
        tokens = self._model.chat
        if tokens is None:
            raise Unsupported(
                f"model {self._model.name!r} has no chat template, which messages need; send text or prompt_tokens, or "
                "export the model from a checkpoint that was imported with its chat_template.jinja"
            )
        self._check(chat, tokens)
        messages, arguments = tokens.marked(list(chat.messages)), tokens.marked(dict(chat.arguments))
        try:
            if chat.continue_final_message:
                rendered = tokens.template.render_continued(messages, arguments)
            else:
                begins = chat.add_generation_prompt is not False
                rendered = tokens.template.render(messages, arguments, add_generation_prompt=begins)
        except ChatTemplateError as error:
            raise InvalidRequest("messages", self._problem(error, tokens)) from error
        spelled = [
            Spelled(where, name)
            for where, text in _texts({"messages": chat.messages, "chat.template_arguments": chat.arguments})
            for name in tokens.spelled(text)
        ]
        return ChatPrompt(tuple(tokens.encode(rendered)), tuple(spelled))

    def _problem(self, error: ChatTemplateError, tokens: ChatTokens) -> str:
        what, name = tokens.unmarked(str(error)), f"the chat template of model {self._model.name!r}"
        if isinstance(error, ChatRefused):
            return f"{name} refuses them: {what}; change the messages accordingly"
        if isinstance(error, ChatTooLong):
            return f"{name} {what} for them; send fewer or shorter messages"
        return f"{name} does not render them: {what}; set what it reads, in fields or chat.template_arguments"

    def _check(self, chat: Chat, tokens: ChatTokens) -> None:
        if not 1 <= len(chat.messages) <= MAX_MESSAGES:
            raise InvalidRequest("messages", f"must be 1..{MAX_MESSAGES} messages, got {len(chat.messages)}")
        if chat.continue_final_message and chat.add_generation_prompt:
            problem = "must be left out or false with continue_final_message, got true"
            raise InvalidRequest("chat.add_generation_prompt", problem)
        for place, message in enumerate(chat.messages):
            _check_role(f"messages[{place}].role", message["role"], tokens)
        for name in chat.arguments:
            if name in GIVEN or name in tokens.template.special_tokens or name.startswith("_"):
                taken = f"{', '.join(GIVEN)}, names of special tokens or begin with _"
                raise InvalidRequest("chat.template_arguments", f"must not be {taken}, got {shorten(name, 64)!r}")
        size = sum(len(text.encode()) for _, text in _texts([chat.messages, chat.arguments]))
        if size > self._limits.max_text_bytes:
            most = f"must have at most {self._limits.max_text_bytes} bytes of text together"
            raise InvalidRequest("messages", f"{most}, got {size}; leave out the oldest ones, or shorten them")


def _check_role(where: str, role: str, tokens: ChatTokens) -> None:
    if not ROLE.fullmatch(role):
        problem = f"must be 1..64 letters, digits, _, . or -, a letter first, got {shorten(role, 64)!r}"
        raise InvalidRequest(where, f"{problem}; such as {', '.join(ROLES[:4])}")
    if role in tokens.words and role not in ROLES:
        problem = f"must not be {role!r}, the word of the special token {tokens.words[role]}"
        raise InvalidRequest(where, f"{problem}; use {', '.join(ROLES[:4])}")


def _texts(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """The texts in a plain JSON value, names of fields included, each with its place."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield where, name
            yield from _texts(item, f"{where}.{name}" if where else name)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _texts(item, f"{where}[{place}]")
