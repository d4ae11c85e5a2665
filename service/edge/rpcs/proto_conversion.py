"""Messages of glossa.v1 ↔ the service's own values. Pure functions; models are described in `model_description`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from export.bundle.manifest import AttentionKind
from glossa.v1 import glossa_pb2 as pb
from service.attention_request import AttentionChoice
from service.edge.models.alignment import Span, align
from service.edge.models.answer_confidence import AnswerConfidence
from service.edge.models.served_model import ServedModel
from service.edge.rpcs.tagging import label_probabilities, spans_of_words, token_labels, words_of
from service.encoder_request import EncoderOutput, Pooling, scaled_to_1
from service.errors import InvalidRequest
from service.options import DEFAULTS, DecodingOptions
from service.request import AttentionResult, Finished, HypothesisResult, Request

DEFAULT_CANDIDATES = 5  # tokens returned per mask
SMALL_BYTES = 64  # of options that are converted once: clients send the same ones again and again


def decoding_options(message: pb.DecodingOptions) -> DecodingOptions:
    """The options of a request. Unset fields and an enum's zero are the default; nothing is checked."""
    return _converted(message) if message.ByteSize() > SMALL_BYTES else _small_options(message.SerializeToString())


@functools.lru_cache(maxsize=256)
def _small_options(data: bytes) -> DecodingOptions:
    return _converted(pb.DecodingOptions.FromString(data))


def _converted(message: pb.DecodingOptions) -> DecodingOptions:
    given: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.enum_type:
            given[field.name] = _enum_name(field.enum_type, value)
        elif field.name == "logit_bias":
            given[field.name] = dict(value)
        else:
            given[field.name] = value if isinstance(value, int | float | str) else tuple(value)
    return DecodingOptions(**given) if given else DEFAULTS


def pooling_from(request: pb.EmbedRequest | pb.SimilarityRequest) -> Pooling | None:
    """The requested pooling; None: the model's. Raises InvalidRequest for a number that the enum lacks."""
    if request.pooling == pb.POOLING_UNSPECIFIED:
        return None
    if request.pooling not in pb.Pooling.values():
        raise InvalidRequest("pooling", f"must be one of {', '.join(pb.Pooling.keys())}, got {request.pooling}")
    return cast(Pooling, _enum_name(pb.Pooling.DESCRIPTOR, request.pooling))


def prompt_name_of(request: Any, field: str = "prompt_name") -> str | None:
    """The name of the requested prompt; None: not set."""
    return getattr(request, field) if request.HasField(field) else None


def attention_choice(message: pb.AttendRequest) -> AttentionChoice:
    """The selection of a request, unchecked."""
    return AttentionChoice(
        kinds=tuple(cast(AttentionKind, _enum_name(pb.AttentionKind.DESCRIPTOR, kind)) for kind in message.kinds),
        layers=tuple(message.layers),
        heads=tuple(message.heads),
        mean_layers=message.mean_layers,
        mean_heads=message.mean_heads,
    )


def _enum_name(kind: Any, number: int) -> str:
    """EARLY_STOPPING_NEVER as "never"; a number that the enum lacks as itself."""
    if number not in kind.values_by_number:
        return str(number)
    return str(kind.values_by_number[number].name).removeprefix(_prefix(kind)).lower()


def _prefix(kind: Any) -> str:
    """EARLY_STOPPING_ of an enum whose first value is EARLY_STOPPING_UNSPECIFIED."""
    return str(kind.values[0].name).removesuffix("UNSPECIFIED")


@functools.cache
def enum_number(kind: Any, name: str) -> Any:
    """EARLY_STOPPING_NEVER for "never". kind: the enum, such as pb.EarlyStopping."""
    return kind.Value(_prefix(kind.DESCRIPTOR) + name.upper())


def completion(finished: Finished) -> dict[str, Any]:
    """The fields of every message that ends an answer."""
    return {"finish_reason": enum_number(pb.FinishReason, finished.reason.value), **cost_fields(finished)}


def details(
    finished: Finished,
    request: Request,
    model: ServedModel,
    *,
    text: str,
    has_tokens: bool,
    confidence: AnswerConfidence | None = None,
    has_logprobs: bool = True,
) -> dict[str, Any]:
    """The requested fields beside the best answer's text: all hypotheses, the confidence, and the seed.

    text: the client's text. has_tokens: hypotheses include their token ids. confidence: None if it was not requested.
    has_logprobs: False if the engine computed log-probabilities only for the confidence.
    """
    options = request.options if has_logprobs else dataclasses.replace(request.options, token_logprobs=False)
    sure = None
    if confidence is not None:
        sure = partial(confidence.of, source=request.source, text=text, options=options)
    fields: dict[str, Any] = {}
    if options.is_sampling:
        fields["seed"] = request.seed
    if options.returns_hypotheses:
        converter = HypothesisConverter(model, options, text, sure)
        fields["hypotheses"] = [
            converter.hypothesis(result, rank, has_tokens=has_tokens) for rank, result in enumerate(finished.hypotheses)
        ]
    if sure is not None:
        fields["confidence"] = sure(finished.hypotheses[0])
    return fields


def score_response(finished: Finished, request: Request, model: ServedModel, *, text: str) -> pb.ScoreResponse:
    """The score of a given target. text: the client's text."""
    (result,) = finished.hypotheses
    converter = HypothesisConverter(model, request.options, text)
    return pb.ScoreResponse(
        tokens=converter.token_logprobs(result),
        cumulative_logprob=result.cumulative_logprob,
        score=result.score,
        perplexity=perplexity(result.token_logprobs),
        alignment=converter.alignment(result),
        **cost_fields(finished),
    )


def embed_response(finished: Finished, *, normalize: bool, is_truncated: bool) -> pb.EmbedResponse:
    """The embedding of a text, of length 1 if `normalize`."""
    values = encoder_output(finished).vector
    assert values is not None
    vector = _scaled(values, normalize=normalize).tolist()
    return pb.EmbedResponse(values=vector, truncated=is_truncated, **cost_fields(finished))


def _scaled(values_M: np.ndarray, *, normalize: bool) -> np.ndarray:
    """A vector, of length 1 if `normalize`."""
    return scaled_to_1(values_M) if normalize else values_M


def embed_tokens_response(
    finished: Finished, request: Request, model: ServedModel, *, text: str, normalize: bool
) -> pb.EmbedTokensResponse:
    """The vectors of the selected tokens. text: the client's text."""
    states_PM, asked = encoder_output(finished).states, request.encoder_request
    assert states_PM is not None
    assert asked is not None
    spans = model.source_spans(text)
    positions = asked.state_positions
    tokens = [request.source[position] for position in positions]
    parts = zip(tokens, model.token_names(tokens), spans_of([spans[one] for one in positions]), states_PM, strict=True)
    return pb.EmbedTokensResponse(
        tokens=[
            pb.TokenVector(token=token, text=name, span=span, values=_scaled(values_M, normalize=normalize).tolist())
            for token, name, span, values_M in parts
        ],
        **cost_fields(finished),
    )


def fill_mask_response(finished: Finished, model: ServedModel) -> pb.FillMaskResponse:
    """The most likely tokens of each mask."""
    masks = [
        pb.MaskPrediction(
            candidates=[
                pb.TokenCandidate(token=token, text=model.tokenizer.decode([token]), probability=math.exp(logprob))
                for token, logprob in candidates
            ]
        )
        for candidates in encoder_output(finished).mask_predictions
    ]
    return pb.FillMaskResponse(masks=masks, **cost_fields(finished))


def classify_response(finished: Finished, model: ServedModel, *, text: str) -> pb.ClassifyResponse:
    """The labels of a text, most likely first. text: the client's text."""
    output, encoding = encoder_output(finished), model.encoding
    assert encoding is not None
    assert output.label_logits is not None
    probabilities = label_probabilities(output.label_logits, is_multi_label=encoding.multi_label)
    ranked = sorted(zip(encoding.labels, probabilities.tolist(), strict=True), key=lambda pair: -pair[1])
    weights = [] if output.token_weights is None else output.token_weights.tolist()
    spans = model.source_spans(text) if weights else []
    return pb.ClassifyResponse(
        labels=[pb.LabelProbability(label=label, probability=probability) for label, probability in ranked],
        token_weights=[
            pb.TokenWeight(span=span, weight=weight) for span, weight in zip(spans_of(spans), weights, strict=True)
        ],
        **cost_fields(finished),
    )


def tag_response(
    finished: Finished, request: Request, model: ServedModel, *, text: str, has_tokens: bool
) -> pb.TagResponse:
    """The labelled spans of a text. text: the client's text. has_tokens: with the label of every token."""
    logits_SL, encoding = encoder_output(finished).token_label_logits, model.encoding
    assert encoding is not None
    assert logits_SL is not None
    labels, spans = token_labels(logits_SL, encoding.labels), model.source_spans(text)
    template = model.manifest.template
    inside = slice(len(template.source_prefix), len(spans) - len(template.source_suffix))
    words = words_of(text, spans[inside], model.tokenizer.word_starts(text), labels[inside])
    tokens = request.source if has_tokens else ()
    return pb.TagResponse(
        spans=[
            pb.TaggedSpan(span=pb.Span(start=start, end=end), label=label, probability=mean, text=text[start:end])
            for (start, end), label, mean in spans_of_words(words)
        ],
        tokens=[
            pb.TaggedToken(token=token, text=name, span=span, label=label, probability=probability)
            for token, name, span, (label, probability) in zip(
                tokens, model.token_names(tokens), spans_of(spans), labels, strict=False
            )
        ],
        **cost_fields(finished),
    )


def attend_response(
    finished: Finished, request: Request, model: ServedModel, choice: AttentionChoice, message: pb.AttendRequest
) -> pb.AttendResponse:
    """The selected attention of one pass. message: the client's."""
    result = finished.attention
    assert result is not None
    prompt: list[Span] = [(0, 0)] * len(model.manifest.template.target_prefix)
    if not request.source:
        prompt += model.tokenizer.offsets(message.text)
    source = model.source_spans(message.text) if request.source else ()
    fields: dict[str, Any] = {"source": _attention_tokens(model, request.source, source)}
    if choice.kinds != ("encoder",):
        fields |= _attended_target(finished, result, model, message, prompt, 0 if request.source else len(message.text))
    fields["matrices"] = [
        pb.AttentionMatrix(kind=enum_number(pb.AttentionKind, kind), layer=layer, head=head, weights=weights_QK.ravel())
        for kind, layer, head, weights_QK in choice.matrices(result.weights)
    ]
    return pb.AttendResponse(**fields, **cost_fields(finished))


def _attended_target(
    finished: Finished,
    result: AttentionResult,
    model: ServedModel,
    message: pb.AttendRequest,
    prompt: Sequence[Span],
    shift: int,
) -> dict[str, Any]:
    """The fields of the decoder's side. prompt: the spans of its tokens. shift: of the target's spans, which in a
    generation model follow the client's text."""
    fields: dict[str, Any] = {}
    decoder_tokens = result.decoder_tokens
    given = decoder_tokens[len(prompt) :]
    tokens: Sequence[int]
    if finished.hypotheses:
        (hypothesis,) = finished.hypotheses
        text, tokens = hypothesis.text, hypothesis.tokens
        fields["finish_reason"] = enum_number(pb.FinishReason, hypothesis.reason.value)
    elif message.text_only:
        text, tokens = "", given
    else:
        tokens = tuple(message.target_tokens) or (*given, model.manifest.tokens.eos)
        text = message.target or model.tokenizer.target.decode(tokens)
    spans = [*prompt, *((start + shift, end + shift) for start, end in model.target_spans(tokens, text))]
    all_tokens = (*decoder_tokens[: len(prompt)], *tokens)
    return {
        **fields,
        "target_text": text,
        "target": _attention_tokens(model, decoder_tokens, spans[: len(decoder_tokens)], is_target=True),
        "predicted": _attention_tokens(model, all_tokens[1:], spans[1:], is_target=True),
    }


def _attention_tokens(
    model: ServedModel, tokens: Sequence[int], spans: Sequence[Span], *, is_target: bool = False
) -> list[pb.AttentionToken]:
    """Tokens with their text."""
    texts = model.token_names(tokens, is_target=is_target)
    return [
        pb.AttentionToken(token=token, text=text, span=span)
        for token, text, span in zip(tokens, texts, spans_of(spans), strict=True)
    ]


def perplexity(token_logprobs: Sequence[float]) -> float:
    """exp of the mean negative log-probability."""
    mean = -math.fsum(token_logprobs) / len(token_logprobs)
    return math.exp(mean) if mean < 709 else math.inf  # above it a float64 overflows


class HypothesisConverter:
    """Converts the hypotheses of one request. text: the client's text. confidence: that of an answer and its rank; None
    if it was not requested."""

    def __init__(
        self,
        model: ServedModel,
        options: DecodingOptions,
        text: str,
        confidence: Callable[[HypothesisResult, int], pb.Confidence] | None = None,
    ) -> None:
        self._confidence = confidence
        self._model, self._tokenizer, self._options, self._text = model, model.tokenizer.target, options, text
        self._texts: dict[int, str] = {}  # of alternative tokens, by id

    def hypothesis(self, result: HypothesisResult, rank: int = 0, *, has_tokens: bool) -> pb.Hypothesis:
        """One of the answers; rank: 0 for the best."""
        options = self._options
        return pb.Hypothesis(
            text=self._text + result.text if options.echo else result.text,
            tokens=result.tokens if has_tokens else (),
            finish_reason=enum_number(pb.FinishReason, result.reason.value),
            score=result.score,
            cumulative_logprob=result.cumulative_logprob,
            token_logprobs=self.token_logprobs(result) if options.token_logprobs or options.top_logprobs else (),
            alignment=self.alignment(result),
            confidence=self._confidence(result, rank) if self._confidence else None,
        )

    def token_logprobs(self, result: HypothesisResult) -> list[pb.TokenLogprob]:
        texts = self._tokenizer.token_texts(result.tokens)
        tops = result.alternatives or ((),) * len(texts)
        return [
            pb.TokenLogprob(token=token, text=text, logprob=logprob, top_logprobs=map(self._alternative, top))
            for token, text, logprob, top in zip(result.tokens, texts, result.token_logprobs, tops, strict=True)
        ]

    def alignment(self, result: HypothesisResult) -> pb.Alignment | None:
        options = self._options
        if options.alignment == "none":
            return None
        attention = self._model.manifest.alignment
        assert attention is not None
        assert result.attention is not None
        weights_TS = align(
            result.attention, options.alignment_layer or attention.default_layer, options.alignment_heads
        )
        is_soft, is_hard = options.alignment != "hard", options.alignment != "soft"
        return pb.Alignment(
            source_spans=self._source_spans,
            target_spans=spans_of(self._model.target_spans(result.tokens, result.text)),
            rows=[pb.AlignmentRow(weights=weights_S) for weights_S in weights_TS] if is_soft else (),
            positions=weights_TS.argmax(axis=1).tolist() if is_hard else (),  # of equal weights the first
        )

    @functools.cached_property
    def _source_spans(self) -> list[pb.Span]:
        return spans_of(self._model.source_spans(self._text))

    def _alternative(self, scored: tuple[int, float]) -> pb.TokenAlternative:
        token, logprob = scored
        if token not in self._texts:
            self._texts[token] = self._tokenizer.decode([token])
        return pb.TokenAlternative(token=token, text=self._texts[token], logprob=logprob)


def encoder_output(finished: Finished) -> EncoderOutput:
    """The outputs of a request for some of an encoder."""
    assert finished.encoder_output is not None
    return finished.encoder_output


def spans_of(spans: Sequence[Span]) -> list[pb.Span]:
    """Spans as messages."""
    return [pb.Span(start=start, end=end) for start, end in spans]


def cost_fields(finished: Finished) -> dict[str, Any]:
    """The usage and timings of every response."""
    timings, shown = finished.timings, pb.Timings()
    # In place: of timedeltas, all four took 10 µs more.
    shown.queue.FromMicroseconds(round(1e6 * timings.queue_s))
    shown.prefill.FromMicroseconds(round(1e6 * timings.prefill_s))
    shown.first_token.FromMicroseconds(round(1e6 * timings.first_token_s))
    shown.total.FromMicroseconds(round(1e6 * timings.total_s))
    usage = pb.Usage(prompt_tokens=finished.prompt_tokens, generated_tokens=finished.generated_tokens)
    return {"usage": usage, "timings": shown}
