"""The models a server has, and the way from a client's text to a `Request` that fits one of them.

All checks of a request against its model stand here, before any work is done. Nothing here knows gRPC, and no check
depends on how busy the server is: that is the pool's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from export.bundle import Manifest, Task
from model.tokenizer import Tokenizer
from service.errors import InvalidRequest, ModelNotFound, Unsupported
from service.request import EventSink, Request

INLINE_BYTES = 1024  # tokenised on the event loop (0.3 ms); longer text in a thread, by the call that releases the GIL
SHOWN_WORDS = 10  # unknown words named in an error: trailing metadata has room for about 8 KiB
SHOWN_CHARACTERS = 24  # of each of them
SERVICES: Mapping[Task, str] = {"translation": "TranslationService", "generation": "GenerationService"}


class Submission(Protocol):
    """A request in an engine."""

    def cancel(self) -> None: ...


class Pool(Protocol):
    """The engines of one model, as the edge sees them."""

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Submission: ...

    def stop_accepting(self) -> None: ...

    def close(self) -> None: ...

    @property
    def heartbeat_s(self) -> float: ...

    @property
    def is_healthy(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class TextLimits:
    """What a request may bring, whatever the model."""

    max_text_bytes: int = 16384
    max_stop_strings: int = 8
    max_stop_bytes: int = 64


@dataclass(frozen=True, kw_only=True)
class Provider:
    """What runs a model: the execution provider in use, what was asked for, and why they differ."""

    name: str
    requested: str
    fallback: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One model with all that its requests need."""

    name: str
    manifest: Manifest
    precision: str
    bundle_sha256: str  # of manifest.json
    tokenizer: Tokenizer
    pool: Pool
    provider: Provider

    @property
    def max_prompt_tokens(self) -> int:
        """Longest text in tokens: a source with its end token, a prompt with its start token."""
        limits = self.manifest.limits
        return limits.max_source_len or limits.max_target_len

    def room(self, prompt_tokens: int) -> int:
        """How many tokens can be new after a prompt, start token included. The last one takes no position."""
        return self.manifest.limits.max_target_len - prompt_tokens + 1

    async def request(
        self, request_id: str, text: str, *, max_tokens: int, stop: Sequence[str], deadline_s: float, limits: TextLimits
    ) -> Request:
        """A request whose every field was checked. Raises InvalidRequest."""
        _check_text(text, limits)
        _check_stop(stop, limits)
        if len(text) <= INLINE_BYTES:
            unknown, tokens = self._tokenise(text)
        else:
            unknown, tokens = await asyncio.to_thread(self._tokenise, text)
        if unknown:
            raise InvalidRequest("text", _unknown_words(unknown))
        bos, eos = self.manifest.tokens.bos, self.manifest.tokens.eos
        has_source = self.manifest.limits.max_source_len > 0
        source, prompt = ((*tokens, eos), (bos,)) if has_source else ((), (bos, *tokens))
        length = len(source) or len(prompt)
        if length > self.max_prompt_tokens:
            raise InvalidRequest(
                "text",
                f"must be at most {self.max_prompt_tokens} tokens, got {length}; shorten or split it",
            )
        room = self.room(len(prompt))
        if not 0 <= max_tokens <= room:
            beside = "" if has_source else f" beside a prompt of {len(prompt)} tokens"
            raise InvalidRequest(
                "options.max_tokens", f"must be 1..{room}{beside}, or 0 for the model's own limit, got {max_tokens}"
            )
        return Request(
            request_id=request_id,
            source=source,
            prompt=prompt,
            max_tokens=max_tokens or room,
            stop=tuple(stop),
            deadline_s=deadline_s,
        )

    def _tokenise(self, text: str) -> tuple[list[str], list[int]]:
        return self.tokenizer.unknown_words(text), self.tokenizer.encode_batch([text])[0]


def _check_text(text: str, limits: TextLimits) -> None:
    size = len(text.encode())
    if size > limits.max_text_bytes:
        raise InvalidRequest("text", f"must be at most {limits.max_text_bytes} bytes, got {size}; shorten or split it")
    if not text.strip():
        raise InvalidRequest("text", "must not be empty or blank")


def _check_stop(stop: Sequence[str], limits: TextLimits) -> None:
    if len(stop) > limits.max_stop_strings:
        raise InvalidRequest("options.stop", f"must be at most {limits.max_stop_strings} strings, got {len(stop)}")
    for place, text in enumerate(stop):
        if not 1 <= len(text.encode()) <= limits.max_stop_bytes:
            raise InvalidRequest(
                f"options.stop[{place}]", f"must be 1..{limits.max_stop_bytes} bytes, got {len(text.encode())}"
            )


def _unknown_words(words: Sequence[str]) -> str:
    shown = ", ".join(shorten(word, SHOWN_CHARACTERS) for word in words[:SHOWN_WORDS])
    more = f" and {len(words) - SHOWN_WORDS} more" if len(words) > SHOWN_WORDS else ""
    return f"the model's closed vocabulary does not know these words: {shown}{more}; use other words"


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class Catalog:
    """The models of one server by name."""

    def __init__(self, models: Sequence[ServedModel], limits: TextLimits | None = None) -> None:
        self.limits = limits or TextLimits()
        self._models = {model.name: model for model in sorted(models, key=lambda model: model.name)}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def find(self, name: str, task: Task | None = None) -> ServedModel:
        """The model of that name, or the only one that fits when the name is empty.

        Raises ModelNotFound; Unsupported if its task is another, or no model has that task; InvalidRequest if the name
        is empty and several fit.
        """
        if not name:
            return self._only(task)
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound(shorten(name, 64), self._names())
        if task is not None and model.manifest.task != task:
            raise Unsupported(
                f"model {name!r} is made for {model.manifest.task}, not {task}; "
                f"call {SERVICES[model.manifest.task]}, or name another model"
            )
        return model

    def _only(self, task: Task | None) -> ServedModel:
        fitting = [model for model in self._models.values() if task is None or model.manifest.task == task]
        if not fitting:
            raise Unsupported(f"no model for {task} is served here; models: {', '.join(self._names())}")
        if len(fitting) > 1:
            names = ", ".join(model.name for model in fitting)
            raise InvalidRequest("model", f"must be named when several fit; one of: {names}")
        return fitting[0]

    def _names(self) -> list[str]:
        return list(self._models)
