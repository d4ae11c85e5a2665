"""A client's request (`Request`) and the events it gets: any number of `TextDelta`, then one `Finished` or one error.

These types are the border between the edge (clients, text) and the engine (tokens, rows), and all of it is plain data.
A request asserts its own consistency; the edge checks it against the model's limits, the engine against its memory, and
its texts and grammars against the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

import numpy as np

from export.bundle.manifest import AttentionKind
from service.encoder_request import EncoderOutput, EncoderRequest
from service.errors import RequestError
from service.options import DecodingOptions
from service.progress import Timings


class FinishReason(Enum):
    """Why an answer ended."""

    END_OF_SEQUENCE = "end_of_sequence"  # the model produced its end token
    LENGTH = "length"  # max_tokens or the model's own limit
    STOP_STRING = "stop_string"  # one of the request's stop strings appeared
    ENCODED = "encoded"  # the requested encoder outputs are there
    ATTENTION = "attention"  # the requested attention weights of given tokens are there


class Priority(IntEnum):
    """The class of a request, the most urgent first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class Caller(NamedTuple):
    """Whose a request is, and how urgent. See `Request`."""

    tenant: str = ""
    weight: float = 1.0
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, kw_only=True)
class Request:
    """One text to generate, to score, to encode, or to compute the attention of.

    source: token ids for the encoder, end token included; empty for a decoder-only model.
    prompt: token ids the decoder starts from, start token included; at least one, unless there is no decoder.
    max_tokens: most new tokens, end token included; at least one, unless there is no decoder.
    stop: strings that end the answer and are not part of it.
    deadline_s: on the clock of time.monotonic(); None: no deadline.
    options: how to decode; its prefix and its stop strings stand in the fields of their own.
    prefix: the forced first tokens of the answer. A target to score is nothing but prefix.
    preferred_prefix: first tokens that options.prefix_bias prefers instead.
    continued_text: the text before the answer that is part of the same text, where there is one.
    shortlist: the only tokens that may be chosen or forced, ascending; empty: the full vocabulary.
    seed: of the random numbers, when sampling.
    encoder_request: the encoder outputs that are requested instead of text.
    is_streamed: events report the answer as it grows; otherwise only at its end.
    attention_kinds: attention weights that are requested of a pass over the source and the decoder's input.
    forced_target: the decoder's input of that pass, start token first; empty: the prompt and the generated answer.
    trace_id: of the client's distributed trace; empty: none. Like request_id, it only names the request in the log.
    tenant: whose request it is; tenants that wait share an engine's work in proportion to their weights.
    weight: of the tenant.
    priority: of the request; one of a higher class goes before all of lower classes.
    trims_text: blanks at both ends of an answer are no part of its text.
    words_per_token: of answers whose confidence is requested, at most; 0: it is not. For the size of the response.
    """

    request_id: str
    source: tuple[int, ...] = ()
    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...] = ()
    deadline_s: float | None = None
    options: DecodingOptions = field(default_factory=DecodingOptions)
    prefix: tuple[int, ...] = ()
    preferred_prefix: tuple[int, ...] = ()
    continued_text: str = ""
    shortlist: tuple[int, ...] = ()
    seed: int = 0
    encoder_request: EncoderRequest | None = None
    is_streamed: bool = True
    attention_kinds: tuple[AttentionKind, ...] = ()
    forced_target: tuple[int, ...] = ()
    trace_id: str = ""
    tenant: str = ""
    weight: float = 1.0
    priority: Priority = Priority.NORMAL
    trims_text: bool = False
    words_per_token: int = 0

    def __post_init__(self) -> None:
        assert self.prompt or self.encoder_request is not None, "a request needs at least its start token"
        assert self.max_tokens >= (1 if self.prompt else 0), self.max_tokens
        assert len(self.prefix) <= self.max_tokens, (len(self.prefix), self.max_tokens)
        assert self.weight > 0, self.weight

    @property
    def caller(self) -> Caller:
        """Its tenant, weight and priority."""
        return Caller(self.tenant, self.weight, self.priority)

    @property
    def log_name(self) -> str:
        """What the log calls it."""
        return f"{self.request_id} (trace {self.trace_id})" if self.trace_id else self.request_id


@dataclass(frozen=True)
class TextDelta:
    """More of the answer. The texts of all deltas and of `Finished` are the whole answer. tokens: the new ids, those
    included whose text is still held back."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class HypothesisResult:
    """One finished answer.

    tokens: end token included, where there is one.
    score: what answers are ranked by: the sum of token scores, normalised by length according to the options.
    cumulative_logprob: the sum of token_logprobs, the log-probabilities of the unmodified model. All three are nan or
        empty where they were not requested (`DecodingOptions.returns_hypotheses`) and the search needed none.
    alternatives: on request, for each position the most likely (id, log-probability) pairs.
    attention: on request, float32 (layers, heads, tokens, source): cross-attention when each token was predicted.
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
    """Attention weights of one pass. decoder_tokens: the decoder's input, start token first. weights: float32 (layers,
    heads, queries, keys) by kind."""

    decoder_tokens: tuple[int, ...]
    weights: Mapping[AttentionKind, np.ndarray]


@dataclass(frozen=True)
class Finished:
    """A successful end. text, tokens: what no delta has reported. hypotheses: all answers, best first; none where
    encoder outputs or the attention of given tokens were requested instead.
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
EventSink = Callable[[Event], None]
"""Where an engine delivers the events of one request; called on the event-loop thread."""
Cancel = Callable[[], None]
"""Ends an accepted request with Cancelled at the next step boundary, unless it has ended. From any thread, any time."""
