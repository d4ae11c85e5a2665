"""What a client is told, as plain values: frozen dataclasses made of the messages of glossa.v1. Knows no gRPC."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from glossa.v1 import glossa_pb2 as pb


@dataclass(frozen=True)
class TokenAlternative:
    """A token that could have been chosen."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True)
class TokenLogprob:
    """A token of an answer with the model's own log-probability; all texts together are the answer's."""

    token: int
    text: str
    logprob: float
    top_logprobs: tuple[TokenAlternative, ...] = ()  # best first; only when asked for


@dataclass(frozen=True)
class Alignment:
    """Which places of the source the tokens of an answer belong to. A span is [start, end) in a text's characters."""

    source_spans: tuple[tuple[int, int], ...]  # of the request's text, the end token's included
    target_spans: tuple[tuple[int, int], ...]  # of the answer's text
    rows: tuple[tuple[float, ...], ...] = ()  # soft: for each token of the answer its weights over the source tokens
    positions: tuple[int, ...] = ()  # hard: for each token of the answer the index of its source token


@dataclass(frozen=True)
class Hypothesis:
    """One of several answers."""

    text: str
    finish_reason: str
    score: float  # what answers are ranked by
    cumulative_logprob: float
    tokens: tuple[int, ...] = ()  # only when asked for
    token_logprobs: tuple[TokenLogprob, ...] = ()  # only when asked for
    alignment: Alignment | None = None


@dataclass(frozen=True)
class Answer:
    """A whole answer. Times in seconds, measured in the server."""

    text: str
    finish_reason: str  # end_of_sequence, length or stop_string
    prompt_tokens: int
    generated_tokens: int
    queue_s: float
    prefill_s: float
    first_token_s: float
    total_s: float
    tokens: tuple[int, ...] = ()  # only when asked for
    hypotheses: tuple[Hypothesis, ...] = ()  # all answers, best first, with what was asked to be told beside them
    seed: int | None = None  # of a sampled answer


@dataclass(frozen=True)
class Piece:
    """A piece of a streamed answer; `answer` is the whole, in the last piece only."""

    text: str
    tokens: tuple[int, ...] = ()
    answer: Answer | None = None


@dataclass(frozen=True)
class Score:
    """How likely a model finds a target. Times in seconds, measured in the server."""

    score: float  # by which beam search would rank it
    cumulative_logprob: float
    perplexity: float
    tokens: tuple[TokenLogprob, ...]
    alignment: Alignment | None
    prompt_tokens: int
    generated_tokens: int
    queue_s: float
    prefill_s: float
    total_s: float


@dataclass(frozen=True)
class TokenCandidate:
    """A token that a mask may stand for."""

    token: int
    text: str
    probability: float


@dataclass(frozen=True)
class LabelProbability:
    """How likely a text has a label."""

    label: str
    probability: float


@dataclass(frozen=True)
class TokenWeight:
    """How much a token had to say about the labels. It stands for the characters [start, end) of the text."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True)
class Classification:
    """What a text is. Times in seconds, measured in the server."""

    labels: tuple[LabelProbability, ...]  # the likeliest first
    token_weights: tuple[TokenWeight, ...]  # only when asked for
    prompt_tokens: int
    generated_tokens: int
    queue_s: float
    prefill_s: float
    total_s: float


@dataclass(frozen=True)
class AttentionToken:
    """A token that attends, or is attended to; text: with the blank before it, or a name such as <eos>."""

    token: int
    text: str
    span: tuple[int, int]  # [start, end) of the request's text, or of the answer's


@dataclass(frozen=True)
class AttentionMatrix:
    """The weights of one head: a row for each token that attends, a column for each that is attended to."""

    kind: str  # encoder, decoder or cross
    layer: int  # from 1; 0: the mean of those that were asked for
    head: int  # the same
    rows: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Attended:
    """What the tokens of a text and its answer attend to. Times in seconds, measured in the server."""

    source: tuple[AttentionToken, ...]  # what the encoder reads
    target: tuple[AttentionToken, ...]  # what the decoder reads, its start token first
    predicted: tuple[AttentionToken, ...]  # the token behind each of `target`; the last one may have none
    target_text: str
    finish_reason: str  # of the model's own answer; "" for one that was given
    matrices: tuple[AttentionMatrix, ...]
    prompt_tokens: int
    generated_tokens: int
    queue_s: float
    prefill_s: float
    total_s: float

    def rows(self, kind: str) -> tuple[AttentionToken, ...]:
        """The tokens that attend: in cross-attention the one that is predicted, which is what an alignment is about."""
        return {"encoder": self.source, "decoder": self.target, "cross": self.predicted}[kind]

    def columns(self, kind: str) -> tuple[AttentionToken, ...]:
        """The tokens that are attended to."""
        return self.target if kind == "decoder" else self.source


@dataclass
class Stream:
    """Turns messages of a stream into pieces."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def piece(self, message: Any) -> Piece:
        self.texts.append(message.text)
        self.tokens += message.tokens
        answer = None
        if message.HasField("final"):
            answer = answer_of("".join(self.texts), self.tokens, message.final)
        return Piece(message.text, tuple(message.tokens), answer)


def answer_of(text: str, tokens: Iterable[int], end: Any) -> Answer:
    """end: a message with finish_reason, usage, timings, hypotheses and seed."""
    return Answer(
        text=text,
        finish_reason=_finish_reason(end),
        first_token_s=end.timings.first_token.ToTimedelta().total_seconds(),
        tokens=tuple(tokens),
        hypotheses=tuple(map(_hypothesis, end.hypotheses)),
        seed=end.seed if end.HasField("seed") else None,
        **_cost(end),
    )


def score_of(message: pb.ScoreResponse) -> Score:
    return Score(
        score=message.score,
        cumulative_logprob=message.cumulative_logprob,
        perplexity=message.perplexity,
        tokens=tuple(map(_token, message.tokens)),
        alignment=_alignment(message),
        **_cost(message),
    )


def mask_candidates_of(message: pb.FillMaskResponse) -> list[tuple[TokenCandidate, ...]]:
    return [
        tuple(TokenCandidate(filling.token, filling.text, filling.probability) for filling in mask.candidates)
        for mask in message.masks
    ]


def classification_of(message: pb.ClassifyResponse) -> Classification:
    return Classification(
        labels=tuple(LabelProbability(told.label, told.probability) for told in message.labels),
        token_weights=tuple(TokenWeight(told.span.start, told.span.end, told.weight) for told in message.token_weights),
        **_cost(message),
    )


def attended_of(message: pb.AttendResponse) -> Attended:
    reason = _finish_reason(message)
    return Attended(
        source=tuple(map(_attention_token, message.source)),
        target=tuple(map(_attention_token, message.target)),
        predicted=tuple(map(_attention_token, message.predicted)),
        target_text=message.target_text,
        finish_reason="" if reason == "unspecified" else reason,
        matrices=tuple(_matrix(matrix, message) for matrix in message.matrices),
        **_cost(message),
    )


def _attention_token(message: pb.AttentionToken) -> AttentionToken:
    return AttentionToken(message.token, message.text, (message.span.start, message.span.end))


def _matrix(matrix: pb.AttentionMatrix, message: pb.AttendResponse) -> AttentionMatrix:
    kind = attention_kind(matrix.kind)
    columns = len(message.target if kind == "decoder" else message.source)
    weights = tuple(matrix.weights)
    rows = tuple(weights[start : start + columns] for start in range(0, len(weights), columns))
    return AttentionMatrix(kind, matrix.layer, matrix.head, rows)


def attention_kind(number: Any) -> str:
    """ATTENTION_KIND_CROSS as "cross"."""
    return pb.AttentionKind.Name(number).removeprefix("ATTENTION_KIND_").lower()


def _cost(message: Any) -> dict[str, Any]:
    timings = message.timings
    return {
        "prompt_tokens": message.usage.prompt_tokens,
        "generated_tokens": message.usage.generated_tokens,
        "queue_s": timings.queue.ToTimedelta().total_seconds(),
        "prefill_s": timings.prefill.ToTimedelta().total_seconds(),
        "total_s": timings.total.ToTimedelta().total_seconds(),
    }


def _finish_reason(message: Any) -> str:
    return pb.FinishReason.Name(message.finish_reason).removeprefix("FINISH_REASON_").lower()


def _hypothesis(message: pb.Hypothesis) -> Hypothesis:
    return Hypothesis(
        text=message.text,
        finish_reason=_finish_reason(message),
        score=message.score,
        cumulative_logprob=message.cumulative_logprob,
        tokens=tuple(message.tokens),
        token_logprobs=tuple(map(_token, message.token_logprobs)),
        alignment=_alignment(message),
    )


def _token(message: pb.TokenLogprob) -> TokenLogprob:
    top = tuple(TokenAlternative(other.token, other.text, other.logprob) for other in message.top_logprobs)
    return TokenLogprob(message.token, message.text, message.logprob, top)


def _alignment(message: Any) -> Alignment | None:
    if not message.HasField("alignment"):
        return None
    told = message.alignment
    return Alignment(
        source_spans=tuple((span.start, span.end) for span in told.source_spans),
        target_spans=tuple((span.start, span.end) for span in told.target_spans),
        rows=tuple(tuple(row.weights) for row in told.rows),
        positions=tuple(told.positions),
    )
