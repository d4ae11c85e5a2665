"""Texts of a client → a `Request` for outputs of one model's encoder, every field checked (`EncoderRequestBuilder`).

Checks come in the order of their cost, as in `request_builder`. Nothing here knows gRPC or engines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from export.bundle.manifest import Encoding
from service.edge.models.alignment import Span
from service.edge.models.served_model import ServedModel
from service.edge.requests.prompt_encoder import NO_LANGUAGES, LanguagePair, PromptEncoder
from service.edge.requests.request_limits import MAX_RESPONSE_BYTES, TextLimits, states_size
from service.encoder_request import EncoderRequest, Pooling
from service.errors import InvalidRequest, Unsupported
from service.request import Caller, Request

MAX_MASKS = 32  # per text: each costs a distribution over the vocabulary
MAX_SPANS = 1024  # of tokens whose vectors are requested
MAX_MASK_CANDIDATES = 100  # per mask
ANYONE = Caller()


class Embedding(NamedTuple):
    """A request for the embedding of a text, and whether the text was truncated."""

    request: Request
    is_truncated: bool


class EncoderRequestBuilder:
    """Builds the request of one call for outputs of the encoder. Every method raises InvalidRequest and Unsupported.
    deadline_s: on the clock of time.monotonic()."""

    def __init__(
        self,
        model: ServedModel,
        limits: TextLimits,
        request_id: str,
        deadline_s: float,
        trace_id: str = "",
        caller: Caller = ANYONE,
    ) -> None:
        self._model, self._limits, self._prompts = model, limits, PromptEncoder(model)
        self._request = partial(
            Request, request_id=request_id, deadline_s=deadline_s, trace_id=trace_id, **caller._asdict()
        )

    def embedding(
        self,
        text: str,
        pooling: Pooling | None = None,
        languages: LanguagePair = NO_LANGUAGES,
        *,
        prompt_name: str | None = None,
        truncate: bool = False,
    ) -> Embedding:
        """A request for the embedding of a text.

        pooling: None: that of the model, with the layers after it and its normalization. prompt_name: see
        `ServedModel.prompt`. truncate: a text with too many tokens loses those at its end, instead of being refused.
        """
        self._limits.check_text(text)
        prompt, own = self._model.prompt(prompt_name), self._model.encoding or Encoding(width=1)
        if pooling == "pooler" and not own.has_pooler:
            raise Unsupported(f"model {self._model.name!r} has no pooler; use pooling mean or cls")
        language_ids = self._prompts.language_ids(languages, has_target=False)
        source, is_truncated = self._prompts.embedded(prompt, text, language_ids, truncate=truncate)
        wanted = EncoderRequest(pooling=pooling)
        if pooling is None:
            is_apart = bool(prompt) and not own.pools_prompt
            wanted = EncoderRequest(
                pooling=own.pooling,
                pooled_from=self._end_of_prompt(prompt, len(source)) if is_apart else 0,
                has_dense=own.dense_width > 0,
                normalized=own.normalized,
            )
        return Embedding(self._of_source(source, wanted), is_truncated)

    def _end_of_prompt(self, prompt: str, length: int) -> int:
        """The position after a prompt among `length` tokens, as sentence-transformers counts: the tokens of the prompt
        alone, and all special ones but the last that follows it. At least one position remains."""
        template = self._model.manifest.template
        special = len(template.source_prefix) + max(len(template.source_suffix) - 1, 0)
        return min(special + self._prompts.prompt_tokens(prompt), length - 1)

    def mask_filling(self, text: str, top_k: int) -> Request:
        """A request for the `top_k` most likely tokens of each mask of a text."""
        if not self._model.mask_token:
            raise Unsupported(f"model {self._model.name!r} fills no masks; name a model with a masked-language head")
        if not 1 <= top_k <= MAX_MASK_CANDIDATES:
            raise InvalidRequest("top_k", f"must be 1..{MAX_MASK_CANDIDATES}, got {top_k}")
        return self._encoding(text, EncoderRequest(top_k=top_k))

    def classification(self, text: str, *, token_weights: bool) -> Request:
        """A request for the label probabilities of a text."""
        encoding = self._model.encoding
        if encoding is None or not self._model.is_classifier:
            raise Unsupported(f"model {self._model.name!r} has no labels; name a model that was trained to classify")
        if token_weights and not encoding.has_token_weights:
            raise Unsupported(
                f"model {self._model.name!r} has no token weights: it does not classify by attention pooling"
            )
        return self._encoding(text, EncoderRequest(labels=True, token_weights=token_weights))

    def tagging(self, text: str) -> Request:
        """A request for the label probabilities of each token of a text."""
        if not self._model.is_tagger:
            raise Unsupported(f"model {self._model.name!r} has no labels of tokens; name a token-classification model")
        return self._encoding(text, EncoderRequest(token_labels=True))

    def token_embedding(self, text: str, spans: Sequence[Span] = (), languages: LanguagePair = NO_LANGUAGES) -> Request:
        """A request for the state of each token of a text, special ones included, or of those that overlap `spans`."""
        if self._model.encoding is None:
            raise Unsupported(f"model {self._model.name!r} does not describe its encoder's states; export it again")
        self._limits.check_text(text)
        request = self._encoding(text, EncoderRequest(pooling="cls"), languages)
        positions = tuple(range(len(request.source)))
        if spans:
            positions = self._overlapping(text, spans)
        width = self._model.encoding.width
        if (size := states_size(len(positions), width)) > MAX_RESPONSE_BYTES:
            raise InvalidRequest(
                "spans" if spans else "text",
                f"must give at most {MAX_RESPONSE_BYTES} bytes of vectors, {len(positions)} tokens of {width} values "
                f"would be {size}; name spans with fewer tokens, or send less text",
            )
        return dataclasses.replace(request, encoder_request=EncoderRequest(state_positions=positions))

    def _overlapping(self, text: str, spans: Sequence[Span]) -> tuple[int, ...]:
        """The positions of the tokens that share a character with one of the spans."""
        if len(spans) > MAX_SPANS:
            raise InvalidRequest("spans", f"must be at most {MAX_SPANS}, got {len(spans)}")
        is_selected = bytearray(len(text))
        for number, (start, end) in enumerate(spans):
            if not 0 <= start < end <= len(text):
                problem = f"must have 0 <= start < end <= {len(text)}, the characters of the text, got {start}..{end}"
                raise InvalidRequest(f"spans[{number}]", problem)
            is_selected[start:end] = bytes([1]) * (end - start)
        found = enumerate(self._model.source_spans(text))
        positions = tuple(position for position, (start, end) in found if any(is_selected[start:end]))
        if not positions:
            raise InvalidRequest("spans", "must share a character with a token, got blanks only")
        return positions

    def _encoding(self, text: str, encoder_request: EncoderRequest, languages: LanguagePair = NO_LANGUAGES) -> Request:
        self._limits.check_text(text)
        language_ids = self._prompts.language_ids(languages, has_target=False)
        source = self._prompts.source(text, language_ids, has_masks=encoder_request.top_k > 0)
        if encoder_request.top_k:
            encoder_request = dataclasses.replace(encoder_request, mask_positions=self._mask_positions(source))
        return self._of_source(source, encoder_request)

    def _of_source(self, source: tuple[int, ...], encoder_request: EncoderRequest) -> Request:
        prompt = self._model.decoder_start
        return self._request(
            source=source, prompt=prompt, max_tokens=len(prompt), encoder_request=encoder_request, is_streamed=False
        )

    def _mask_positions(self, source: Sequence[int]) -> tuple[int, ...]:
        assert self._model.encoding is not None
        positions = tuple(index for index, token in enumerate(source) if token == self._model.encoding.mask)
        if not 1 <= len(positions) <= MAX_MASKS:
            raise InvalidRequest(
                "text", f"must have 1..{MAX_MASKS} masks, written {self._model.mask_token}, got {len(positions)}"
            )
        return positions
