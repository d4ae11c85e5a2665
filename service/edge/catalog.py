"""The models a server has, and the way from a client's text to a `Request` that fits one of them.

All checks of a request against its model stand here, before any work is done. Nothing here knows gRPC, and no check
depends on how busy the server is: that is the pool's business.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import difflib
import functools
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from export.bundle import (
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    Encoding,
    Manifest,
    Quantization,
    SchemeMeasurement,
    Shortlist,
    Task,
    Variant,
)
from model.tokenizer import Tokenizer
from service.attention_request import AttentionChoice, Lengths, computed_bytes
from service.decoding.grammar import Grammar
from service.decoding.lexical_constraints import LexicalConstraints, phrase_variants
from service.decoding.logits_processors import AllowedTokens, BannedTexts, build_logits_processors
from service.decoding.vocabulary import Vocabulary
from service.encoder_request import EncoderRequest, Pooling
from service.errors import InvalidRequest, ModelNotFound, Unsupported
from service.logits_processor import LogitsProcessor
from service.option_checks import check, check_scoring
from service.options import MAX_WIDTH, DecodingOptions
from service.request import EventSink, Request

INLINE_BYTES = 1024  # tokenised on the event loop (0.3 ms); longer text in a thread, by the call that releases the GIL
SLOW = ("bad_words", "phrases", "allowed_tokens", "use_shortlist", "grammars")  # made ready in a thread, too
MAX_ANSWER_BYTES = 3 << 20  # gRPC clients take messages of 4 MiB unless they are told otherwise
MAX_ATTENTION_BYTES = 1 << 28  # of the weights of all layers and heads, before they become an alignment
TOKEN_BYTES = 24  # of a token with its text and log-probability in a message
SHOWN_WORDS = 10  # unknown words named in an error: trailing metadata has room for about 8 KiB
SHOWN_CHARACTERS = 24  # of each of them
SHOWN_CODES = 4000  # characters of all the codes of languages
SERVICES: Mapping[Task, tuple[str, ...]] = {
    "translation": ("TranslationService", "ScoringService", "EncodingService"),
    "generation": ("GenerationService", "ScoringService"),
    "encoding": ("EncodingService",),
}
"""What serves models of a task, the service that is made for it first."""

DECODING: tuple[Task, ...] = ("translation", "generation")
READING: tuple[Task, ...] = ("translation", "encoding")
MAX_MASKS = 32  # of one text: each costs a distribution over the vocabulary
MAX_FILLINGS = 100  # of one mask that are told


class Submission(Protocol):
    """A request in an engine."""

    def cancel(self) -> None: ...


class Pool(Protocol):
    """The engines of one model, as the edge sees them."""

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Submission: ...

    def stop_accepting(self) -> None: ...

    def close(self) -> None: ...

    @property
    def heartbeat_s(self) -> float: ...

    @property
    def is_healthy(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class TextLimits:
    """What a request may bring, whatever the model."""

    max_text_bytes: int = 16384
    max_stop_strings: int = 8
    max_stop_bytes: int = 64


class Languages(NamedTuple):
    """Codes that a request names; "": none."""

    source: str = ""
    target: str = ""


NO_LANGUAGES = Languages()


class Size(NamedTuple):
    """Bytes that the answers to a request could need."""

    told: int  # in the message
    attention: int  # weights of all layers and heads, from which an alignment is made


@dataclass(frozen=True, kw_only=True)
class Provider:
    """What runs a model: the execution provider in use, what was asked for, and why they differ."""

    name: str
    requested: str
    fallback: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One model with all that its requests need."""

    name: str
    manifest: Manifest
    precision: str
    bundle_sha256: str  # of manifest.json
    tokenizer: Tokenizer
    pool: Pool
    provider: Provider
    shortlist: Shortlist | None = None
    max_hypotheses: int = MAX_WIDTH  # of one request: rows that an engine has
    open_attention: Callable[[], object] | None = None  # makes an engine ready to tell attention; may take long
    draft_tokens: int = 0  # that its engines may guess ahead; above 0, near-ties may come out either way
    is_batch_invariant: bool = True  # on this machine

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.tokenizer, eos_ids=self.manifest.tokens.ends)

    @property
    def quantization(self) -> Quantization | None:
        """How the graphs that run compute with fewer bits; None: they do not."""
        quantization = self._variant.quantization if self._variant else None
        if quantization is None or self.is_batch_invariant:
            return quantization
        return dataclasses.replace(quantization, batch_invariant=False)

    @property
    def figures(self) -> SchemeMeasurement | None:
        """What was measured of them against fp32 when they were exported."""
        comparison = self._variant.comparison if self._variant else ()
        return next((figures for figures in comparison if figures.chosen), None)

    @functools.cached_property
    def _variant(self) -> Variant | None:
        return next((variant for variant in self.manifest.variants if variant.precision == self.precision), None)

    @property
    def encoding(self) -> Encoding | None:
        """What its encoder tells of a text; None: it has no encoder."""
        return self.manifest.encoding

    @functools.cached_property
    def mask(self) -> str:
        """The text that stands for a token to be filled in; "": it fills none."""
        mask = self.encoding.mask if self.encoding else None
        return "" if mask is None else self.tokenizer.special_text(mask)

    @property
    def has_source(self) -> bool:
        return self.manifest.limits.max_source_len > 0

    @property
    def max_prompt_tokens(self) -> int:
        """Longest text in tokens, with those that stand around it."""
        limits = self.manifest.limits
        return limits.max_source_len or limits.max_target_len

    def room(self, prompt_tokens: int) -> int:
        """How many tokens can be new after a prompt, start token included. The last one takes no position."""
        return self.manifest.limits.max_target_len - prompt_tokens + 1

    @property
    def max_tokens(self) -> int:
        """Most new tokens of any request."""
        return self.room(max(1, len(self.manifest.template.target_prefix)))

    async def request(
        self,
        request_id: str,
        text: str,
        options: DecodingOptions,
        *,
        languages: Languages = NO_LANGUAGES,
        deadline_s: float,
        limits: TextLimits,
        is_streamed: bool = True,
    ) -> Request:
        """A request whose every field was checked. Raises InvalidRequest, Unsupported, Unsatisfiable."""
        _check_bytes(options.prefix, limits, "options.prefix")  # before the options: they look for bans in it
        _check_stop(options.stop, limits)
        check(options)
        _check_text(text, limits)
        self._check_abilities(options)
        is_quick = len(text) + len(options.prefix) <= INLINE_BYTES and not any(getattr(options, name) for name in SLOW)
        build = functools.partial(self._build, request_id, text, options, languages, deadline_s, is_streamed)
        return build() if is_quick else await asyncio.to_thread(build)

    async def scoring(
        self,
        request_id: str,
        text: str,
        target: str | Sequence[int],
        options: DecodingOptions,
        *,
        languages: Languages = NO_LANGUAGES,
        omit_eos: bool,
        deadline_s: float,
        limits: TextLimits,
    ) -> Request:
        """The same for a target that is given, as text or as token ids. omit_eos: a text gets no end token."""
        check_scoring(options)
        if self.has_source or text:
            _check_text(text, limits)
        if isinstance(target, str):
            _check_text(target, limits, "target")
        elif omit_eos:
            raise InvalidRequest(
                "omit_eos", "must be false with target_tokens: they end with the end token, or are open without it"
            )
        options = dataclasses.replace(options, token_logprobs=True)
        self._check_abilities(options)
        build = functools.partial(
            self._build_scoring, request_id, text, target, options, languages, omit_eos, deadline_s
        )
        is_quick = len(text) + len(target) <= INLINE_BYTES
        return build() if is_quick else await asyncio.to_thread(build)

    async def embedding(
        self,
        request_id: str,
        text: str,
        pooling: Pooling = "mean",
        *,
        languages: Languages = NO_LANGUAGES,
        deadline_s: float,
        limits: TextLimits,
    ) -> Request:
        """The same for a text that is only to be embedded. Its answer is there after one step, of whatever token."""
        if pooling == "pooler" and not (self.encoding and self.encoding.has_pooler):
            raise Unsupported(f"model {self.name!r} has no pooler; ask for pooling mean or cls")
        return await self._reading(request_id, text, EncoderRequest(pooling=pooling), languages, deadline_s, limits)

    async def filling(
        self, request_id: str, text: str, top_k: int, *, deadline_s: float, limits: TextLimits
    ) -> Request:
        """The same for a text with masks, whose `top_k` likeliest tokens are to be told."""
        if not self.mask:
            raise Unsupported(f"model {self.name!r} fills no masks; name one that was trained with a masked head")
        if not 1 <= top_k <= MAX_FILLINGS:
            raise InvalidRequest("top_k", f"must be 1..{MAX_FILLINGS}, got {top_k}")
        return await self._reading(request_id, text, EncoderRequest(top_k=top_k), NO_LANGUAGES, deadline_s, limits)

    async def classification(
        self, request_id: str, text: str, *, token_weights: bool, deadline_s: float, limits: TextLimits
    ) -> Request:
        """The same for a text whose labels are to be told."""
        if not (self.encoding and self.encoding.labels):
            raise Unsupported(f"model {self.name!r} tells no labels; name one that was trained to classify")
        if token_weights and not self.encoding.has_token_weights:
            raise Unsupported(
                f"model {self.name!r} has no weights of tokens: it does not classify by attention pooling"
            )
        reading = EncoderRequest(labels=True, token_weights=token_weights)
        return await self._reading(request_id, text, reading, NO_LANGUAGES, deadline_s, limits)

    async def _reading(
        self,
        request_id: str,
        text: str,
        reading: EncoderRequest,
        languages: Languages,
        deadline_s: float,
        limits: TextLimits,
    ) -> Request:
        _check_text(text, limits)
        ids = self._language_ids(languages, has_target=False)
        build = functools.partial(self._build_reading, request_id, text, reading, ids, deadline_s)
        return build() if len(text) <= INLINE_BYTES else await asyncio.to_thread(build)

    def _build_reading(
        self, request_id: str, text: str, reading: EncoderRequest, languages: Mapping[str, int], deadline_s: float
    ) -> Request:
        source = self._source(text, languages, has_masks=reading.top_k > 0)
        if reading.top_k:
            reading = dataclasses.replace(reading, mask_positions=self._places(source))
        prompt = (self.manifest.tokens.bos,) if self.manifest.limits.max_target_len else ()
        return Request(
            request_id=request_id,
            source=source,
            prompt=prompt,
            max_tokens=len(prompt),
            deadline_s=deadline_s,
            encoder_request=reading,
            is_streamed=False,
        )

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Which characters of a text each token of it stands for, as its model reads it: none for the tokens around
        it."""
        framing, end = self.manifest.template, len(text)
        before, after = [(0, 0)] * len(framing.source_prefix), [(end, end)] * len(framing.source_suffix)
        return [*before, *self.tokenizer.offsets(text), *after]

    def _places(self, source: Sequence[int]) -> tuple[int, ...]:
        """Where the masks are."""
        assert self.encoding is not None
        places = tuple(place for place, token in enumerate(source) if token == self.encoding.mask)
        if not 1 <= len(places) <= MAX_MASKS:
            raise InvalidRequest("text", f"must have 1..{MAX_MASKS} masks, written {self.mask}, got {len(places)}")
        return places

    async def attention(
        self,
        request_id: str,
        text: str,
        target: str | Sequence[int] | None,
        choice: AttentionChoice,
        *,
        languages: Languages = NO_LANGUAGES,
        text_only: bool = False,
        max_tokens: int = 0,
        deadline_s: float,
        limits: TextLimits,
    ) -> tuple[Request, AttentionChoice]:
        """The same for a text whose attention is to be told, with what of it was chosen. target: the answer to look at,
        as text or as token ids; None: the model answers first, unless text_only. max_tokens: of that answer; 0: as many
        as the model has room for, and as can be told."""
        _check_text(text, limits)
        if isinstance(target, str):
            _check_text(target, limits, "target")
        if not self.manifest.attention_maps:
            raise Unsupported(f"model {self.name!r} tells no attention; export it with --attention")
        if target is not None and text_only:
            raise InvalidRequest("text_only", "must be false with a target")
        if max_tokens and (target is not None or text_only):
            raise InvalidRequest("max_tokens", f"must be 0 where the model does not answer, got {max_tokens}")
        choice = choice.checked(self.manifest.attention_maps, text_only=text_only)
        build = functools.partial(self._build_attention, text, target, choice, languages, text_only, max_tokens)
        source, prompt, reads, most = await asyncio.to_thread(build)
        request = Request(
            request_id=request_id,
            source=source,
            prompt=reads[:1] or prompt,
            max_tokens=most if prompt else 0,
            deadline_s=deadline_s,
            # without a decoder, it is the encoder's turn alone
            encoder_request=None if prompt else EncoderRequest(pooling="cls"),
            is_streamed=False,
            attention_kinds=choice.kinds,
            forced_target=reads,
        )
        return request, choice

    def _build_attention(
        self,
        text: str,
        target: str | Sequence[int] | None,
        choice: AttentionChoice,
        languages: Languages,
        text_only: bool,
        max_tokens: int,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
        """Source and prompt; what the decoder is to read, () where it answers first; and the most tokens of that."""
        reads: tuple[int, ...] = ()
        prompt: tuple[int, ...]
        if choice.kinds == ("encoder",):
            source = self._source(text, self._language_ids(languages, has_target=False))
            prompt = reads = (self.manifest.tokens.bos,) if self.manifest.limits.max_target_len else ()
        else:
            source, prompt = self._framed(text, languages)
        if choice.kinds == ("encoder",):
            told = Lengths(len(source), 0)
        elif text_only or target is not None:
            reads = (*prompt, *self._target(target, prompt)[:-1]) if target is not None else prompt
            told = Lengths(len(source), len(reads))
        else:
            room = self.room(len(prompt))
            if not 0 <= max_tokens <= room:
                raise InvalidRequest("max_tokens", f"must be 0..{room} here, got {max_tokens}")
            fitting = range(1, (max_tokens or room) + 1)
            if not max_tokens:  # an answer that ends earlier is told all the same
                fits = functools.partial(self._tells, choice, len(source), len(prompt))
                fitting = fitting[: bisect.bisect(fitting, False, key=lambda count: not fits(count))]
            told = Lengths(len(source), len(prompt) + max(fitting, default=1) - 1)
        self._check_told(choice, told)
        if self.open_attention is not None:
            self.open_attention()
        return source, prompt, reads, 1 if reads else told.target - len(prompt) + 1

    def _target(self, target: str | Sequence[int], prompt: Sequence[int], *, omit_eos: bool = False) -> tuple[int, ...]:
        """The tokens of an answer that is given; of a text the end token is one, unless it is open."""
        if isinstance(target, str):
            name, tokens = "target", tuple(self._encode(target, "target", is_target=True))
            tokens = tokens if omit_eos else (*tokens, self.manifest.tokens.eos)
        else:
            name, tokens = "target_tokens", tuple(target)
            self._check_tokens(name, tokens)
            self._check_open(name, tokens[:-1])
        room = self.room(len(prompt))
        if not 1 <= len(tokens) <= room:
            raise InvalidRequest(name, f"must be 1..{room} tokens, got {len(tokens)}")
        return tokens

    def _tells(self, choice: AttentionChoice, source: int, prompt: int, max_tokens: int) -> bool:
        """Whether the attention of an answer of so many tokens can be told."""
        lengths, seen = Lengths(source, prompt + max_tokens - 1), self.manifest.attention_maps
        told, computed = choice.told_bytes(seen, lengths), computed_bytes(seen, lengths)
        return told <= MAX_ANSWER_BYTES and computed <= MAX_ATTENTION_BYTES

    def _check_told(self, choice: AttentionChoice, lengths: Lengths) -> None:
        """What is told must fit into a message that clients take, and what is computed into memory."""
        seen = self.manifest.attention_maps
        told, computed = choice.told_bytes(seen, lengths), computed_bytes(seen, lengths)
        if told > MAX_ANSWER_BYTES:
            raise InvalidRequest(
                "text",
                f"must come to at most {MAX_ANSWER_BYTES} bytes of attention, this would be {told}; ask for fewer "
                "kinds, layers or heads, for mean_heads or mean_layers, or for less text",
            )
        if computed > MAX_ATTENTION_BYTES:
            raise InvalidRequest(
                "text",
                f"must need at most {MAX_ATTENTION_BYTES} bytes of attention to be computed, whatever is told of it, "
                f"this would be {computed}; ask for less text",
            )

    def _build(
        self,
        request_id: str,
        text: str,
        options: DecodingOptions,
        languages: Languages,
        deadline_s: float,
        is_streamed: bool,
    ) -> Request:
        """May take long: not on the event loop, unless text and options are known to be small."""
        source, prompt = self._framed(text, languages)
        max_tokens = self._max_tokens(options, source, prompt)
        prefix = self._prefix(options, max_tokens)
        forced = () if options.prefix_bias else prefix
        self._check_size(options, max_tokens, len(source))
        rules = build_logits_processors(
            options,
            vocabulary=self.vocabulary,
            prompt=prompt,
            max_tokens=max_tokens,
            prefix=prefix,
        )
        grammars = [Grammar(kind, text, self.vocabulary, width=options.width) for kind, text in options.grammars]
        self._check_prefix(options, forced, [*rules, *grammars])
        phrases = self._phrases(options, forced, max_tokens, before="" if self.has_source else text)
        return Request(
            request_id=request_id,
            source=source,
            prompt=prompt,
            max_tokens=max_tokens,
            stop=options.stop,
            deadline_s=deadline_s,
            options=options,
            prefix=forced,
            logits_processors=(*rules, *grammars, phrases) if phrases else (*rules, *grammars),
            shortlist=self._words(options, source, prefix),
            seed=_seed(options),
            is_streamed=is_streamed,
        )

    def _words(self, options: DecodingOptions, source: Sequence[int], prefix: Sequence[int]) -> tuple[int, ...]:
        """What an answer may consist of; (): of anything. What is given is always possible, and so is an end."""
        if not options.use_shortlist or self.shortlist is None:
            return ()
        return tuple(sorted(self.shortlist.allowed(source, given=(*prefix, *self.vocabulary.eos_ids))))

    def _prefix(self, options: DecodingOptions, max_tokens: int) -> tuple[int, ...]:
        name, prefix = "options.prefix_tokens", options.prefix_tokens
        if options.prefix:
            name, prefix = "options.prefix", tuple(self._encode(options.prefix, "options.prefix", is_target=True))
        if len(prefix) > max_tokens:
            raise InvalidRequest(
                name,
                f"must be at most {max_tokens} tokens, which {_bound(options, max_tokens)} leaves, got {len(prefix)}",
            )
        answers = max(options.num_hypotheses, options.num_sequences)
        if answers > 1 and len(prefix) == max_tokens and not options.prefix_bias:
            raise InvalidRequest(
                name,
                f"must be fewer than the {max_tokens} tokens that {_bound(options, max_tokens)} leaves, "
                f"got {len(prefix)}: all {answers} answers would be the same",
            )
        return prefix

    def _check_prefix(self, options: DecodingOptions, prefix: Sequence[int], rules: Sequence[LogitsProcessor]) -> None:
        """Refuses a forced prefix that the other constraints rule out: no answer could meet both."""
        name = "prefix" if options.prefix else "prefix_tokens"
        strict: list[LogitsProcessor] = [
            rule for rule in rules if isinstance(rule, BannedTexts | AllowedTokens | Grammar)
        ]
        for rule in strict:
            state = rule.initial_state()
            for place, token in enumerate(prefix):
                scores_V = np.zeros(len(self.vocabulary), np.float32)
                if rule.applies(state, prefix[:place]):
                    rule.apply(scores_V, state, prefix[:place])
                if scores_V[token] == -np.inf:
                    raise InvalidRequest(f"options.{name}", f"token {place} is ruled out by another constraint")
                state = rule.next_state(state, token)

    def _phrases(
        self, options: DecodingOptions, prefix: Sequence[int], max_tokens: int, *, before: str
    ) -> LexicalConstraints | None:
        """prefix: what is forced; phrases may be in it already. before: the text that the answer continues."""
        if not options.phrases:
            return None
        variants = [
            phrase_variants(self.tokenizer.target, text, field=f"options.phrases[{place}]")
            for place, text in enumerate(options.phrases)
        ]
        phrases = LexicalConstraints(
            variants,
            eos_ids=self.manifest.tokens.ends,
            ordered=options.ordered_phrases,
            max_tokens=max_tokens,
            vocabulary=self.vocabulary,
            before=before,
        )
        needed = (
            len(prefix) + phrases.remaining(functools.reduce(phrases.next_state, prefix, phrases.initial_state())) + 1
        )
        if needed > max_tokens:
            raise InvalidRequest(
                "options.phrases",
                f"must need at most {max_tokens} tokens, which {_bound(options, max_tokens)} leaves, end included, "
                f"got {needed}",
            )
        return phrases

    def _build_scoring(
        self,
        request_id: str,
        text: str,
        target: str | Sequence[int],
        options: DecodingOptions,
        languages: Languages,
        omit_eos: bool,
        deadline_s: float,
    ) -> Request:
        source, prompt = self._framed(text, languages)
        tokens = self._target(target, prompt, omit_eos=omit_eos)
        self._check_size(options, len(tokens), len(source))
        return Request(
            request_id=request_id,
            source=source,
            prompt=prompt,
            max_tokens=len(tokens),
            deadline_s=deadline_s,
            options=options,
            prefix=tokens,
            is_streamed=False,
        )

    def _framed(self, text: str, languages: Languages) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Source and prompt of a text, with the tokens that frame them."""
        ids = self._language_ids(languages)
        start = _filled(self.manifest.template.target_prefix, ids)
        if self.has_source:
            return self._source(text, ids), start
        prompt = (*start, *self._encode(text, "text"))
        if not prompt:
            raise InvalidRequest(
                "text", f"must have at least one token, because model {self.name!r} has no start token to go on from"
            )
        self._check_length(prompt)
        return (), prompt

    def _source(self, text: str, languages: Mapping[str, int], *, has_masks: bool = False) -> tuple[int, ...]:
        """has_masks: the mask's text is the mask."""
        framing = self.manifest.template
        before, after = _filled(framing.source_prefix, languages), _filled(framing.source_suffix, languages)
        source = (*before, *self._encode(text, "text", has_masks=has_masks), *after)
        self._check_length(source)
        return source

    def _check_length(self, tokens: Sequence[int]) -> None:
        if len(tokens) > self.max_prompt_tokens:
            raise InvalidRequest(
                "text",
                f"must be at most {self.max_prompt_tokens} tokens, got {len(tokens)}; shorten or split it",
            )

    def _language_ids(self, languages: Languages, *, has_target: bool = True) -> dict[str, int]:
        """The ids for the places that the framing leaves to languages. has_target: the decoder is to read its part."""
        framing = self.manifest.template
        used = {*framing.source_special_tokens, *(framing.target_prefix if has_target else ())}
        ids = {}
        for field, code in ((SOURCE_LANGUAGE, languages.source), (TARGET_LANGUAGE, languages.target)):
            if field in used:
                ids[field] = self._language_id(field, code)
            elif code and field not in framing.target_prefix:
                reason = f"reads no {field}" if framing.languages else "has no languages to choose from"
                raise InvalidRequest(field, f"must be left out: model {self.name!r} {reason}")
        return ids

    def _language_id(self, field: str, code: str) -> int:
        known = self.manifest.template.languages
        if code in known:
            return known[code]
        if close := difflib.get_close_matches(code, known, n=1, cutoff=0.4):  # de for deu_Latn
            raise InvalidRequest(field, f"unknown code {shorten(code, 64)!r}; did you mean {close[0]!r}?")
        shown = shorten(", ".join(sorted(known)), SHOWN_CODES)
        told = f"unknown code {shorten(code, 64)!r}; must be" if code else "must be given:"
        raise InvalidRequest(field, f"{told} one of {shown}")

    def _encode(self, text: str, field: str, *, is_target: bool = False, has_masks: bool = False) -> list[int]:
        tokenizer, plain = self.tokenizer.target if is_target else self.tokenizer, text
        if has_masks:
            tokenizer, plain = self._mask_tokenizer, text.replace(self.mask, " ")
        # A batch is read by other threads, without the GIL: for a short text a detour of 10 microseconds.
        tokens = tokenizer.encode(text) if len(text) <= INLINE_BYTES else tokenizer.encode_batch([text])[0]
        if self.manifest.tokens.unk in tokens and (unknown := tokenizer.unknown_words(plain)):
            raise InvalidRequest(field, _unknown_words(unknown, tokenizer))
        return tokens

    @functools.cached_property
    def _mask_tokenizer(self) -> Tokenizer:
        assert self.encoding is not None
        assert self.encoding.mask is not None
        return self.tokenizer.matching_special(self.encoding.mask)

    def _max_tokens(self, options: DecodingOptions, source: Sequence[int], prompt: Sequence[int]) -> int:
        """How many tokens may be new."""
        room = self.room(len(prompt))
        if not 0 <= options.max_tokens <= room:
            beside = "" if source else f" beside a prompt of {len(prompt)} tokens"
            raise InvalidRequest(
                "options.max_tokens",
                f"must be 1..{room}{beside}, or 0 for the model's own limit, got {options.max_tokens}",
            )
        most = options.max_tokens or room
        if options.max_length_ratio:
            most = min(most, max(1, math.ceil(options.max_length_ratio * len(source) - 1e-9)))  # 0.1 * 30 is above 3
        if options.min_tokens > most:
            raise InvalidRequest("options.min_tokens", f"must be 0..{most} here, got {options.min_tokens}")
        return most

    # ---- what this model can do

    def _check_abilities(self, options: DecodingOptions) -> None:
        """Raises Unsupported for what the bundle lacks, InvalidRequest for what does not fit it."""
        if self.has_source and options.echo:
            raise InvalidRequest("options.echo", "must be false for a translation, got true")
        if not self.has_source and options.max_length_ratio:
            raise InvalidRequest(
                "options.max_length_ratio",
                f"must be 0 for a model without a source, got {options.max_length_ratio:g}; set max_tokens",
            )
        for name in ("beam_size", "num_sequences", "num_hypotheses"):
            if (width := getattr(options, name)) > self.max_hypotheses:
                raise InvalidRequest(f"options.{name}", f"must be 1..{self.max_hypotheses} on this server, got {width}")
        self._check_attention(options)
        if options.use_shortlist and self.shortlist is None:
            raise Unsupported(f"model {self.name!r} has no shortlist; leave use_shortlist out, or export it with one")
        self._check_tokens("options.prefix_tokens", options.prefix_tokens)
        self._check_open("options.prefix_tokens", options.prefix_tokens)
        self._check_tokens("options.allowed_tokens", options.allowed_tokens)
        for token in options.logit_bias:
            if not 0 <= token < self.manifest.limits.vocab_size:
                raise InvalidRequest(
                    f"options.logit_bias[{token}]", f"must be a token 0..{self.manifest.limits.vocab_size - 1}"
                )

    def _check_attention(self, options: DecodingOptions) -> None:
        asked = [name for name in ("alignment", "coverage_penalty") if getattr(options, name) not in ("none", 0.0)]
        if not asked:
            return
        attention = self.manifest.alignment
        if attention is None:
            fix = "export it with --attention" if self.has_source else "only translations have it"
            raise Unsupported(f"model {self.name!r} tells no attention, which {asked[0]} needs; {fix}")
        if options.alignment_layer > attention.layers:
            raise InvalidRequest(
                "options.alignment_layer", f"must be 0..{attention.layers}, got {options.alignment_layer}"
            )
        if (count := len(options.alignment_heads)) > attention.heads:
            raise InvalidRequest("options.alignment_heads", f"must be at most {attention.heads} heads, got {count}")
        for place, head in enumerate(options.alignment_heads):
            if head > attention.heads:
                raise InvalidRequest(f"options.alignment_heads[{place}]", f"must be 1..{attention.heads}, got {head}")

    def _check_tokens(self, field: str, tokens: Sequence[int]) -> None:
        vocab_size = self.manifest.limits.vocab_size
        for place, token in enumerate(tokens):
            if not 0 <= token < vocab_size:
                raise InvalidRequest(f"{field}[{place}]", f"must be a token 0..{vocab_size - 1}, got {token}")

    def _check_open(self, field: str, tokens: Sequence[int]) -> None:
        """Refuses an end token in the midst of an answer."""
        if (eos := self.manifest.tokens.eos) in tokens:
            raise InvalidRequest(f"{field}[{tokens.index(eos)}]", f"must not be the end token, got {eos}")

    def size(self, options: DecodingOptions, max_tokens: int, source_len: int) -> Size:
        """What answers of max_tokens would need."""
        answers = max(options.num_hypotheses, options.num_sequences) * max_tokens
        numbers = TOKEN_BYTES * answers * (1 + options.top_logprobs)
        attention = self.manifest.alignment
        if options.alignment == "none" or attention is None:
            return Size(numbers, 0)
        weights = 4 * answers * source_len
        is_soft = options.alignment in ("soft", "both")
        return Size(numbers + (weights if is_soft else 0), weights * attention.layers * attention.heads)

    def _check_size(self, options: DecodingOptions, max_tokens: int, source_len: int) -> None:
        """What is told must fit into a message that clients take, and attention into memory."""
        size = self.size(options, max_tokens, source_len)
        is_soft = options.alignment in ("soft", "both")
        if size.told > MAX_ANSWER_BYTES and (is_soft or options.top_logprobs):
            name = "alignment" if is_soft else "top_logprobs"
            raise InvalidRequest(
                f"options.{name}",
                f"must tell at most {MAX_ANSWER_BYTES} bytes, this could be {size.told}; "
                "ask for fewer answers, fewer max_tokens or less beside them",
            )
        if size.attention > MAX_ATTENTION_BYTES:
            raise InvalidRequest(
                "options.alignment",
                f"must need at most {MAX_ATTENTION_BYTES} bytes of attention, this could be {size.attention}; "
                "ask for fewer answers or fewer max_tokens",
            )


def _filled(frame: Sequence[int | str], languages: Mapping[str, int]) -> tuple[int, ...]:
    """A part of the framing, with the ids of the languages in their places."""
    return tuple(token if isinstance(token, int) else languages[token] for token in frame)


def _bound(options: DecodingOptions, max_tokens: int) -> str:
    """The option that says that an answer has at most max_tokens."""
    return "max_length_ratio" if options.max_length_ratio and max_tokens != options.max_tokens else "max_tokens"


def _seed(options: DecodingOptions) -> int:
    if options.seed is not None:
        return options.seed
    return secrets.randbits(53) if options.is_sampling else 0  # 53: JSON readers with float64 keep it


def _check_bytes(text: str, limits: TextLimits, field: str) -> None:
    size = len(text.encode())
    if size > limits.max_text_bytes:
        raise InvalidRequest(field, f"must be at most {limits.max_text_bytes} bytes, got {size}; shorten or split it")


def _check_text(text: str, limits: TextLimits, field: str = "text") -> None:
    _check_bytes(text, limits, field)
    if not text.strip():
        raise InvalidRequest(field, "must not be empty or blank")


def _check_stop(stop: Sequence[str], limits: TextLimits) -> None:
    if len(stop) > limits.max_stop_strings:
        raise InvalidRequest("options.stop", f"must be at most {limits.max_stop_strings} strings, got {len(stop)}")
    for place, text in enumerate(stop):
        if not 1 <= len(text.encode()) <= limits.max_stop_bytes:
            raise InvalidRequest(
                f"options.stop[{place}]", f"must be 1..{limits.max_stop_bytes} bytes, got {len(text.encode())}"
            )


def _unknown_words(words: Sequence[str], tokenizer: Tokenizer) -> str:
    pieces = set(tokenizer.pieces)
    marks = [word for word in words if word.encode() in pieces]
    if marks and len(marks) == len(words):
        shown = " ".join(marks[:SHOWN_WORDS])
        return f"the model knows {shown} only directly behind a word: not first, and without a blank before it"
    shown = ", ".join(shorten(word, SHOWN_CHARACTERS) for word in words[:SHOWN_WORDS])
    more = f" and {len(words) - SHOWN_WORDS} more" if len(words) > SHOWN_WORDS else ""
    return f"the model's closed vocabulary does not know these words: {shown}{more}; use other words"


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class Catalog:
    """The models of one server by name."""

    def __init__(self, models: Sequence[ServedModel], limits: TextLimits | None = None) -> None:
        self.limits = limits or TextLimits()
        self._models = {model.name: model for model in sorted(models, key=lambda model: model.name)}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def find(self, name: str, *tasks: Task, can: Callable[[ServedModel], bool] = lambda _: True) -> ServedModel:
        """The model of that name, or the only one that fits when the name is empty: one of these tasks, if any are
        named, and of several one that `can` do what is asked.

        Raises ModelNotFound; Unsupported if its task is another, or no model has that task; InvalidRequest if the name
        is empty and several fit.
        """
        if not name:
            return self._only(tasks, can)
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound(shorten(name, 64), self._names())
        if tasks and model.manifest.task not in tasks:
            raise Unsupported(
                f"model {name!r} is made for {model.manifest.task}, not {' or '.join(tasks)}; "
                f"call {SERVICES[model.manifest.task][0]}, or name another model"
            )
        return model

    def _only(self, tasks: tuple[Task, ...], can: Callable[[ServedModel], bool]) -> ServedModel:
        fitting = [model for model in self._models.values() if not tasks or model.manifest.task in tasks]
        if not fitting:
            raise Unsupported(f"no model for {' or '.join(tasks)} is served here; models: {', '.join(self._names())}")
        fitting = [model for model in fitting if can(model)] or fitting
        if len(fitting) > 1:
            names = ", ".join(model.name for model in fitting)
            raise InvalidRequest("model", f"must be named when several fit; one of: {names}")
        return fitting[0]

    def _names(self) -> list[str]:
        return list(self._models)
