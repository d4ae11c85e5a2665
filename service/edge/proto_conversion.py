"""What clients ask and what the server knows: from and to the messages of glossa.v1. Pure: values in, values out."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from export.bundle import AttentionKind, Quantization, SchemeMeasurement
from glossa.v1 import glossa_pb2 as pb
from model.tokenizer import Tokenizer
from service.attention_request import AttentionChoice
from service.edge.alignment import Span, alignment, source_spans, target_spans
from service.edge.catalog import ServedModel, TextLimits
from service.encoder_request import Pooling
from service.errors import InvalidRequest
from service.options import DEFAULTS, DecodingOptions
from service.request import Finished, FinishReason, HypothesisResult, Request, Timings

FINISH_REASONS = {
    FinishReason.END_OF_SEQUENCE: pb.FINISH_REASON_END_OF_SEQUENCE,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
}
KINDS: Mapping[AttentionKind, pb.AttentionKind] = {
    "encoder": pb.ATTENTION_KIND_ENCODER,
    "decoder": pb.ATTENTION_KIND_DECODER,
    "cross": pb.ATTENTION_KIND_CROSS,
}
TASKS = {
    "translation": pb.TASK_TRANSLATION,
    "generation": pb.TASK_GENERATION,
    "encoding": pb.TASK_ENCODING,
}
POOLINGS: Mapping[int, Pooling] = {
    pb.POOLING_UNSPECIFIED: "mean",
    pb.POOLING_MEAN: "mean",
    pb.POOLING_CLS: "cls",
    pb.POOLING_POOLER: "pooler",
}
FILLINGS = 5  # of a mask, unless the request says otherwise


_ENUMS = {field.name: field.enum_type for field in pb.DecodingOptions.DESCRIPTOR.fields if field.enum_type}


def decoding_options(message: pb.DecodingOptions) -> DecodingOptions:
    """The options of a request. What is left out, and an enum's zero, is the default; nothing is checked."""
    given: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.name in _ENUMS:
            given[field.name] = _name_of(field.name, value)
        elif field.name == "logit_bias":
            given[field.name] = dict(value)
        else:
            given[field.name] = value if isinstance(value, int | float | str) else tuple(value)
    return DecodingOptions(**given) if given else DEFAULTS


def _name_of(field: str, number: int) -> str:
    """EARLY_STOPPING_NEVER as "never"; the number itself if it is none of the enum's."""
    values = _ENUMS[field].values_by_number
    if number not in values:
        return str(number)
    prefix = str(values[0].name).removesuffix("UNSPECIFIED")
    return str(values[number].name).removeprefix(prefix).lower()


def completion(finished: Finished) -> dict[str, Any]:
    """The fields that every message at the end of an answer has."""
    return {"finish_reason": FINISH_REASONS[finished.reason], **_cost(finished)}


def details(finished: Finished, request: Request, model: ServedModel, *, text: str, has_tokens: bool) -> dict[str, Any]:
    """What is told beside the best answer's text, for those who asked: all answers, and the seed.

    text: what the client sent. has_tokens: answers have their token ids.
    """
    options = request.options
    fields: dict[str, Any] = {}
    if options.is_sampling:
        fields["seed"] = request.seed
    if options.returns_hypotheses:
        told = HypothesisConverter(model, options, text)
        fields["hypotheses"] = [told.hypothesis(result, has_tokens=has_tokens) for result in finished.hypotheses]
    return fields


def score(finished: Finished, request: Request, model: ServedModel, *, text: str) -> pb.ScoreResponse:
    """The answer to a request whose target was given."""
    (result,) = finished.hypotheses
    told = HypothesisConverter(model, request.options, text)
    return pb.ScoreResponse(
        tokens=told.token_logprobs(result),
        cumulative_logprob=result.cumulative_logprob,
        score=result.score,
        perplexity=perplexity(result.token_logprobs),
        alignment=told.alignment(result),
        **_cost(finished),
    )


def embedding(finished: Finished, *, normalize: bool) -> pb.EmbedResponse:
    """The answer to a text that was to be embedded."""
    assert finished.encoder_output is not None
    values = finished.encoder_output.vector
    assert values is not None
    if normalize:
        values = values / max(float(np.linalg.norm(values)), 1e-12)
    return pb.EmbedResponse(values=values.tolist(), **_cost(finished))


def pooling_from(request: pb.EmbedRequest) -> Pooling:
    """Raises InvalidRequest for a number that is none of the enum's."""
    if request.pooling not in POOLINGS:
        raise InvalidRequest("pooling", f"must be one of {', '.join(pb.Pooling.keys())}, got {request.pooling}")
    return POOLINGS[request.pooling]


def filling(finished: Finished, model: ServedModel) -> pb.FillMaskResponse:
    """The answer to a text with masks."""
    assert finished.encoder_output is not None
    masks = [
        pb.MaskPrediction(
            candidates=[
                pb.TokenCandidate(token=token, text=model.tokenizer.decode([token]), probability=math.exp(logprob))
                for token, logprob in fillings
            ]
        )
        for fillings in finished.encoder_output.mask_predictions
    ]
    return pb.FillMaskResponse(masks=masks, **_cost(finished))


def classification(finished: Finished, model: ServedModel, *, text: str) -> pb.ClassifyResponse:
    """The answer to a text whose labels were asked for. text: what the client sent."""
    encoded, encoding = finished.encoder_output, model.encoding
    assert encoded is not None
    assert encoding is not None
    assert encoded.label_logits is not None
    probabilities = probabilities_of(encoded.label_logits, each_alone=encoding.multi_label)
    ranked = sorted(zip(encoding.labels, probabilities.tolist(), strict=True), key=lambda pair: -pair[1])
    return pb.ClassifyResponse(
        labels=[pb.LabelProbability(label=label, probability=probability) for label, probability in ranked],
        token_weights=() if encoded.token_weights is None else _token_weights(encoded.token_weights, model, text),
        **_cost(finished),
    )


def probabilities_of(logits_L: np.ndarray, *, each_alone: bool) -> np.ndarray:
    """Sigmoid of each logit, or the softmax of all; float64 (L,)."""
    logits_L = logits_L.astype(np.float64)
    log_total = np.logaddexp(0.0, logits_L) if each_alone else np.logaddexp.reduce(logits_L)
    probabilities_L: np.ndarray = np.exp(logits_L - log_total)
    return probabilities_L


def _token_weights(weights_S: np.ndarray, model: ServedModel, text: str) -> list[pb.TokenWeight]:
    spans = model.spans(text)
    return [
        pb.TokenWeight(span=pb.Span(start=start, end=end), weight=weight)
        for (start, end), weight in zip(spans, weights_S.tolist(), strict=True)
    ]


def attention_choice(message: pb.AttendRequest) -> AttentionChoice:
    """Which attention a request asks for. Raises InvalidRequest for a kind that is none."""
    names = {number: name for name, number in KINDS.items()}
    for place, kind in enumerate(message.kinds):
        if kind not in names:
            known = ", ".join(pb.AttentionKind.Name(number) for number in names)
            raise InvalidRequest(f"kinds[{place}]", f"must be one of {known}, got {kind}")
    return AttentionChoice(
        kinds=tuple(names[kind] for kind in message.kinds),
        layers=tuple(message.layers),
        heads=tuple(message.heads),
        mean_layers=message.mean_layers,
        mean_heads=message.mean_heads,
    )


def attended(
    finished: Finished, request: Request, model: ServedModel, choice: AttentionChoice, asked: pb.AttendRequest
) -> pb.AttendResponse:
    """The answer to a text whose attention was asked for."""
    seen, tokenizer = finished.attention, model.tokenizer
    assert seen is not None
    text, pieces = asked.text, tokenizer.pieces
    framing = model.manifest.template
    names = {token: f"<{name}>" for name, token in dataclasses.asdict(model.manifest.tokens).items()}
    names |= {token: f"<{code}>" for code, token in framing.languages.items()}

    def told(tokens: Sequence[int], spans: Sequence[Span]) -> list[pb.AttentionToken]:
        return [
            pb.AttentionToken(
                token=token,
                text=pieces[token].decode("utf-8", "replace") or names.get(token, f"<{token}>"),
                span=pb.Span(start=start, end=end),
            )
            for token, (start, end) in zip(tokens, spans, strict=True)
        ]

    offsets, source = tokenizer.offsets(text), list[Span]()
    before: list[Span] = [(0, 0)] * len(framing.target_prefix)
    if request.source:
        source += source_spans(offsets, text, before=len(framing.source_prefix), after=len(framing.source_suffix))
    else:
        before += offsets
    fields: dict[str, Any] = {"source": told(request.source, source)}
    if choice.kinds != ("encoder",):
        given = seen.decoder_tokens[len(before) :]
        if finished.hypotheses:
            (result,) = finished.hypotheses
            answer, tokens = result.text, result.tokens
            fields["finish_reason"] = FINISH_REASONS[result.reason]
        elif asked.text_only:
            answer, tokens = "", given
        else:
            tokens = tuple(asked.target_tokens) or (*given, model.manifest.tokens.eos)
            answer = asked.target or tokenizer.decode(tokens)
        shift = 0 if request.source else len(text)
        behind = target_spans(tokens, pieces, answer, strips_leading_space=tokenizer.strips_leading_space)
        spans = [*before, *((start + shift, end + shift) for start, end in behind)]
        all_tokens = (*seen.decoder_tokens[: len(before)], *tokens)
        fields["target_text"] = answer
        fields["target"] = told(seen.decoder_tokens, spans[: len(seen.decoder_tokens)])
        fields["predicted"] = told(all_tokens[1:], spans[1:])
    fields["matrices"] = [
        pb.AttentionMatrix(kind=KINDS[kind], layer=layer, head=head, weights=weights_QK.ravel())
        for kind, layer, head, weights_QK in choice.matrices(seen.weights)
    ]
    return pb.AttendResponse(**fields, **_cost(finished))


def perplexity(token_logprobs: Sequence[float]) -> float:
    """exp of the mean negative log-probability."""
    mean = -math.fsum(token_logprobs) / len(token_logprobs)
    return math.exp(mean) if mean < 709 else math.inf  # above it a float64 overflows


class HypothesisConverter:
    """Hypotheses of one request as messages. text: what the client sent."""

    def __init__(self, model: ServedModel, options: DecodingOptions, text: str) -> None:
        self._model, self._tokenizer, self._options, self._text = model, model.tokenizer, options, text
        self._texts: dict[int, str] = {}  # of tokens that could have been chosen

    def hypothesis(self, result: HypothesisResult, *, has_tokens: bool) -> pb.Hypothesis:
        options = self._options
        return pb.Hypothesis(
            text=self._text + result.text if options.echo else result.text,
            tokens=result.tokens if has_tokens else (),
            finish_reason=FINISH_REASONS[result.reason],
            score=result.score,
            cumulative_logprob=result.cumulative_logprob,
            token_logprobs=self.token_logprobs(result) if options.token_logprobs or options.top_logprobs else (),
            alignment=self.alignment(result),
        )

    def token_logprobs(self, result: HypothesisResult) -> list[pb.TokenLogprob]:
        texts = token_texts(self._tokenizer, result.tokens)
        tops = result.alternatives or ((),) * len(texts)
        return [
            pb.TokenLogprob(token=token, text=text, logprob=logprob, top_logprobs=map(self._alternative, top))
            for token, text, logprob, top in zip(result.tokens, texts, result.token_logprobs, tops, strict=True)
        ]

    def alignment(self, result: HypothesisResult) -> pb.Alignment | None:
        options, tokenizer = self._options, self._tokenizer
        if options.alignment == "none":
            return None
        attention = self._model.manifest.alignment
        assert attention is not None
        assert result.attention is not None
        aligned = alignment(
            result.attention,
            options.alignment,
            layer=options.alignment_layer or attention.default_layer,
            heads=options.alignment_heads,
            source_spans=self._source_spans,
            target_spans=target_spans(
                result.tokens, tokenizer.pieces, result.text, strips_leading_space=tokenizer.strips_leading_space
            ),
        )
        return pb.Alignment(
            source_spans=[pb.Span(start=start, end=end) for start, end in aligned.source_spans],
            target_spans=[pb.Span(start=start, end=end) for start, end in aligned.target_spans],
            rows=() if aligned.soft is None else [pb.AlignmentRow(weights=weights_S) for weights_S in aligned.soft],
            positions=aligned.hard,
        )

    @functools.cached_property
    def _source_spans(self) -> tuple[Span, ...]:
        framing, offsets = self._model.manifest.template, self._tokenizer.offsets(self._text)
        return source_spans(offsets, self._text, before=len(framing.source_prefix), after=len(framing.source_suffix))

    def _alternative(self, scored: tuple[int, float]) -> pb.TokenAlternative:
        token, logprob = scored
        if token not in self._texts:
            self._texts[token] = self._tokenizer.decode([token])
        return pb.TokenAlternative(token=token, text=self._texts[token], logprob=logprob)


def token_texts(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """The text that each token completes; together they are the text of all."""
    decoder = tokenizer.incremental()
    texts = [decoder.push(token) for token in tokens]
    if texts:
        texts[-1] += decoder.flush()
    return texts


def describe(model: ServedModel, limits: TextLimits) -> pb.Model:
    """A model and what a request may ask of it."""
    manifest, provider = model.manifest, model.provider
    lineage = manifest.lineage
    training = lineage.get("metrics") or {}
    return pb.Model(
        name=model.name,
        task=TASKS[manifest.task],
        architecture=manifest.architecture,
        limits=pb.Limits(
            max_prompt_tokens=model.max_prompt_tokens,
            max_tokens=model.max_tokens,
            max_text_bytes=limits.max_text_bytes,
            max_stop_strings=limits.max_stop_strings,
            max_stop_bytes=limits.max_stop_bytes,
            max_hypotheses=model.max_hypotheses,
        ),
        vocab_size=manifest.limits.vocab_size,
        precision=model.precision,
        execution_provider=pb.ExecutionProvider(
            provider=provider.name, requested=provider.requested, fallback=provider.fallback, reason=provider.reason
        ),
        parity=_parity(manifest.parity),
        lineage=pb.Lineage(
            steps=training.get("steps") or 0,
            data_sha256=lineage.get("data_sha256") or "",
            git_commit=lineage.get("git_commit") or "",
        ),
        bundle_sha256=model.bundle_sha256,
        format_version=manifest.format_version,
        has_alignment=manifest.alignment is not None,
        alignment_layers=manifest.alignment.layers if manifest.alignment else 0,
        alignment_heads=manifest.alignment.heads if manifest.alignment else 0,
        has_shortlist=model.shortlist is not None,
        labels=model.encoding.labels if model.encoding else (),
        embedding_size=model.encoding.width if model.encoding else 0,
        mask_token=model.mask,
        multi_label=model.encoding.multi_label if model.encoding else False,
        has_pooler=model.encoding.has_pooler if model.encoding else False,
        quantization=None if model.quantization is None else _quantization(model.quantization, model.figures),
        languages=sorted(manifest.template.languages),
        draft_tokens=model.draft_tokens,
        attention=[
            pb.AttentionLayers(kind=KINDS[seen.kind], layers=seen.layers, heads=seen.heads)
            for seen in manifest.attention_maps
        ],
    )


def _cost(finished: Finished) -> dict[str, Any]:
    usage = pb.Usage(prompt_tokens=finished.prompt_tokens, generated_tokens=finished.generated_tokens)
    return {"usage": usage, "timings": _timings(finished.timings)}


def _timings(timings: Timings) -> pb.Timings:
    return pb.Timings(
        queue=timedelta(seconds=timings.queue_s),
        prefill=timedelta(seconds=timings.prefill_s),
        first_token=timedelta(seconds=timings.first_token_s),
        total=timedelta(seconds=timings.total_s),
    )


def _quantization(quantization: Quantization, figures: SchemeMeasurement | None) -> pb.Quantization:
    measured: dict[str, Any] = {}
    if figures is not None:
        measured = {name: getattr(figures, name) for name in ("bleu_loss", "exact_match", "nats_loss")}
        measured["evaluation_samples"] = figures.evaluation_samples
    return pb.Quantization(
        scheme=quantization.scheme,
        weight_bits=quantization.weight_bits,
        block_size=quantization.block_size,
        activations=quantization.activations,
        kv_cache=quantization.kv_cache,
        batch_invariant=quantization.batch_invariant,
        **measured,
    )


def _parity(report: dict[str, Any]) -> pb.Parity:
    names = pb.ParityCheck.DESCRIPTOR.fields_by_name
    checks = [{name: check[name] for name in names if name in check} for check in report.get("checks", ())]
    return pb.Parity(passed=report.get("passed") is True, checks=[pb.ParityCheck(**check) for check in checks])
