"""Texts, options and selections of a client → a `Request` that fits one model, every field checked.

Checks come in the order of their cost: text limits, options alone, the model's capabilities, then what needs tokens.
Nothing here knows gRPC or engines.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import secrets
from collections.abc import Sequence

from export.bundle.manifest import Manifest
from service.attention_request import AttentionChoice, Lengths
from service.edge.requests.encoder_request_builder import EncoderRequestBuilder
from service.edge.requests.prompt_encoder import NO_LANGUAGES, ContextSentence, LanguagePair, Room
from service.edge.requests.request_limits import (
    attention_excess,
    check_capabilities,
    check_response_size,
)
from service.edge.requests.translation_encoder import TranslationEncoder
from service.encoder_request import EncoderRequest
from service.errors import InvalidRequest, Unsupported
from service.option_checks import check, check_scoring
from service.options import DecodingOptions
from service.phrase_variants import phrase_variants
from service.request import Request


class RequestBuilder(EncoderRequestBuilder):
    """Builds the request of one call to one model. Every method raises InvalidRequest and Unsupported, and takes
    milliseconds for a long text."""

    def check_length(self, text: str) -> None:
        """Refuses a text that is certainly too long. Quick, so that it need not be prepared in a thread."""
        self._limits.check_text(text)
        self._prompts.check_length(text)

    def decoding(
        self,
        text: str,
        options: DecodingOptions,
        languages: LanguagePair | None = None,
        *,
        context: Sequence[ContextSentence] = (),
        terms: Sequence[tuple[str, str]] = (),
        is_streamed: bool = True,
        has_confidence: bool = False,
    ) -> Request:
        """A request to translate a text, or without `languages` to continue it. context: sentences before it, of models
        that have it. terms: of a glossary, that the text has; only prompts of templates read them. has_confidence: that
        of the answer is returned."""
        self.check_options(options)
        self._limits.check_text(text)
        encoder = TranslationEncoder.of(self._model) if languages is not None else None
        check_capabilities(self._model, options, is_translation=self._model.has_source or encoder is not None)
        if languages is not None and encoder is not None:
            return self._prompted(encoder, text, options, languages, context, terms, is_streamed=is_streamed)
        source, prompt = self._prompts.source_and_prompt(text, languages or NO_LANGUAGES)
        max_tokens = self._max_tokens(options, source, prompt)
        if context:
            given = len(self._model.tokenizer.target.encode(options.prefix)) if options.prefix else 0
            source, prompt = self._prompts.in_context(
                source, prompt, context, new_tokens=options.max_tokens, least=max(options.min_tokens, given + 1)
            )
            max_tokens = min(max_tokens, self._model.max_new_tokens(len(prompt)))
        words = self._model.words_per_token if has_confidence else 0
        return self._decoding(source, prompt, text, options, max_tokens, is_streamed=is_streamed, words_per_token=words)

    def _prompted(
        self,
        encoder: TranslationEncoder,
        text: str,
        options: DecodingOptions,
        languages: LanguagePair,
        context: Sequence[ContextSentence],
        terms: Sequence[tuple[str, str]],
        *,
        is_streamed: bool,
    ) -> Request:
        """A request of a model that translates by its prompts."""
        least = max(options.max_tokens, options.min_tokens, 1)
        prompt = encoder.prompt(text, languages, terms=terms, context=context, new_tokens=least)
        measured = tuple(self._model.tokenizer.encode(text)) if options.max_length_ratio else ()
        max_tokens = self._max_tokens(options, measured, prompt)
        if options.prefix:
            options = dataclasses.replace(options, prefix=encoder.template.before_answer + options.prefix)
        request = self._decoding((), prompt, "", options, max_tokens, is_streamed=is_streamed)
        return dataclasses.replace(request, stop=(*options.stop, *encoder.template.stop), trims_text=True)

    def continuation(
        self, prompt: Sequence[int], options: DecodingOptions, *, is_streamed: bool = True, field: str = "prompt"
    ) -> Request:
        """A request to continue a prompt of token ids, exactly as given. Models without a source only. field: the name
        of the prompt in errors."""
        assert not self._model.has_source, self._model.name
        self.check_options(options)
        check_capabilities(self._model, options, is_translation=False)
        self._prompts.check_prompt(prompt, field)
        text = self._model.tokenizer.decode(prompt)
        max_tokens = self._max_tokens(options, (), prompt)
        return self._decoding((), tuple(prompt), text, options, max_tokens, is_streamed=is_streamed)

    def check_options(self, options: DecodingOptions) -> None:
        """Checks what needs no model."""
        self._limits.check_bytes(options.prefix, "options.prefix")  # before `check`, which looks for bad words in it
        self._limits.check_stop(options.stop)
        check(options)

    def _decoding(
        self,
        source: tuple[int, ...],
        prompt: tuple[int, ...],
        text: str,
        options: DecodingOptions,
        max_tokens: int,
        *,
        is_streamed: bool,
        words_per_token: int = 0,
    ) -> Request:
        prefix = self._prefix(options, max_tokens)
        check_response_size(self._model, options, max_tokens, len(source), words_per_token=words_per_token)
        return self._request(
            source=source,
            prompt=prompt,
            max_tokens=max_tokens,
            words_per_token=words_per_token,
            stop=options.stop,
            options=options,
            prefix=() if options.prefix_bias else prefix,
            preferred_prefix=prefix if options.prefix_bias else (),
            continued_text="" if self._model.has_source else text,
            shortlist=self._shortlist(options, source, prefix),
            seed=seed_of(options),
            is_streamed=is_streamed,
        )

    def scoring(
        self,
        text: str | Sequence[int],
        target: str | Sequence[int],
        options: DecodingOptions,
        languages: LanguagePair = NO_LANGUAGES,
        *,
        omit_eos: bool = False,
    ) -> Request:
        """A request to score a target, given as text or as token ids. text: likewise, ids exactly as given and in
        models without a source only. omit_eos: a text gets no end token."""
        check_scoring(options)
        if not isinstance(text, str) and self._model.has_source:
            raise InvalidRequest("text_tokens", f"must be empty: model {self._model.name!r} reads a source; send text")
        if isinstance(text, str) and (self._model.has_source or text):
            self._limits.check_text(text)
        if isinstance(target, str):
            self._limits.check_text(target, "target")
        elif omit_eos:
            raise InvalidRequest("omit_eos", "must be false with target_tokens, which are scored exactly as given")
        options = dataclasses.replace(options, token_logprobs=True)
        check_capabilities(self._model, options, is_translation=self._model.has_source)
        if isinstance(text, str) and any(languages) and (encoder := TranslationEncoder.of(self._model)) is not None:
            source, prompt = tuple[int, ...](), encoder.prompt(text, languages)
            if isinstance(target, str):  # ends as the answers of the model do
                target, omit_eos = encoder.template.before_answer + target, omit_eos or bool(encoder.template.stop)
        elif isinstance(text, str):
            source, prompt = self._prompts.source_and_prompt(text, languages)
        else:
            self._prompts.check_prompt(text, "text_tokens")
            source, prompt = (), tuple(text)
        tokens = self._prompts.target(target, prompt, omit_eos=omit_eos)
        check_response_size(self._model, options, len(tokens), len(source))
        return self._request(
            source=source, prompt=prompt, max_tokens=len(tokens), options=options, prefix=tokens, is_streamed=False
        )

    def attention(
        self,
        text: str,
        target: str | Sequence[int] | None,
        choice: AttentionChoice,
        languages: LanguagePair = NO_LANGUAGES,
        *,
        text_only: bool = False,
        max_tokens: int = 0,
    ) -> tuple[Request, AttentionChoice]:
        """A request for the attention of one pass, and its selection with all kinds named.

        target: the target to attend, as text or token ids; None: the model generates one first, unless text_only.
        max_tokens: of a generated target; 0: as many as the model and the response have room for.
        """
        self._limits.check_text(text)
        if isinstance(target, str):
            self._limits.check_text(target, "target")
        model, prompts, maps = self._model, self._prompts, self._model.manifest.attention_maps
        if not maps:
            raise Unsupported(f"model {model.name!r} has no attention outputs; {_instead_of_maps(model.manifest)}")
        if target is not None and text_only:
            raise InvalidRequest("text_only", "must be false with a target")
        if max_tokens and (target is not None or text_only):
            raise InvalidRequest("max_tokens", f"must be 0 unless the model generates the target, got {max_tokens}")
        choice = choice.checked(maps, text_only=text_only)
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
                new_tokens = self._max_attended_tokens(choice, len(source), len(prompt), max_tokens)
            lengths = Lengths(len(source), len(forced) or len(prompt) + new_tokens - 1)
        if problem := attention_excess(maps, choice, lengths):
            raise InvalidRequest("text", problem)
        request = self._request(
            source=source,
            prompt=forced[:1] or prompt,
            max_tokens=new_tokens if prompt else 0,
            encoder_request=None if prompt else EncoderRequest(pooling="cls"),  # without a decoder: one encoder pass
            is_streamed=False,
            attention_kinds=choice.kinds,
            forced_target=forced,
        )
        return request, choice

    def _shortlist(self, options: DecodingOptions, source: Sequence[int], prefix: Sequence[int]) -> tuple[int, ...]:
        """The tokens that may be chosen; () for all. Prefix, end tokens and those of required phrases are always among
        them."""
        if not options.use_shortlist or self._model.shortlist is None:
            return ()
        given = {*prefix, *self._model.manifest.tokens.ends}
        allowed = given.union(options.allowed_tokens)
        for index, text in enumerate(options.phrases):
            for variant in phrase_variants(self._model.tokenizer.target, text, field=f"options.phrases[{index}]"):
                if not options.allowed_tokens or allowed.issuperset(variant):
                    given.update(variant)
        return tuple(sorted(self._model.shortlist.allowed(source, given=given)))

    def _max_tokens(self, options: DecodingOptions, source: Sequence[int], prompt: Sequence[int]) -> int:
        """The bound of new tokens, from max_tokens, max_length_ratio and the model."""
        limit = self._model.max_new_tokens(len(prompt))
        if options.max_tokens > limit:
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

    def _max_attended_tokens(self, choice: AttentionChoice, source: int, prompt: int, max_tokens: int) -> int:
        """The length of a generated target: the requested one, else the longest one whose attention can be returned, at
        least 1."""
        limit, maps = self._model.max_new_tokens(prompt), self._model.manifest.attention_maps
        if not 0 <= max_tokens <= limit:
            raise InvalidRequest("max_tokens", f"must be 0..{limit} here, got {max_tokens}")

        def is_too_long(count: int) -> bool:
            return bool(attention_excess(maps, choice, Lengths(source, prompt + count - 1)))

        return max_tokens or max(1, bisect.bisect(range(1, limit + 1), False, key=is_too_long))

    def _prefix(self, options: DecodingOptions, max_tokens: int) -> tuple[int, ...]:
        name, prefix = "options.prefix_tokens", options.prefix_tokens
        limit = f"{max_tokens} tokens, the limit by {options.length_limit(max_tokens)}, got"
        room = Room(max_tokens, 0, lambda count: f"must be at most {limit} {count}")
        if options.prefix:
            name = "options.prefix"
            prefix = tuple(self._prompts.encode(options.prefix, name, room, is_target=True))
            self._prompts.check_known(options.prefix, prefix, name)
        elif len(prefix) > max_tokens:
            raise InvalidRequest(name, room.problem(str(len(prefix))))
        count = max(options.num_hypotheses, options.num_sequences)
        if count > 1 and len(prefix) == max_tokens and not options.prefix_bias:
            raise InvalidRequest(
                name, f"must be fewer than {limit} {len(prefix)}: all {count} hypotheses would be the same"
            )
        return prefix


def _instead_of_maps(manifest: Manifest) -> str:
    """What to do with a model without attention maps."""
    if manifest.alignment is not None:  # a recurrent model attends to its source alone
        return "it has the weights over its source: alignment `soft` of a translation"
    if any(state.kind == "self_kv" and state.stride > 1 for one in manifest.variants for state in one.states):
        return "its layers attend to keys of several tokens, of which there are no maps"
    return "export it with --attention"


def seed_of(options: DecodingOptions) -> int:
    """The seed of a request: the given one, else a random one if it samples."""
    if options.seed is not None:
        return options.seed
    return secrets.randbits(53) if options.is_sampling else 0  # 53: JSON readers with float64 keep it exactly
