"""A rewritten translation by two models (`PivotRewriting`): marks, terms, the alignment and the confidence are those of
the text and the last answer, whose tokens are linked by way of the text between (`composed`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glossa.v1 import glossa_pb2 as pb
from service.edge.models.alignment import align, composed
from service.edge.models.answer_confidence import AnswerConfidence, answer_confidence
from service.edge.models.pivot_confidence import composed_confidence
from service.edge.models.served_model import ServedModel
from service.edge.requests.glossaries import Glossaries
from service.edge.requests.language_routes import Route
from service.edge.requests.prompt_encoder import PromptEncoder
from service.edge.requests.request_limits import TextLimits
from service.edge.rpcs.proto_conversion import decoding_options, spans_of
from service.edge.rpcs.rewriting import Rewriting, token_links
from service.errors import Unsupported
from service.options import DecodingOptions
from service.request import HypothesisResult, Request
from service.text.mark_placement import Links


@dataclasses.dataclass(frozen=True)
class PivotConfidence(AnswerConfidence):
    """The confidence of the second model's answers, lowered by that of the text between. first: of the first model's.
    between: the text between, its confidence and adequacy; None: they are not known yet."""

    first: AnswerConfidence
    between: tuple[str, pb.Confidence, float] | None = None

    def of(
        self, result: HypothesisResult, rank: int = 0, *, source: Sequence[int], text: str, options: DecodingOptions
    ) -> pb.Confidence:
        own = super().of(result, rank, source=source, text=text, options=options)
        assert self.between is not None
        read, sure, adequacy = self.between
        links = token_links(self.model, result, read)
        assert links is not None
        spans = links.target_spans, links.source_spans
        return composed_confidence(sure, own, links.weights_TS, *spans, adequacy=adequacy, threshold=self.threshold)


def pivot_confidence(message: Any, way: Route) -> PivotConfidence | None:
    """What a message asks of the confidence; None: nothing. Raises InvalidRequest; Unsupported for a model without a
    calibration or an alignment."""
    assert way.first is not None
    second, first = answer_confidence(message, way.model), answer_confidence(message, way.first)
    if first is None or second is None:
        return None
    for model in (way.first, way.model):
        if model.manifest.alignment is None:
            problem = f"model {model.name!r} has no cross-attention output, which include_confidence needs"
            raise Unsupported(f"{problem} in a translation by way of another language; export it with --attention")
    return PivotConfidence(second.model, second.calibration, second.threshold, first)


class PivotRewriting(Rewriting):
    """One call. After `begin` it is that of the second model, which reads the text between."""

    def __init__(
        self,
        message: pb.TranslateRequest,
        way: Route,
        limits: TextLimits,
        glossaries: Glossaries,
        *,
        is_fragment: bool = False,
    ) -> None:
        """limits: of the first model's texts. Raises as `Rewriting` does."""
        super().__init__(message, way.model, limits, glossaries, is_fragment=is_fragment)
        self._confidence = self._composed = pivot_confidence(message, way)
        assert way.first is not None
        self._first: ServedModel = way.first
        PromptEncoder(self._first).check_length(self.text)
        self._result: HypothesisResult | None = None
        self._first_links: Links | None = None

    def first_options(self, search: pb.DecodingOptions) -> DecodingOptions:
        """The options of the first answer: its search, and the alignment where it is needed and the bundle has one; one
        that the client asks for is needed of both."""
        options = pb.DecodingOptions()
        options.CopyFrom(search)
        if self._asked.alignment != "none" or (self._needs_links and self._first.manifest.alignment is not None):
            options.alignment = pb.ALIGNMENT_KIND_HARD
        options.token_logprobs = self._composed is not None
        return decoding_options(options)

    @property
    def _needs_links(self) -> bool:
        return bool(self._marked.nodes or self._terminology.terms or self._composed)

    @property
    def options(self) -> DecodingOptions:
        asked = super().options
        if self._composed is None or asked.alignment != "none":
            return asked
        return dataclasses.replace(asked, alignment="hard")

    def request(self, decoding: Callable[..., Request], options: DecodingOptions) -> Request:
        if self._composed is None:
            return super().request(decoding, options)
        return decoding(self.read, options, terms=self._pairs, has_confidence=True)

    def begin(self, text: str, result: HypothesisResult | None, request: Request) -> None:
        """The first answer, and the request that has it. result: with its attention, if that was asked for."""
        self.read, self._result = text, result
        if self._composed is not None:
            assert result is not None
            first, source = self._composed.first, request.source
            sure = first.of(result, source=source, text=self.text, options=request.options)
            adequacy = first.adequacy(result, source=source, text=self.text)
            self._confidence = dataclasses.replace(self._composed, between=(text, sure, adequacy))
        self._first_links = None if result is None else token_links(self._first, result, self.text)

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return []  # their sources are of the first model's language

    def _links(self, result: HypothesisResult) -> Links | None:
        first, second = self._first_links, token_links(self._model, result, self.read)
        if first is None or second is None:
            return None
        weights_US = composed(first.weights_TS, first.target_spans, second.weights_TS, second.source_spans)
        return Links(first.source_spans, second.target_spans, weights_US)

    def _converted(self, hypothesis: pb.Hypothesis, result: HypothesisResult) -> None:
        if not hypothesis.HasField("alignment"):
            return
        own, first = self._first.manifest.alignment, self._result
        assert own is not None, self._first.name
        assert first is not None, self._first.name
        assert first.attention is not None, self._first.name
        alignment, asked = hypothesis.alignment, self._asked
        layer = asked.alignment_layer or self._default_layer
        assert result.attention is not None
        weights_US = composed(
            align(first.attention, own.default_layer),
            self._first.target_spans(first.tokens, first.text),
            align(result.attention, layer, asked.alignment_heads),
            self._model.source_spans(self.read),
        )
        del alignment.source_spans[:], alignment.rows[:], alignment.positions[:]
        alignment.source_spans.extend(spans_of(self._first.source_spans(self.text)))
        if asked.alignment != "hard":
            alignment.rows.extend(pb.AlignmentRow(weights=weights_S) for weights_S in weights_US)
        if asked.alignment != "soft":
            alignment.positions.extend(np.argmax(weights_US, axis=1).tolist())

    @property
    def _default_layer(self) -> int:
        own = self._model.manifest.alignment
        assert own is not None, self._model.name
        return own.default_layer
