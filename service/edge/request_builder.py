"""Texts and options of a client → a `Request` that fits one model, every field checked.

Checks come in the order of their cost: text limits, options alone, the model's capabilities, then what needs tokens.
Attention requests are built in `attention_builder`; nothing here knows gRPC or engines.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from service.edge.prompt_encoder import INLINE_BYTES, NO_LANGUAGES, LanguagePair, PromptEncoder
from service.edge.request_limits import (
    TextLimits,
    check_bytes,
    check_capabilities,
    check_response_size,
    check_stop,
    check_text,
)
from service.edge.served_model import ServedModel
from service.encoder_request import EncoderRequest, Pooling
from service.errors import InvalidRequest, Unsupported
from service.option_checks import check, check_scoring
from service.options import DecodingOptions
from service.request import Request

MAX_MASKS = 32  # per text: each costs a distribution over the vocabulary
MAX_MASK_CANDIDATES = 100  # per mask

_Built = TypeVar("_Built")


class CallInfo(NamedTuple):
    """The call that a request belongs to."""

    request_id: str
    deadline_s: float  # on the clock of time.monotonic()


async def build_off_loop(build: Callable[[], _Built], *, is_quick: bool) -> _Built:
    """`build()`, in a thread unless it is quick enough for the event loop."""
    return build() if is_quick else await asyncio.to_thread(build)


class RequestBuilder:
    """Builds the requests of one model. Every method raises InvalidRequest and Unsupported."""

    def __init__(self, model: ServedModel, limits: TextLimits) -> None:
        self._model, self._limits, self._prompts = model, limits, PromptEncoder(model)

    async def decoding(
        self,
        call: CallInfo,
        text: str,
        options: DecodingOptions,
        languages: LanguagePair = NO_LANGUAGES,
        *,
        is_streamed: bool = True,
    ) -> Request:
        """A request to translate or continue a text."""
        check_bytes(options.prefix, self._limits, "options.prefix")  # before `check`, which looks for bad words in it
        check_stop(options.stop, self._limits)
        check(options)
        check_text(text, self._limits)
        check_capabilities(self._model, options)
        is_short = len(text) + len(options.prefix) <= INLINE_BYTES
        return await build_off_loop(
            lambda: self._decoding(call, text, options, languages, is_streamed),
            is_quick=is_short and not options.use_shortlist,
        )

    async def scoring(
        self,
        call: CallInfo,
        text: str,
        target: str | Sequence[int],
        options: DecodingOptions,
        languages: LanguagePair = NO_LANGUAGES,
        *,
        omit_eos: bool = False,
    ) -> Request:
        """A request to score a target, given as text or as token ids. omit_eos: a text gets no end token."""
        check_scoring(options)
        if self._model.has_source or text:
            check_text(text, self._limits)
        if isinstance(target, str):
            check_text(target, self._limits, "target")
        elif omit_eos:
            raise InvalidRequest("omit_eos", "must be false with target_tokens, which are scored exactly as given")
        options = dataclasses.replace(options, token_logprobs=True)
        check_capabilities(self._model, options)
        return await build_off_loop(
            lambda: self._scoring(call, text, target, options, languages, omit_eos),
            is_quick=len(text) + len(target) <= INLINE_BYTES,
        )

    async def embedding(
        self, call: CallInfo, text: str, pooling: Pooling = "mean", languages: LanguagePair = NO_LANGUAGES
    ) -> Request:
        """A request for the embedding of a text."""
        if pooling == "pooler" and not (self._model.encoding and self._model.encoding.has_pooler):
            raise Unsupported(f"model {self._model.name!r} has no pooler; use pooling mean or cls")
        return await self._encoding(call, text, EncoderRequest(pooling=pooling), languages)

    async def mask_filling(self, call: CallInfo, text: str, top_k: int) -> Request:
        """A request for the `top_k` most likely tokens of each mask of a text."""
        if not self._model.mask_token:
            raise Unsupported(f"model {self._model.name!r} fills no masks; name a model with a masked-language head")
        if not 1 <= top_k <= MAX_MASK_CANDIDATES:
            raise InvalidRequest("top_k", f"must be 1..{MAX_MASK_CANDIDATES}, got {top_k}")
        return await self._encoding(call, text, EncoderRequest(top_k=top_k), NO_LANGUAGES)

    async def classification(self, call: CallInfo, text: str, *, token_weights: bool) -> Request:
        """A request for the label probabilities of a text."""
        encoding = self._model.encoding
        if not (encoding and encoding.labels):
            raise Unsupported(f"model {self._model.name!r} has no labels; name a model that was trained to classify")
        if token_weights and not encoding.has_token_weights:
            raise Unsupported(
                f"model {self._model.name!r} has no token weights: it does not classify by attention pooling"
            )
        return await self._encoding(call, text, EncoderRequest(labels=True, token_weights=token_weights), NO_LANGUAGES)

    async def _encoding(
        self, call: CallInfo, text: str, encoder_request: EncoderRequest, languages: LanguagePair
    ) -> Request:
        check_text(text, self._limits)
        ids = self._prompts.language_ids(languages, has_target=False)
        return await build_off_loop(
            lambda: self._encode(call, text, encoder_request, ids), is_quick=len(text) <= INLINE_BYTES
        )

    def _encode(
        self, call: CallInfo, text: str, encoder_request: EncoderRequest, language_ids: Mapping[str, int]
    ) -> Request:
        source = self._prompts.source(text, language_ids, has_masks=encoder_request.top_k > 0)
        if encoder_request.top_k:
            encoder_request = dataclasses.replace(encoder_request, mask_positions=self._mask_positions(source))
        prompt = self._model.decoder_start
        return Request(
            request_id=call.request_id,
            source=source,
            prompt=prompt,
            max_tokens=len(prompt),
            deadline_s=call.deadline_s,
            encoder_request=encoder_request,
            is_streamed=False,
        )

    def _mask_positions(self, source: Sequence[int]) -> tuple[int, ...]:
        assert self._model.encoding is not None
        positions = tuple(index for index, token in enumerate(source) if token == self._model.encoding.mask)
        if not 1 <= len(positions) <= MAX_MASKS:
            raise InvalidRequest(
                "text", f"must have 1..{MAX_MASKS} masks, written {self._model.mask_token}, got {len(positions)}"
            )
        return positions

    def _decoding(
        self, call: CallInfo, text: str, options: DecodingOptions, languages: LanguagePair, is_streamed: bool
    ) -> Request:
        model = self._model
        source, prompt = self._prompts.source_and_prompt(text, languages)
        max_tokens = self._max_tokens(options, source, prompt)
        prefix = self._prefix(options, max_tokens)
        check_response_size(model, options, max_tokens, len(source))
        return Request(
            request_id=call.request_id,
            source=source,
            prompt=prompt,
            max_tokens=max_tokens,
            stop=options.stop,
            deadline_s=call.deadline_s,
            options=options,
            prefix=() if options.prefix_bias else prefix,
            preferred_prefix=prefix if options.prefix_bias else (),
            continued_text="" if model.has_source else text,
            shortlist=self._shortlist(options, source, prefix),
            seed=_seed(options),
            is_streamed=is_streamed,
        )

    def _shortlist(self, options: DecodingOptions, source: Sequence[int], prefix: Sequence[int]) -> tuple[int, ...]:
        """The tokens that may be chosen; () for all. Prefix and end tokens are always among them."""
        if not options.use_shortlist or self._model.shortlist is None:
            return ()
        given = (*prefix, *self._model.manifest.tokens.ends)
        return tuple(sorted(self._model.shortlist.allowed(source, given=given)))

    def _max_tokens(self, options: DecodingOptions, source: Sequence[int], prompt: Sequence[int]) -> int:
        """The bound of new tokens, from max_tokens, max_length_ratio and the model."""
        limit = self._model.max_new_tokens(len(prompt))
        if not 0 <= options.max_tokens <= limit:
            beside = "" if source else f" after a prompt of {len(prompt)} tokens"
            raise InvalidRequest(
                "options.max_tokens",
                f"must be 1..{limit}{beside}, or 0 for the model's own limit, got {options.max_tokens}",
            )
        limit = options.max_tokens or limit
        if options.max_length_ratio:
            # 1e-9: 0.1 * 30 is above 3 in float64
            limit = min(limit, max(1, math.ceil(options.max_length_ratio * len(source) - 1e-9)))
        if options.min_tokens > limit:
            raise InvalidRequest("options.min_tokens", f"must be 0..{limit} here, got {options.min_tokens}")
        return limit

    def _prefix(self, options: DecodingOptions, max_tokens: int) -> tuple[int, ...]:
        name, prefix = "options.prefix_tokens", options.prefix_tokens
        if options.prefix:
            name = "options.prefix"
            prefix = tuple(self._prompts.encode(options.prefix, "options.prefix", is_target=True))
        bound = options.length_limit(max_tokens)
        if len(prefix) > max_tokens:
            raise InvalidRequest(name, f"must be at most {max_tokens} tokens, the limit by {bound}, got {len(prefix)}")
        count = max(options.num_hypotheses, options.num_sequences)
        if count > 1 and len(prefix) == max_tokens and not options.prefix_bias:
            raise InvalidRequest(
                name,
                f"must be fewer than {max_tokens} tokens, the limit by {bound}, got {len(prefix)}: "
                f"all {count} hypotheses would be the same",
            )
        return prefix

    def _scoring(
        self,
        call: CallInfo,
        text: str,
        target: str | Sequence[int],
        options: DecodingOptions,
        languages: LanguagePair,
        omit_eos: bool,
    ) -> Request:
        source, prompt = self._prompts.source_and_prompt(text, languages)
        tokens = self._prompts.target(target, prompt, omit_eos=omit_eos)
        check_response_size(self._model, options, len(tokens), len(source))
        return Request(
            request_id=call.request_id,
            source=source,
            prompt=prompt,
            max_tokens=len(tokens),
            deadline_s=call.deadline_s,
            options=options,
            prefix=tokens,
            is_streamed=False,
        )


def _seed(options: DecodingOptions) -> int:
    if options.seed is not None:
        return options.seed
    return secrets.randbits(53) if options.is_sampling else 0  # 53: JSON readers with float64 keep it exactly
