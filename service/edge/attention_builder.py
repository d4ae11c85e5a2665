"""Text and selection of a client → a `Request` for the attention of one pass, every field checked.

The pass is over a given target, over the text alone, or over the answer that the model generates first.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Sequence

from service.attention_request import AttentionChoice, Lengths
from service.edge.prompt_encoder import NO_LANGUAGES, LanguagePair, PromptEncoder
from service.edge.request_builder import CallInfo
from service.edge.request_limits import TextLimits, check_attention_size, check_text, fits_attention
from service.edge.served_model import ServedModel
from service.encoder_request import EncoderRequest
from service.errors import InvalidRequest, Unsupported
from service.request import Request


class AttentionRequestBuilder:
    """Builds the attention requests of one model. Raises InvalidRequest and Unsupported."""

    def __init__(self, model: ServedModel, limits: TextLimits) -> None:
        self._model, self._limits, self._prompts = model, limits, PromptEncoder(model)

    async def attention(
        self,
        call: CallInfo,
        text: str,
        target: str | Sequence[int] | None,
        choice: AttentionChoice,
        languages: LanguagePair = NO_LANGUAGES,
        *,
        text_only: bool = False,
        max_tokens: int = 0,
    ) -> tuple[Request, AttentionChoice]:
        """The request and its selection with all kinds named.

        target: the target to attend, as text or token ids; None: the model generates one first, unless text_only.
        max_tokens: of a generated target; 0: as many as the model and the response have room for.
        """
        check_text(text, self._limits)
        if isinstance(target, str):
            check_text(target, self._limits, "target")
        maps = self._model.manifest.attention_maps
        if not maps:
            raise Unsupported(f"model {self._model.name!r} has no attention outputs; export it with --attention")
        if target is not None and text_only:
            raise InvalidRequest("text_only", "must be false with a target")
        if max_tokens and (target is not None or text_only):
            raise InvalidRequest("max_tokens", f"must be 0 unless the model generates the target, got {max_tokens}")
        choice = choice.checked(maps, text_only=text_only)
        request = await asyncio.to_thread(self._build, call, text, target, choice, languages, text_only, max_tokens)
        return request, choice

    def _build(
        self,
        call: CallInfo,
        text: str,
        target: str | Sequence[int] | None,
        choice: AttentionChoice,
        languages: LanguagePair,
        text_only: bool,
        max_tokens: int,
    ) -> Request:
        model, prompts = self._model, self._prompts
        forced: tuple[int, ...] = ()  # what the decoder reads; () where it generates the target first
        new_tokens = 1
        if choice.kinds == ("encoder",):
            source = prompts.source(text, prompts.language_ids(languages, has_target=False))
            prompt = forced = model.decoder_start
            lengths = Lengths(len(source), 0)
        else:
            source, prompt = prompts.source_and_prompt(text, languages)
            if text_only or target is not None:
                forced = (*prompt, *prompts.target(target, prompt)[:-1]) if target is not None else prompt
            else:
                new_tokens = self._max_new_tokens(choice, len(source), len(prompt), max_tokens)
            lengths = Lengths(len(source), len(forced) or len(prompt) + new_tokens - 1)
        check_attention_size(model, choice, lengths)
        if model.open_attention is not None:
            model.open_attention()
        return Request(
            request_id=call.request_id,
            source=source,
            prompt=forced[:1] or prompt,
            max_tokens=new_tokens if prompt else 0,
            deadline_s=call.deadline_s,
            encoder_request=None if prompt else EncoderRequest(pooling="cls"),  # without a decoder: one encoder pass
            is_streamed=False,
            attention_kinds=choice.kinds,
            forced_target=forced,
        )

    def _max_new_tokens(self, choice: AttentionChoice, source: int, prompt: int, max_tokens: int) -> int:
        """The length of a generated target: the requested one, else the longest one whose attention can be returned, at
        least 1."""
        limit = self._model.max_new_tokens(prompt)
        if not 0 <= max_tokens <= limit:
            raise InvalidRequest("max_tokens", f"must be 0..{limit} here, got {max_tokens}")
        if max_tokens:
            return max_tokens
        counts = range(1, limit + 1)
        fitting = bisect.bisect(
            counts,
            False,
            key=lambda count: not fits_attention(self._model, choice, Lengths(source, prompt + count - 1)),
        )
        return max(1, fitting)
