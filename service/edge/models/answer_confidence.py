"""The confidence of answers as messages: `export.bundle.confidence` applied to what an engine returns, with the
calibration in the bundle's manifest. Nothing here knows gRPC or engines."""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Sequence
from typing import Any

from export.bundle.adequacy import traits_of
from export.bundle.confidence import Calibration, merged, raw_sentence, raw_words, word_spans
from glossa.v1 import glossa_pb2 as pb
from model.tokenizer import Tokenizer
from service.edge.models.served_model import ServedModel
from service.errors import InvalidRequest, Unsupported
from service.options import DEFAULTS, DecodingOptions
from service.request import HypothesisResult, Request

UNCERTAIN_BELOW = 0.5  # a word below it is more likely wrong than right
INLINE_TOKENS = 256  # of answers whose confidence is computed on the event loop, in half a millisecond
# Confidence of answers whose clients did not ask for it, for its metric: of all in one second of so many, by chance.
# Not one answer of so many: an engine's turn computes log-probabilities for all of its rows or for none.
SAMPLED_ONE_OF, WINDOW_S = 128, 1.0
# Options that leave the answer what greedy or beam search returns: with all others it is not of the kind that was
# calibrated. The confidence of beam search was compared with that of greedy search (docs/confidence.md).
_LIKE_CALIBRATED = frozenset(
    (
        *("max_tokens", "max_length_ratio", "stop", "beam_size", "num_hypotheses", "length_penalty"),
        *("length_normalization", "patience", "early_stopping"),
        *("token_logprobs", "top_logprobs", "alignment", "alignment_layer", "alignment_heads"),
    )
)


@dataclasses.dataclass(frozen=True)
class AnswerConfidence:
    """What one request asks of the confidence of its answers. threshold: words below it are uncertain."""

    model: ServedModel
    calibration: Calibration
    threshold: float

    def of(
        self, result: HypothesisResult, rank: int = 0, *, source: Sequence[int], text: str, options: DecodingOptions
    ) -> pb.Confidence:
        """The confidence of an answer. rank: of the answer, 0 for the best one. source: tokens that the encoder read.
        text: of the request, without context. options: the request's."""
        pieces = self.model.tokenizer.token_texts(result.tokens)
        words = raw_words(result.text, pieces, result.token_logprobs)
        confidences = [self.calibration.words.map(word.confidence) for word in words]
        uncertain = [confidence < self.threshold for confidence in confidences]
        spans = [word.span for word in words]
        adequacy = self.adequacy(result, source=source, text=text)
        return pb.Confidence(
            sentence=self.calibration.sentences.map(raw_sentence(confidences, adequacy)) if words else 0.0,
            words=[
                pb.WordConfidence(span=pb.Span(start=start, end=end), confidence=confidence, is_uncertain=is_uncertain)
                for (start, end), confidence, is_uncertain in zip(spans, confidences, uncertain, strict=True)
            ],
            calibrated=rank == 0 and is_like_calibrated(options),
            uncertain=[pb.Span(start=start, end=end) for start, end in merged(spans, uncertain)],
        )

    def adequacy(self, result: HypothesisResult, *, source: Sequence[int], text: str) -> float:
        """The adequacy of an answer; 1 without a calibration of it. source, text: as of `of`."""
        if (adequacy := self.calibration.adequacy) is None:
            return 1.0
        tokens, ends = self.model.text_tokens(source), self.model.manifest.tokens.ends
        return adequacy(traits_of(tokens, len(text), result.tokens, result.token_logprobs, ends))


def answer_confidence(message: Any, model: ServedModel) -> AnswerConfidence | None:
    """What a message asks of confidence; None: nothing. Raises InvalidRequest; Unsupported without a calibration."""
    if not hasattr(message, "include_confidence"):  # messages of generation
        return None
    has_threshold = message.HasField("uncertain_below")
    threshold = message.uncertain_below if has_threshold else UNCERTAIN_BELOW
    if has_threshold and not message.include_confidence:
        raise InvalidRequest("uncertain_below", "must be left out without include_confidence; set include_confidence")
    if not 0 <= threshold <= 1:
        raise InvalidRequest("uncertain_below", f"must be 0..1, got {threshold:g}")
    if not message.include_confidence:
        return None
    if (calibration := model.calibration) is None:
        raise Unsupported(
            f"model {model.name!r} has no calibrated confidence; export it with --calibrate, or request "
            "options.token_logprobs for the model's own log-probabilities"
        )
    return AnswerConfidence(model, calibration, threshold)


def with_logprobs(request: Request, model: ServedModel, now_s: float | None = None) -> Request:
    """A request of a client that has not asked for confidence. In a sampled second its answer gets what confidence is
    computed from, which changes no token of it. now_s: on any clock; None: now."""
    options, window = request.options, int((time.monotonic() if now_s is None else now_s) / WINDOW_S)
    is_sampled = zlib.crc32(window.to_bytes(8, "big")) % SAMPLED_ONE_OF == 0
    if not is_sampled or model.calibration is None or not is_like_calibrated(options):
        return request
    return dataclasses.replace(request, options=dataclasses.replace(options, token_logprobs=True))


def as_asked(request: Request, message: Any) -> Request:
    """The request as a client made it with a message: without what `with_logprobs` has added."""
    if not request.options.token_logprobs or message.options.token_logprobs:
        return request
    if getattr(message, "include_confidence", False):  # messages of generation have none
        return request
    return dataclasses.replace(request, options=dataclasses.replace(request.options, token_logprobs=False))


def words_per_token(tokenizer: Tokenizer) -> int:
    """Most words in the text of one token: each punctuation mark is one, and each character of scripts without spaces.
    Takes up to a second for 250,000 tokens."""
    others = (piece for piece in tokenizer.pieces if not piece.strip().isalnum())
    return max((len(word_spans(piece.decode("utf-8", "replace"))) for piece in others), default=1) or 1


def is_like_calibrated(options: DecodingOptions) -> bool:
    """Whether answers are decoded as in the calibration: by greedy or beam search that nothing influences."""
    if options is DEFAULTS:
        return True
    changed = {name for name, value in vars(options).items() if value != getattr(DEFAULTS, name)}
    return changed <= _LIKE_CALIBRATED
