"""Results of the client's calls: frozen dataclasses with the fields of the messages of glossa.v1.

Enumerations are lower-case names, durations seconds, spans pairs [start, end) of characters. Knows no gRPC.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from glossa.client.languages import DetectedLanguage, TranslationRoute
from glossa.v1 import glossa_pb2 as pb

T = TypeVar("T")
Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a call, measured in the server."""

    prompt_tokens: int
    generated_tokens: int
    queue_s: float
    prefill_s: float
    total_s: float


@dataclass(frozen=True)
class TokenAlternative:
    """One of the most likely tokens at a position."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True)
class TokenLogprob:
    """A token of an answer with the model's own log-probability; all texts together are the answer's."""

    token: int
    text: str
    logprob: float
    top_logprobs: tuple[TokenAlternative, ...] = ()  # best first; only when requested


@dataclass(frozen=True)
class Alignment:
    """Which source tokens the tokens of an answer are aligned with."""

    source_spans: tuple[Span, ...]  # of the request's text, the end token's included
    target_spans: tuple[Span, ...]  # of the answer's text
    rows: tuple[tuple[float, ...], ...] = ()  # soft: for each token of the answer its weights over the source tokens
    positions: tuple[int, ...] = ()  # hard: for each token of the answer the index of its source token


@dataclass(frozen=True)
class WordConfidence:
    """How sure the model is of a word, or a punctuation mark, of its answer."""

    span: Span  # of the answer's text
    confidence: float  # the probability that the word occurs in a reference translation
    is_uncertain: bool  # below `uncertain_below`


@dataclass(frozen=True)
class Confidence:
    """How sure the model is of an answer."""

    sentence: float  # the expected share of right words, lower where the answer lacks or repeats something
    words: tuple[WordConfidence, ...]
    uncertain: tuple[Span, ...]  # of the uncertain words, neighbors joined
    calibrated: bool  # the answer was decoded like those that confidence was calibrated on


@dataclass(frozen=True)
class Hypothesis:
    """One of several answers."""

    text: str
    finish_reason: str
    score: float  # by which answers are ranked
    cumulative_logprob: float
    tokens: tuple[int, ...] = ()  # only when requested, as all below
    token_logprobs: tuple[TokenLogprob, ...] = ()
    alignment: Alignment | None = None
    plain_text: str = ""  # without marks; only with markup
    confidence: Confidence | None = None  # of translations


@dataclass(frozen=True)
class RequestWarning:
    """What a client should know about a request that was answered."""

    reason: str  # for programs: SPECIAL_TOKEN_IN_TEXT
    message: str


@dataclass(frozen=True, kw_only=True)
class Answer(Cost):
    """A whole answer."""

    text: str
    finish_reason: str  # end_of_sequence, length or stop_string
    first_token_s: float
    tokens: tuple[int, ...] = ()  # only when requested
    hypotheses: tuple[Hypothesis, ...] = ()  # all answers, best first, with the requested log-probabilities
    seed: int | None = None  # of a sampled answer
    confidence: Confidence | None = None  # of a translation, only when requested
    detected_language: DetectedLanguage | None = None  # of a translation, with source_language auto
    route: TranslationRoute | None = None  # of a translation whose models were chosen by its languages
    warnings: tuple[RequestWarning, ...] = ()  # of generation: special tokens that a text spells


@dataclass(frozen=True)
class MarkupResult:
    """The treatment of a text's marks."""

    placement: str  # alignment or proportional; empty: the text has no marks
    plain_text: str  # the answer without its marks
    source_text: str  # what was translated


@dataclass(frozen=True)
class GlossaryResult:
    """The treatment of a text's terms."""

    terms: int  # of the glossary that the text has
    met: int
    unmet: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Translation(Answer):
    """A whole translation."""

    markup: MarkupResult | None = None  # only with markup
    glossary: GlossaryResult | None = None  # only with a glossary


@dataclass(frozen=True)
class Piece:
    """A piece of a streamed answer; the last one has the whole answer."""

    text: str
    tokens: tuple[int, ...] = ()
    answer: Answer | None = None


@dataclass(frozen=True, kw_only=True)
class Score(Cost):
    """The score of a given target."""

    score: float  # by which beam search would rank it
    cumulative_logprob: float
    perplexity: float
    tokens: tuple[TokenLogprob, ...]
    alignment: Alignment | None


@dataclass(frozen=True)
class TokenCount:
    """The number of tokens of a text."""

    tokens: int  # special ones included, as max_prompt_tokens limits them
    exceeds_limit: bool  # requests with the text are rejected
    unknown_words: tuple[str, ...]  # of a closed vocabulary; requests with the text are rejected


@dataclass(frozen=True)
class Token:
    """A token of a text; text: with the blank before it, or a name such as <eos>."""

    token: int
    text: str
    span: Span  # of the text; empty for special tokens
    is_special: bool


@dataclass(frozen=True)
class TokenLimits:
    """The limits of a model, and the room that a text leaves."""

    max_prompt_tokens: int
    max_text_bytes: int
    max_new_tokens: int  # after this prompt, for this source, or after this target


@dataclass(frozen=True)
class Tokenized:
    """The tokens of a text."""

    tokens: tuple[Token, ...]
    limits: TokenLimits
    count: int  # special tokens included, whether or not they are in `tokens`
    exceeds_limit: bool
    unknown_words: tuple[str, ...]


@dataclass(frozen=True)
class TokenCandidate:
    """A token that a mask may stand for."""

    token: int
    text: str
    probability: float


@dataclass(frozen=True)
class TokenVector:
    """The vector of a token; text: with the blank before it, or a name such as <eos>."""

    token: int
    text: str
    span: Span  # of the request's text; empty for special tokens
    values: tuple[float, ...]


@dataclass(frozen=True)
class LabelProbability:
    """The probability of a label."""

    label: str
    probability: float


@dataclass(frozen=True)
class TaggedSpan:
    """A labelled span of a text."""

    span: Span
    label: str
    probability: float
    text: str


@dataclass(frozen=True)
class TaggedToken:
    """The most likely label of a token; text: with the blank before it, or a name such as <eos>."""

    token: int
    text: str
    span: Span  # of the request's text; empty for special tokens
    label: str  # with its prefix, such as B-
    probability: float


@dataclass(frozen=True, kw_only=True)
class Tagging(Cost):
    """The labelled spans of a text."""

    spans: tuple[TaggedSpan, ...]
    tokens: tuple[TaggedToken, ...]  # only when requested


@dataclass(frozen=True)
class TokenWeight:
    """How much a token contributed to the labels."""

    span: Span  # of the request's text
    weight: float


@dataclass(frozen=True, kw_only=True)
class Classification(Cost):
    """The labels of a text."""

    labels: tuple[LabelProbability, ...]  # most likely first
    token_weights: tuple[TokenWeight, ...]  # only when requested


@dataclass(frozen=True)
class AttentionToken:
    """A query or key token; text: with the blank before it, or a name such as <eos>."""

    token: int
    text: str
    span: Span  # of the request's text, or of the answer's


@dataclass(frozen=True)
class AttentionMatrix:
    """The weights of one head: a row for each query token, a column for each key token."""

    kind: str  # encoder, decoder or cross
    layer: int  # from 1; 0: the mean of the requested ones
    head: int  # likewise
    rows: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Attended(Cost):
    """The attention weights of a text and its answer."""

    source: tuple[AttentionToken, ...]  # input of the encoder
    target: tuple[AttentionToken, ...]  # input of the decoder, its start token first
    predicted: tuple[AttentionToken, ...]  # the token predicted after each of `target`; the last one may have none
    target_text: str
    finish_reason: str  # of a generated answer; "" of one that was given
    matrices: tuple[AttentionMatrix, ...]

    def rows(self, kind: str) -> tuple[AttentionToken, ...]:
        """The query tokens; in cross-attention the predicted ones, as in an alignment."""
        return {"encoder": self.source, "decoder": self.target, "cross": self.predicted}[kind]

    def columns(self, kind: str) -> tuple[AttentionToken, ...]:
        """The key tokens."""
        return self.target if kind == "decoder" else self.source


@dataclass
class Stream:
    """Turns the messages of a stream into pieces."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def piece(self, message: Any) -> Piece:
        """The piece of one message; `answer` is set in the last."""
        self.texts.append(message.text)
        self.tokens += message.tokens
        answer = None
        if message.HasField("final"):
            answer = read(Answer, message.final, text="".join(self.texts), tokens=tuple(self.tokens))
        return Piece(message.text, tuple(message.tokens), answer)


def mask_candidates_of(message: pb.FillMaskResponse) -> list[tuple[TokenCandidate, ...]]:
    """For each mask the most likely tokens."""
    return [tuple(read(TokenCandidate, one) for one in mask.candidates) for mask in message.masks]


def attended_of(message: pb.AttendResponse) -> Attended:
    """The attention weights of a text and its answer, as rows."""
    matrices = []
    for matrix in message.matrices:
        weights = tuple(matrix.weights)
        columns = len(message.target if matrix.kind == pb.ATTENTION_KIND_DECODER else message.source)
        rows = tuple(weights[start : start + columns] for start in range(0, len(weights), columns))
        matrices.append(read(AttentionMatrix, matrix, rows=rows))
    return read(Attended, message, matrices=tuple(matrices))


def attention_kind(number: int) -> str:
    """ATTENTION_KIND_CROSS as "cross"."""
    return enum_names(pb.AttentionKind.DESCRIPTOR)[number]


@functools.cache
def enum_names(choices: Any) -> dict[int, str]:
    """The short names of an enumeration: "never" of EARLY_STOPPING_NEVER, and "" of the unspecified value."""
    prefix = choices.values_by_number[0].name.removesuffix("UNSPECIFIED")
    names = {number: value.name.removeprefix(prefix).lower() for number, value in choices.values_by_number.items()}
    return names | {0: ""}


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def read(kind: type[T], message: Any, **given: Any) -> T:
    """A dataclass from the fields of a message with the same names; `given` are values that the message lacks."""
    fields = {name: _field(message, name, hint) for name, hint in _hints(cast(Any, kind)).items() if name not in given}
    return kind(**given, **fields)


def _field(message: Any, name: str, hint: Any) -> Any:
    if name in ("prompt_tokens", "generated_tokens"):
        return getattr(message.usage, name)
    if name.endswith("_s"):
        return getattr(message.timings, name.removesuffix("_s")).ToTimedelta().total_seconds()
    known, is_optional = message.DESCRIPTOR.fields_by_name, type(None) in get_args(hint)
    if is_optional and not (name in known and message.HasField(name)):  # an answer of generation has no confidence
        return None
    if name == "warnings" and name not in known:  # a translation has none
        return ()
    value, choices = getattr(message, name), known[name].enum_type
    if choices:
        return enum_names(choices)[value]
    return _value(value, get_args(hint)[0] if is_optional else hint)


def _value(value: Any, hint: Any) -> Any:
    if is_dataclass(hint):
        return read(cast(type[Any], hint), value)
    if get_origin(hint) is not tuple:
        return value
    item, after = get_args(hint)
    if after is not Ellipsis:  # a span
        return value.start, value.end
    return tuple(_value(one, item) for one in getattr(value, "weights", value))  # a row of an alignment has weights
