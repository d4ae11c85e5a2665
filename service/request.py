"""What a client asked (`Request`) and what it is told (`TextDelta` …, then exactly one `Finished` or one error).

These types are the border between the edge (servicer, client text) and the engine (tokens, rows). They hold no logic
beyond their own consistency; limits against a model are checked by `service.catalog` before a request is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from service.errors import RequestError


class FinishReason(Enum):
    """Why an answer ended."""

    END_OF_SEQUENCE = "end_of_sequence"  # the model produced its end token
    LENGTH = "length"  # max_tokens or the model's own limit
    STOP_STRING = "stop_string"  # one of the request's stop strings appeared


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to produce.

    source: token ids for the encoder, end token included; empty for a decoder-only model.
    prompt: token ids the decoder starts from, start token included; at least one.
    max_tokens: at most so many new tokens, end token included.
    stop: strings that end the answer and are not part of it.
    deadline_s: on the clock of time.monotonic(); None: no deadline.
    """

    request_id: str
    source: tuple[int, ...] = ()
    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...] = ()
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        assert self.prompt, "a request needs at least its start token"
        assert self.max_tokens >= 1, self.max_tokens


@dataclass(frozen=True)
class TextDelta:
    """More of the answer. Texts in a row are the whole answer; `tokens` are the new ids, text held back included."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Timings:
    """Seconds: waiting for a row, encoder or prefill, from arrival to first token, from arrival to the end."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True)
class Finished:
    """The end of a good answer: `text` is the part not yet sent in a delta."""

    reason: FinishReason
    text: str = ""
    tokens: tuple[int, ...] = ()
    prompt_tokens: int = 0  # source and prompt, special tokens included
    generated_tokens: int = 0  # end token included
    timings: Timings = field(default_factory=Timings)


Event = TextDelta | Finished | RequestError


class EventSink(Protocol):
    """Where an engine delivers the events of one request; called on the event-loop thread."""

    def __call__(self, event: Event) -> None: ...
