"""What a client asked (`Request`) and what it is told (`TextDelta` …, then exactly one `Finished` or one error).

These types are the border between the edge (servicer, client text) and the engine (tokens, rows). They hold no logic
beyond their own consistency; limits against a model are checked by `service.edge.catalog` before a request is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from export.bundle import AttentionKind
from service.decoding.logits_processor import LogitsProcessor
from service.encoder_request import EncoderOutput, EncoderRequest
from service.errors import RequestError
from service.options import DecodingOptions

if TYPE_CHECKING:
    from service.decoding.lexical_constraints import LexicalConstraints


class FinishReason(Enum):
    """Why an answer ended."""

    END_OF_SEQUENCE = "end_of_sequence"  # the model produced its end token
    LENGTH = "length"  # max_tokens or the model's own limit
    STOP_STRING = "stop_string"  # one of the request's stop strings appeared
    ENCODED = "encoded"  # the source was read, which is all that was asked for
    ATTENTION = "attention"  # the attention of given tokens was looked at, which is all that was asked for


@dataclass(frozen=True, kw_only=True)
class Request:
    """One text to produce, to score, to read, or to look at.

    source: token ids for the encoder, end token included; empty for a decoder-only model.
    prompt: token ids the decoder starts from, start token included; at least one, unless there is no decoder.
    max_tokens: at most so many new tokens, end token included; at least one, unless there is no decoder.
    stop: strings that end the answer and are not part of it.
    deadline_s: on the clock of time.monotonic(); None: no deadline.
    options: how to decode; its texts have become tokens and rules here.
    prefix: the answer's first tokens, given. A target to score is nothing but prefix.
    rules: what changes the model's distribution, in the order of the masks behind the others.
    lexical_constraints: what must appear in the answer; one of `rules` too.
    seed: of the random numbers, when sampling.
    shortlist: the only tokens that may be chosen, or given, in ascending order; none: all.
    encoder_request: what is wanted of the encoder, instead of text.
    is_streamed: the answer is told as it grows; otherwise all of it at its end.
    attention_kinds: which attention is wanted of a pass over the source and what the decoder reads.
    forced_target: what the decoder reads there, start token first; empty: the prompt and the generated answer.
    """

    request_id: str
    source: tuple[int, ...] = ()
    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...] = ()
    deadline_s: float | None = None
    options: DecodingOptions = field(default_factory=DecodingOptions)
    prefix: tuple[int, ...] = ()
    logits_processors: tuple[LogitsProcessor, ...] = ()
    lexical_constraints: LexicalConstraints | None = None
    shortlist: tuple[int, ...] = ()
    seed: int = 0
    encoder_request: EncoderRequest | None = None
    is_streamed: bool = True
    attention_kinds: tuple[AttentionKind, ...] = ()
    forced_target: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.prompt or self.encoder_request is not None, "a request needs at least its start token"
        assert self.max_tokens >= (1 if self.prompt else 0), self.max_tokens
        assert len(self.prefix) <= self.max_tokens, (len(self.prefix), self.max_tokens)


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


@dataclass(frozen=True, eq=False)
class HypothesisResult:
    """One whole answer.

    tokens: end token included, where there is one.
    score: what answers are ranked by: the sum of scores, normalised by length as the options say.
    cumulative_logprob: the sum of token_logprobs: the model's own log-probability of these tokens. All three are nan or
        empty where nobody asked for them (`DecodingOptions.returns_hypotheses`) and the search needed none.
    alternatives: for each position the likeliest (id, log-probability) pairs, when asked for.
    attention: float32 (layers, heads, tokens, source), when asked for: with which weights each token was predicted.
    """

    text: str
    tokens: tuple[int, ...]
    reason: FinishReason
    score: float
    cumulative_logprob: float
    token_logprobs: tuple[float, ...]
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    attention: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """What a pass attended to. reads: what the decoder read, start token first. weights: float32 (layers, heads,
    queries, keys) by kind."""

    decoder_tokens: tuple[int, ...]
    weights: Mapping[AttentionKind, np.ndarray]


@dataclass(frozen=True)
class Finished:
    """The end of a good answer. `text`: what was not yet sent in a delta. `hypotheses`: all answers, best first.

    encoder_output: what the encoder says, when that was asked for, and no hypotheses then. seen: when attention was.
    """

    reason: FinishReason
    text: str = ""
    tokens: tuple[int, ...] = ()
    prompt_tokens: int = 0  # source and prompt, special tokens included
    generated_tokens: int = 0  # end token included
    timings: Timings = field(default_factory=Timings)
    hypotheses: tuple[HypothesisResult, ...] = ()
    encoder_output: EncoderOutput | None = None
    attention: AttentionResult | None = None


Event = TextDelta | Finished | RequestError


class EventSink(Protocol):
    """Where an engine delivers the events of one request; called on the event-loop thread."""

    def __call__(self, event: Event) -> None: ...
