"""The tokens of a text as one model's requests have them, counted or listed with their positions. No engine is needed.

The rules are those of `prompt_encoder`. Texts that are too long for a request in tokens are counted and listed like
others; the limit in bytes holds. Nothing here knows gRPC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from model.tokenizer import Tokenizer
from service.edge.models.alignment import Span
from service.edge.models.served_model import ServedModel
from service.edge.requests.prompt_encoder import (
    INLINE_BYTES,
    NO_LANGUAGES,
    NO_SPECIAL_TOKENS,
    LanguagePair,
    PromptEncoder,
    ids_of,
)
from service.edge.requests.request_limits import MAX_RESPONSE_BYTES, TOKEN_BYTES, TextLimits
from service.edge.requests.translation_encoder import TranslationEncoder
from service.errors import InvalidRequest

MAX_TEXTS = 1024  # of one request to count: as many as a message of 256 KiB has, of 250 bytes each


class Count(NamedTuple):
    """The length of a text in tokens, special ones included."""

    tokens: int
    exceeds_limit: bool
    unknown_words: list[str]


class Tokens(NamedTuple):
    """The tokens of a text, and the span of each in code points, empty for special tokens. num_before, num_after: how
    many special tokens there are at the ends. max_new_tokens: the model's room for further tokens."""

    ids: tuple[int, ...]
    spans: list[Span]
    num_before: int
    num_after: int
    length: Count
    max_new_tokens: int


class Tokenization:
    """The tokens of texts for one model. Raises InvalidRequest. Takes milliseconds for a long text."""

    def __init__(self, model: ServedModel, limits: TextLimits) -> None:
        self._model, self._limits, self._prompts = model, limits, PromptEncoder(model)
        self._translation = TranslationEncoder.of(model)

    def check_texts(self, texts: Sequence[str], languages: LanguagePair) -> None:
        """Checks a request to count. Languages may be left out: they count as one token each, whatever their code."""
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequest("texts", f"must be 1..{MAX_TEXTS} texts, got {len(texts)}")
        for number, text in enumerate(texts):
            self._limits.check_bytes(text, f"texts[{number}]")
        if any(languages) and (translation := self._translation) is not None:
            translation.check_languages(languages)
        elif any(languages):
            self._prompts.language_ids(languages, has_target=bool(languages.target))

    def count(self, text: str, prompt: str = "", languages: LanguagePair = NO_LANGUAGES) -> Count:
        """The length of a source or prompt. prompt: what a request to embed puts before it. languages: of a text that a
        model translates by its prompts."""
        if any(languages) and (translation := self._translation) is not None:
            tokens = translation.count(text, languages)
            return self._count(self._model.tokenizer, text, tokens, self._model.max_prompt_tokens)
        tokenizer, whole = self._model.tokenizer, f"{prompt}{text}"
        tokens = self._prompts.count_around + len(tokenizer.encode_batch([whole])[0])  # releases the GIL: one of many
        return self._count(tokenizer, whole, tokens, self._model.max_prompt_tokens)

    def tokens(self, text: str, languages: LanguagePair, *, is_target: bool, has_special: bool) -> Tokens:
        """The tokens of a source, a prompt or a target. has_special: with the special tokens around it."""
        model, limits, field = self._model, self._model.manifest.limits, "target" if is_target else "text"
        if is_target and not (model.has_source and limits.max_target_len):
            raise InvalidRequest("target", f"must be empty: model {model.name!r} translates nothing; send text")
        self._limits.check_bytes(text, field)
        tokenizer = model.tokenizer.target if is_target else model.tokenizer
        ids = tuple(ids_of(tokenizer, text, is_long=len(text.encode()) > INLINE_BYTES))
        if (size := TOKEN_BYTES * len(ids)) > MAX_RESPONSE_BYTES:
            raise InvalidRequest(field, f"must give at most {MAX_RESPONSE_BYTES} bytes of tokens, this gives {size}")
        before, after = NO_SPECIAL_TOKENS
        if has_special or any(languages):
            around = self._prompts.special_tokens(languages, is_target=is_target)
            before, after = around if has_special else NO_SPECIAL_TOKENS
        end = len(text)
        spans = [*[(0, 0)] * len(before), *tokenizer.offsets(text), *[(end, end)] * len(after)]
        if is_target:
            limit = model.max_new_tokens(len(model.manifest.template.target_prefix))
            count, room = len(ids) + 1, limit - len(ids)
        else:
            limit, count = model.max_prompt_tokens, self._prompts.count_around + len(ids)
            room = model.max_new_tokens(len(model.manifest.template.target_prefix) if model.has_source else count)
        return Tokens(
            ids=(*before, *ids, *after),
            spans=spans,
            num_before=len(before),
            num_after=len(after),
            length=self._count(tokenizer, text, count, limit),
            max_new_tokens=max(0, room) if limits.max_target_len and count <= limit else 0,
        )

    def _count(self, tokenizer: Tokenizer, text: str, tokens: int, limit: int) -> Count:
        """limit: of `tokens`. Unknown words are looked up in texts that fit only, as `PromptEncoder.encode` does."""
        if tokens > limit:
            return Count(tokens, True, [])
        return Count(tokens, False, tokenizer.unknown_words(text))
