"""One served model: its manifest, tokenizer, engines and capabilities, as the edge sees them.

Plain data and properties derived from it. Requests are built in `request_builder`; nothing here knows gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from export.bundle.confidence import Calibration
from export.bundle.manifest import Encoding, Manifest, Quantization, SchemeMeasurement, Variant
from export.bundle.target_shortlist import Shortlist
from model.prompts.chat_tokens import ChatTokens
from model.prompts.translation_prompts import TranslationPrompts
from model.tokenizer import Tokenizer
from service.edge.models.alignment import Span, target_spans
from service.edge.models.answer_cache import Answers
from service.edge.models.directions import Directions, directions_of
from service.errors import InvalidRequest
from service.machine.execution_choice import ExecutionChoice
from service.options import MAX_WIDTH
from service.request import Caller, Cancel, EventSink, Request
from service.wire.messages import Beat, State

VERSION_DIGITS = 12  # of a bundle's digest, as the name of a version that has no other


class Pool(Protocol):
    """The engines of one model. Event-loop thread only."""

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Cancel:
        """Queues the request; its events reach `sink` on the thread of `loop`. Returns what cancels it. Raises
        Overloaded, ShuttingDown or EngineUnavailable instead."""

    def predicted_s(self, caller: Caller) -> float:
        """Seconds until the answer to one more request of a tenant is expected; 0: not known."""

    async def aclose(self) -> None:
        """Stops the engines. Returns when nothing of them is left."""

    @property
    def is_ready(self) -> bool:
        """Whether an engine takes requests."""

    @property
    def window(self) -> int:
        """How many requests a single call should have here, to keep all engines busy."""

    def problems(self) -> list[str]:
        """Why only a restart of the server could help; []: nothing. From any thread."""


class Users:
    """Counts the calls that use a model, which must not be closed before the last one has left. Event-loop thread
    only.

    closes_at_s: when the last one must have left, of a model that is left by all.
    """

    def __init__(self) -> None:
        self.count = 0
        self.closes_at_s = math.inf
        self._left = asyncio.Event()
        self._last_items: dict[Callable[[], object], None] = {}

    def enter(self) -> None:
        """One more call uses the model."""
        self.count += 1

    def leave(self) -> None:
        """A call has ended."""
        self.count -= 1
        if not self.count:
            self._left.set()

    async def all_left(self) -> None:
        """Returns when no call uses the model."""
        while self.count:
            self._left.clear()
            await self._left.wait()

    @contextlib.contextmanager
    def with_items(self, end: Callable[[], object]) -> Iterator[None]:
        """A call with items uses the model; `end` has it begin no more of them."""
        self._last_items[end] = None
        try:
            yield
        finally:
            del self._last_items[end]

    def end_items(self) -> None:
        """Has calls begin no more items."""
        for end in list(self._last_items):
            end()


@dataclass(kw_only=True)
class ServedModel:
    """One version of a model with everything that its requests need.

    Only `choice` and `engines` change while it is served: they follow processes that were started again elsewhere; and
    `pool`, which is watched while the version is judged.
    version, path: set by who opens it, before it is served. users: of its engines.
    """

    name: str
    manifest: Manifest
    choice: ExecutionChoice
    bundle_sha256: str  # of manifest.json
    tokenizer: Tokenizer
    pool: Pool
    shortlist: Shortlist | None = None
    max_hypotheses: int = MAX_WIDTH  # per request: the rows of an engine
    draft_tokens: int = 0  # proposed per step; above 0, near-ties may be decided either way
    is_batch_invariant: bool = True  # on this machine
    processes: int = 1  # that its engines run in
    engines: int = 1  # of all processes
    chat: ChatTokens | None = None  # None: the bundle has no chat template
    translation: TranslationPrompts | None = None  # None: it has an encoder, or was not imported to translate
    words_per_token: int = 0  # whose confidence may be returned, at most; 0: the model has no calibration
    version: str = ""
    path: Path = Path()
    users: Users = field(default_factory=Users)
    on_closed: Callable[[], object] = lambda: None
    kept_answers: Answers | None = None  # None: none are kept
    beats: Callable[[], Sequence[Beat]] = tuple  # the last one of every engine process that runs

    def __post_init__(self) -> None:
        self.version = self.version or self.bundle_sha256[:VERSION_DIGITS]

    def states(self) -> list[State]:
        """Of every engine that runs, as last reported."""
        return [state for beat in self.beats() for state in beat.states]

    async def aclose(self) -> None:
        """Ends its engines. Returns when nothing is left of them."""
        await self.pool.aclose()
        if self.kept_answers is not None:
            await self.kept_answers.aclose()
        self.on_closed()

    @property
    def unrepeatable(self) -> str:
        """Why the same request may get another answer the next time; empty: it may not."""
        if not self.is_batch_invariant:
            return "on this machine answers may depend on the requests beside them"
        if self.draft_tokens:
            return "with draft_tokens near-ties may be decided either way"
        return ""

    @property
    def placement(self) -> str:
        """Where it runs, in words: `int8 on CPUExecutionProvider, 2 engines`."""
        engines = f"{self.engines} engine{'' if self.engines == 1 else 's'}"
        return f"{self.choice.precision} on {self.choice.provider}, {engines}"

    @property
    def quantization(self) -> Quantization | None:
        """The quantization of the graphs in use, or None for unquantized ones."""
        quantization = self._variant.quantization if self._variant else None
        if quantization is None or self.is_batch_invariant:
            return quantization
        return dataclasses.replace(quantization, batch_invariant=False)

    @property
    def quantization_measurement(self) -> SchemeMeasurement | None:
        """The accuracy of these graphs against fp32, measured at export."""
        comparison = self._variant.comparison if self._variant else ()
        return next((figures for figures in comparison if figures.chosen), None)

    @property
    def calibration(self) -> Calibration | None:
        """The calibrated confidence of these graphs, or None if the bundle has none."""
        return self.manifest.calibrations.get(self.choice.precision)

    @property
    def _variant(self) -> Variant | None:
        return next((variant for variant in self.manifest.variants if variant.precision == self.choice.precision), None)

    @property
    def encoding(self) -> Encoding | None:
        """The outputs of its encoder, or None for a model without an encoder."""
        return self.manifest.encoding

    def prompt(self, name: str | None) -> str:
        """The text that a request to embed puts before its own. name: None for the model's default; "" for none.
        Raises InvalidRequest for one that the model lacks."""
        encoding = self.encoding
        known = encoding.prompts if encoding else {}
        if name is None:
            name = encoding.default_prompt if encoding else ""
        if name and name not in known:
            names = ", ".join(known)
            fix = f"must be one of {names}" if names else f"must be left out: model {self.name!r} has no prompts"
            raise InvalidRequest("prompt_name", f"{fix:.4000}, got {name[:64]!r}")
        return known[name] if name else ""

    @functools.cached_property
    def mask_token(self) -> str:
        """The text of the mask token; empty for a model without a masked-language head."""
        mask = self.encoding.mask if self.encoding else None
        return "" if mask is None else self.tokenizer.special_text(mask)

    @functools.cached_property
    def mask_tokenizer(self) -> Tokenizer:
        """The tokenizer that reads the mask token's text as the mask token."""
        assert self.encoding is not None
        assert self.encoding.mask is not None
        return self.tokenizer.matching_special(self.encoding.mask)

    @functools.cached_property
    def special_names(self) -> re.Pattern[str]:
        """What special tokens are called. In a text that is plain text."""
        tokenizer = self.tokenizer
        names = [name for name, token in tokenizer.special.items() if name.strip() and not tokenizer.pieces[token]]
        return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")

    @property
    def is_classifier(self) -> bool:
        """Whether the model has labels of texts."""
        return bool(self.encoding and self.encoding.labels and not self.encoding.has_token_labels)

    @property
    def is_tagger(self) -> bool:
        """Whether the model has labels of tokens."""
        return bool(self.encoding and self.encoding.has_token_labels)

    @property
    def languages(self) -> Iterable[str]:
        """The codes of the languages that a request to translate names; none: it names none."""
        return self.translation.template.languages if self.translation else self.manifest.template.languages

    @functools.cached_property
    def directions(self) -> Directions:
        """Between which languages it translates."""
        return directions_of(self.manifest, self.translation.template if self.translation else None)

    @property
    def context_sentences(self) -> int:
        """Most sentences before a text that it reads to translate it."""
        if self.translation is not None:
            return self.translation.template.context_sentences
        return self.manifest.context.sentences if self.manifest.context else 0

    @property
    def has_source(self) -> bool:
        """Whether an encoder reads the text."""
        return self.manifest.limits.max_source_len > 0

    @property
    def decoder_start(self) -> tuple[int, ...]:
        """The prompt of a decoder whose output is not used: its start token, or () without a decoder."""
        return (self.manifest.tokens.bos,) if self.manifest.limits.max_target_len else ()

    @property
    def max_prompt_tokens(self) -> int:
        """Most tokens of a text, special tokens included."""
        limits = self.manifest.limits
        return limits.max_source_len or limits.max_target_len

    def max_new_tokens(self, prompt_tokens: int) -> int:
        """Most new tokens after a prompt, whose length includes the start token. The last one takes no position."""
        return self.manifest.limits.max_target_len - prompt_tokens + 1

    @property
    def max_tokens(self) -> int:
        """Most new tokens of any request."""
        return self.max_new_tokens(max(1, len(self.manifest.template.target_prefix)))

    def count_unknown(self, *texts: Sequence[int]) -> int:
        """How many tokens stand for what the vocabulary lacks. None do if that token has another role as well."""
        tokens = self.manifest.tokens
        if tokens.unk in (tokens.pad, tokens.bos, *tokens.ends):
            return 0
        return sum(text.count(tokens.unk) for text in texts)

    def source_spans(self, text: str) -> list[Span]:
        """The characters of each encoder token; empty for special tokens around the text."""
        template, end = self.manifest.template, len(text)
        before, after = [(0, 0)] * len(template.source_prefix), [(end, end)] * len(template.source_suffix)
        return [*before, *self.tokenizer.offsets(text), *after]

    def text_tokens(self, source: Sequence[int]) -> Sequence[int]:
        """The tokens of the text in what the encoder reads: without special tokens, and sentences before the text."""
        template, context = self.manifest.template, self.manifest.context
        own = source[len(template.source_prefix) : len(source) - len(template.source_suffix)]
        if context is None or context.separator not in own:
            return own
        return own[len(own) - own[::-1].index(context.separator) :]

    def target_spans(self, tokens: Sequence[int], text: str) -> tuple[Span, ...]:
        """The part of an answer's text that each of its tokens stands for."""
        tokenizer = self.tokenizer.target
        return target_spans(tokens, tokenizer.pieces, text, strips_leading_space=tokenizer.strips_leading_space)

    def token_names(self, tokens: Iterable[int], *, is_target: bool = False) -> list[str]:
        """The text of each token, with its leading space; of one without text its name, such as <eos>. is_target: of
        an answer or what the decoder starts from, not of a source or prompt."""
        tokenizer, template = self.tokenizer.target if is_target else self.tokenizer, self.manifest.template
        names = {token: name for name, token in tokenizer.special.items()}
        if not tokenizer.has_two_vocabularies:  # an id with several roles, such as start and end, has the last one's
            names |= {getattr(self.manifest.tokens, role): f"<{role}>" for role in ("unk", "pad", "bos", "eos")}
        if not (is_target and self.manifest.limits.source_vocab_size):
            names |= {token: f"<{code}>" for code, token in template.languages.items()}
        return [
            tokenizer.pieces[token].decode("utf-8", "replace") or names.get(token, f"<{token}>") for token in tokens
        ]
