"""Text of a request → the token ids that one model's encoder and decoder read.

Special tokens and language codes come from the manifest. Decoding options are not known here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from export.bundle.manifest import SOURCE_LANGUAGE, TARGET_LANGUAGE
from model.tokenizer import Tokenizer
from service.edge.models.served_model import ServedModel
from service.edge.requests.request_limits import check_no_end, check_token_ids
from service.errors import InvalidRequest
from service.text.language_codes import LanguageCodes

INLINE_BYTES = 1024  # tokenized on the event loop, in 0.3 ms; longer text in a thread
SHOWN_WORDS = 10  # unknown words in an error: trailing metadata has room for about 8 KiB
SHOWN_CHARACTERS = 24  # of each of them
EMBED_FIX = "shorten or split it, or set truncate"
SHOWN_CODES = 4000  # characters of all language codes


class LanguagePair(NamedTuple):
    """Language codes of a request; empty: not given."""

    source: str = ""
    target: str = ""


NO_LANGUAGES = LanguagePair()


class ContextSentence(NamedTuple):
    """A sentence before the text of a request, and its translation."""

    source: str
    translation: str


ANSWER_FACTOR, ANSWER_TOKENS = 2, 8  # of a text's tokens, and beside them: room that context leaves, as in training


class SpecialTokens(NamedTuple):
    """The ids before and after those of a text."""

    before: tuple[int, ...]
    after: tuple[int, ...]


NO_SPECIAL_TOKENS = SpecialTokens((), ())


class Room(NamedTuple):
    """How many tokens a text may have, beside special ones, and the problem of one with more, from their number."""

    tokens: int
    beside: int
    problem: Callable[[str], str]


class PromptEncoder:
    """Encodes the texts of one model's requests. Raises InvalidRequest with the field's name."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def source_and_prompt(self, text: str, languages: LanguagePair) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens for the encoder, () without one, and those that the decoder starts from."""
        model, ids = self._model, self.language_ids(languages)
        start = _fill(model.manifest.template.target_prefix, ids)
        if model.has_source:
            return self.source(text, ids), start
        prompt = (*start, *self._text(text, beside=len(start)))
        if not prompt:
            raise InvalidRequest(
                "text", f"must have at least one token, because model {model.name!r} has no start token to continue"
            )
        return (), prompt

    def source(self, text: str, language_ids: Mapping[str, int], *, has_masks: bool = False) -> tuple[int, ...]:
        """The tokens for the encoder. has_masks: the mask token's text in `text` is the mask token."""
        before, after = self._around_source(language_ids)
        return (*before, *self._text(text, beside=len(before) + len(after), has_masks=has_masks), *after)

    def embedded(
        self, prompt: str, text: str, language_ids: Mapping[str, int], *, truncate: bool
    ) -> tuple[tuple[int, ...], bool]:
        """The tokens for the encoder of a text to embed after a prompt, and whether the text was truncated. truncate:
        tokens at its end are left out where there are too many."""
        before, after = self._around_source(language_ids)
        room, limit = self._room(len(before) + len(after), EMBED_FIX), self._model.max_prompt_tokens
        if not truncate:
            return (*before, *self.encode(f"{prompt}{text}", "text", room), *after), False
        ids = ids_of(self._model.tokenizer, f"{prompt}{text}", is_long=True)
        kept = ids[: max(room.tokens, 0)]
        if self._model.manifest.tokens.unk in kept and (unknown := self._model.tokenizer.unknown_words(text)):
            raise InvalidRequest("text", unknown_words_problem(unknown, self._model.tokenizer))
        if len(kept) < len(ids) and (own := self.prompt_tokens(prompt)) >= room.tokens:
            problem = f"has {own} tokens, and with {room.beside} special ones leaves none of {limit} for a text"
            raise InvalidRequest("prompt_name", f"must be of a shorter prompt: this one {problem}")
        return (*before, *kept, *after), len(kept) < len(ids)

    def prompt_tokens(self, prompt: str) -> int:
        """The number of tokens of a prompt for embeddings, alone."""
        return len(self._model.tokenizer.encode(prompt)) if prompt else 0

    def in_context(
        self,
        source: tuple[int, ...],
        start: tuple[int, ...],
        context: Sequence[ContextSentence],
        *,
        new_tokens: int = 0,
        least: int = 0,
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The result of `source_and_prompt` with sentences before the text: as many of the last ones as leave room for
        an answer of new_tokens, by default of ANSWER_FACTOR times the text's and some, or `least` if those are more.
        Models with context only."""
        manifest, tokenizer = self._model.manifest, self._model.tokenizer
        assert manifest.context is not None, self._model.name
        limits, template, between = manifest.limits, manifest.template, (manifest.context.separator,)
        text_tokens, place = len(source) - len(template.source_special_tokens), len(template.source_prefix)
        room = limits.max_target_len - (new_tokens or max(least, ANSWER_FACTOR * text_tokens + ANSWER_TOKENS))
        before, prompt, found = tuple[int, ...](), tuple[int, ...](), (source, start)
        for sentence in reversed(context):
            before = (*tokenizer.encode(sentence.source), *between, *before)
            prompt = (*tokenizer.target.encode(sentence.translation), *between, *prompt)
            if len(before) + len(source) > limits.max_source_len or len(start) + len(prompt) > room:
                break
            found = (*source[:place], *before, *source[place:]), (*start, *prompt)
        return found

    def check_prompt(self, prompt: Sequence[int], field: str = "prompt") -> None:
        """Checks a prompt of token ids: those of a vocabulary of whole words know all words."""
        limit = self._model.max_prompt_tokens
        check_token_ids(field, prompt, self._model.manifest.limits.vocab_size)
        if not 1 <= len(prompt) <= limit:
            raise InvalidRequest(field, f"must be 1..{limit} tokens, got {len(prompt)}")
        unk = self._model.manifest.tokens.unk
        if self._model.tokenizer.is_closed and unk in prompt:
            problem = f"must not be the unknown token {unk}: the model's closed vocabulary lacks a word of the text"
            raise InvalidRequest(f"{field}[{prompt.index(unk)}]", problem)

    def target(self, target: str | Sequence[int], prompt: Sequence[int], *, omit_eos: bool = False) -> tuple[int, ...]:
        """The tokens of a given target, 1 to as many as fit after `prompt`. A text is followed by the end token, unless
        `omit_eos`."""
        model, eos = self._model, self._model.manifest.tokens.eos
        limit = model.max_new_tokens(len(prompt))
        if isinstance(target, str):
            name, end = "target", () if omit_eos else (eos,)
            room = Room(limit - len(end), len(end), lambda count: f"must be 1..{limit} tokens, got {count}")
            tokens = (*self.encode(target, name, room, is_target=True), *end)
        else:
            name, tokens = "target_tokens", tuple(target)
            check_token_ids(name, tokens, model.manifest.limits.vocab_size)
            check_no_end(name, tokens[:-1], model.manifest.tokens.ends)
        if not 1 <= len(tokens) <= limit:
            raise InvalidRequest(name, f"must be 1..{limit} tokens, got {len(tokens)}")
        return tokens

    def special_tokens(self, languages: LanguagePair, *, is_target: bool) -> SpecialTokens:
        """Those around the text of a request: of a target those that the decoder starts from, and the end token."""
        manifest, has_source = self._model.manifest, self._model.has_source
        ids = self.language_ids(languages, has_target=is_target or not has_source)
        if has_source and not is_target:
            return self._around_source(ids)
        return SpecialTokens(_fill(manifest.template.target_prefix, ids), (manifest.tokens.eos,) if is_target else ())

    def _around_source(self, language_ids: Mapping[str, int]) -> SpecialTokens:
        template = self._model.manifest.template
        return SpecialTokens(_fill(template.source_prefix, language_ids), _fill(template.source_suffix, language_ids))

    @property
    def count_around(self) -> int:
        """The number of special tokens that `source_and_prompt` puts around a text: each language code is one."""
        template = self._model.manifest.template
        return len(template.source_special_tokens if self._model.has_source else template.target_prefix)

    def language_ids(self, languages: LanguagePair, *, has_target: bool = True) -> dict[str, int]:
        """The ids of the languages that the special tokens include. has_target: those of the decoder too."""
        template, directions = self._model.manifest.template, self._model.directions
        used = {*template.source_special_tokens, *(template.target_prefix if has_target else ())}
        ids = {}
        for field, code, known in (
            (SOURCE_LANGUAGE, languages.source, directions.sources),
            (TARGET_LANGUAGE, languages.target, directions.targets),
        ):
            if field in used:
                ids[field] = template.languages[known_language(field, code, known)]
            elif code and not known and field not in template.target_prefix:
                problem = f"must be left out: model {self._model.name!r} does not say what it translates"
                raise InvalidRequest(field, f"{problem}; export it with --source-language and --target-language")
            elif code and not known.find(code):
                codes = shorten(", ".join(sorted(known)), SHOWN_CODES)
                problem = f"must be {codes}, which model {self._model.name!r} translates, or left out"
                raise InvalidRequest(field, f"{problem}, got {shorten(code, 64)!r}")
        return ids

    def encode(
        self, text: str, field: str, room: Room, *, is_target: bool = False, has_masks: bool = False
    ) -> list[int]:
        """The tokens of a text without special tokens. A closed vocabulary rejects unknown words: of texts that fit
        only, as finding them keeps other threads waiting for up to 40 ms."""
        tokenizer, plain = self._model.tokenizer.target if is_target else self._model.tokenizer, text
        if has_masks:
            tokenizer, plain = self._model.mask_tokenizer, text.replace(self._model.mask_token, " ")
        is_long = len(text.encode()) > INLINE_BYTES
        if is_long and (least := tokenizer.least_tokens(text)) > room.tokens:
            raise InvalidRequest(field, room.problem(f"at least {least + room.beside}"))
        tokens = ids_of(tokenizer, text, is_long=is_long)
        if len(tokens) > room.tokens:
            raise InvalidRequest(field, room.problem(str(len(tokens) + room.beside)))
        if self._model.manifest.tokens.unk in tokens and (unknown := tokenizer.unknown_words(plain)):
            raise InvalidRequest(field, unknown_words_problem(unknown, tokenizer))
        return tokens

    def check_known(self, text: str, tokens: Sequence[int], field: str) -> None:
        """Refuses a text that an answer must have, if its tokens, of the target, are without a part of it."""
        unk = self._model.manifest.tokens.unk
        if unk in tokens:
            start, end = self._model.tokenizer.target.offsets(text)[tokens.index(unk)]
            lacking = shorten(text[start:end].strip(), SHOWN_CHARACTERS)
            raise InvalidRequest(field, f"must not have {lacking!r}, which no token of the model is; leave it out")

    def fits(self, text: str) -> bool:
        """Whether a text for the field `text` has few enough tokens. ASCII has at most one for each byte, and for a
        space before it."""
        template, translation = self._model.manifest.template, self._model.translation
        specials = (*template.source_prefix, *template.source_suffix) if self._model.has_source else ()
        room = self._model.max_prompt_tokens - len(specials)
        if translation is not None:  # the answer has its place behind the prompt
            around = translation.tokens_around + len(template.target_prefix)
            room = (room - around - ANSWER_TOKENS) // (1 + ANSWER_FACTOR)
        if len(text) < room and text.isascii():
            return True
        tokenizer = self._model.tokenizer
        return tokenizer.least_tokens(text) <= room and len(tokenizer.encode_batch([text])[0]) <= room

    def check_length(self, text: str) -> None:
        """Refuses a text for the field `text` that certainly has too many tokens, without tokenizing it: in 0.1 ms for
        16 KB."""
        if (least := self._model.tokenizer.least_tokens(text)) > self._model.max_prompt_tokens:
            raise InvalidRequest("text", self._room(0).problem(f"at least {least}"))

    def _text(self, text: str, *, beside: int, has_masks: bool = False) -> list[int]:
        """The tokens of the field `text`. beside: special tokens."""
        return self.encode(text, "text", self._room(beside), has_masks=has_masks)

    def _room(self, beside: int, fix: str = "shorten or split it") -> Room:
        limit = self._model.max_prompt_tokens
        return Room(limit - beside, beside, lambda count: f"must be at most {limit} tokens, got {count}; {fix}")


def known_language(field: str, code: str, known: LanguageCodes) -> str:
    """The model's own code of the language that a code names. Raises InvalidRequest."""
    if own := known.find(code):
        return own
    looked_up = code[:SHOWN_CHARACTERS]  # the search for similar ones takes the longer, the longer the text
    if close := difflib.get_close_matches(looked_up, list(known), n=1, cutoff=0.4):
        raise InvalidRequest(field, f"unknown code {shorten(code, 64)!r}; did you mean {close[0]!r}?")
    problem = f"unknown code {shorten(code, 64)!r}; must be" if code else "must be given:"
    raise InvalidRequest(field, f"{problem} one of {shorten(', '.join(sorted(known)), SHOWN_CODES)}")


def ids_of(tokenizer: Tokenizer, text: str, *, is_long: bool) -> list[int]:
    """The ids of a text of any length. is_long: of more than INLINE_BYTES bytes."""
    # encode_batch releases the GIL; for a short text that costs 10 microseconds more.
    return tokenizer.encode_batch([text])[0] if is_long else tokenizer.encode(text)


def _fill(template: Sequence[int | str], language_ids: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(token if isinstance(token, int) else language_ids[token] for token in template)


def unknown_words_problem(words: Sequence[str], tokenizer: Tokenizer) -> str:
    """The problem of a text with words that a closed vocabulary lacks."""
    pieces = set(tokenizer.pieces)
    marks = [word for word in words if word.encode() in pieces]
    if marks and len(marks) == len(words):
        shown = " ".join(marks[:SHOWN_WORDS])
        return f"the model knows {shown} only directly after a word: not first, and without a space before it"
    shown = ", ".join(shorten(word, SHOWN_CHARACTERS) for word in words[:SHOWN_WORDS])
    more = f" and {len(words) - SHOWN_WORDS} more" if len(words) > SHOWN_WORDS else ""
    return f"the model's closed vocabulary does not know these words: {shown}{more}; use other words"


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of a text, the last one an ellipsis where it was longer."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
