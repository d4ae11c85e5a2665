"""Fields of configurations that have fields of their own: layers after the pooling of an encoder's vectors, prompts
before its texts, and groups of layers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from model.config import (
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    Config,
    ConfigError,
    LanguagePair,
    ModelConfig,
    SpecialTokenTemplate,
    bounded,
    check,
    field_types,
)

DenseActivation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]
RotaryScaling = Literal["none", "linear", "llama3", "yarn", "longrope"]
Part = TypeVar("Part", bound=Config)

Prompts = tuple[tuple[str, str], ...]
"""Pairs of a name and a text that is put before the text of a request."""

UNFIT = re.compile("[\0\ud800-\udfff]")
LANGUAGE = re.compile("[A-Za-z0-9_-]{0,64}")
MAX_PROMPTS = 256
MAX_PROMPT_CHARACTERS = 4096  # of a name or a text; instructions in use have some hundred


@dataclass(frozen=True, kw_only=True)
class DenseLayer(Config):
    """A linear layer over the vector of a text, and its activation. size: of its output."""

    size: int = bounded(0, 1)
    bias: bool = True
    activation: DenseActivation = "identity"


@dataclass(frozen=True, kw_only=True)
class LayerGroup(Config):
    """Layers whose attention differs from that of the others. layers: their numbers, the first is 0. A field that is
    None has the value of the whole configuration."""

    layers: tuple[int, ...] = ()
    sliding_window: int | None = None
    positions: Literal["rotary", "none"] | None = None
    rotary_base: float | None = None
    rotary_scaling: RotaryScaling | None = None
    rotary_factor: float | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of these layers that differ."""
        values = {name: value for name, value in vars(self).items() if name != "layers"}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def has_own_rotation(self) -> bool:
        """Whether queries and keys turn otherwise than those of the other layers."""
        return bool({*self.changes} - {"sliding_window"})


def check_language(field: str, code: Any) -> None:
    """Raises ConfigError unless this may be the code of a language, or is empty."""
    is_code = isinstance(code, str) and LANGUAGE.fullmatch(code)
    check(bool(is_code), field, f"must be a code of letters, digits, - and _, at most 64, got {code!r:.80}")


def unnamed_languages(template: SpecialTokenTemplate, languages: LanguagePair) -> LanguagePair:
    """Those of two languages that a model's special tokens do not name; "" for the others."""
    named = {*template.source_prefix, *template.source_suffix, *template.target_prefix}
    source, target = languages
    return LanguagePair("" if SOURCE_LANGUAGE in named else source, "" if TARGET_LANGUAGE in named else target)


def check_numbers(value: Any, field: str, count: int) -> None:
    """Raises ConfigError unless this is a tuple of so many numbers above 0."""
    are_numbers = isinstance(value, tuple) and all(type(item) in (int, float) and 0 < item < math.inf for item in value)
    fits = are_numbers and len(value) == count
    check(fits, field, f"must be {count} numbers above 0, got {len(value) if are_numbers else value!r:.80}")


def check_token(value: Any, field: str, vocab_size: int) -> None:
    """Raises ConfigError unless this is a token or None. vocab_size: 0 while it is unknown."""
    is_token = value is None or (type(value) is int and 0 <= value < (vocab_size or math.inf))
    known = f" below vocab_size {vocab_size}" if vocab_size else ""
    check(is_token, field, f"must be a token{known} or left out, got {value!r}")


def check_labels(value: Any, field: str) -> None:
    """Raises ConfigError unless this is a tuple of different names."""
    are_names = isinstance(value, tuple) and all(isinstance(label, str) and label for label in value)
    check(are_names, field, f"must be a list of names, got {value!r:.80}")
    check(len(set(value)) == len(value), field, f"must be different names, got {', '.join(value):.80}")


def check_ssru(mixing: str, positions: str, sliding_window: int) -> None:
    """Raises ConfigError for what needs scores of attention, which a decoder with an SSRU lacks."""
    if mixing != "ssru":
        return
    is_added = positions in ("sinusoidal", "learned", "none")
    problem = "must be sinusoidal, learned or none with decoder_mixing ssru, whose layers have no scores"
    check(is_added, "positions", f"{problem}, got {positions}")
    check(not sliding_window, "sliding_window", f"must be 0 with decoder_mixing ssru, got {sliding_window}")


def check_compression(config: ModelConfig) -> None:
    """Raises ConfigError for what does not go with the compressed keys and values of a decoder."""
    if not config.compression_stride:
        return
    layers, kind = config.num_decoder_layers, config.positions
    check(config.compression_stride > 1, "compression_stride", "must be 0 or at least 2, got 1")
    check(layers > 1, "compression_stride", f"needs at least 2 layers, got {layers}")
    problem = "must be set with compression_stride, for the uncompressed layers"
    check(config.sliding_window > 0, "sliding_window", problem)
    problem = "must be sinusoidal, learned or none with compression_stride, because a key of several tokens has no"
    check(kind in ("sinusoidal", "learned", "none"), "positions", f"{problem} position of its own, got {kind}")
    for name in ("attention_softcap", "layer_groups"):
        check(not getattr(config, name), name, "must be left out with compression_stride")


def check_vocabularies(config: ModelConfig) -> None:
    """Raises ConfigError for tokens of a side that its vocabulary lacks, and for what needs one vocabulary of both."""
    size, template = config.source_vocab_size, config.template
    if not size:
        return
    for field in ("share_embeddings", "context_sentences"):
        check(
            not getattr(config, field), field, "must be left out with source_vocab_size: ids of sources are their own"
        )
    check(config.pad_id < size, "pad_id", f"must be below source_vocab_size {size}, got {config.pad_id}")
    languages = (token for _, token in template.languages)
    for token in (*template.source_prefix, *template.source_suffix, *languages):
        problem = f"must hold tokens of sources below source_vocab_size {size}, got {token}"
        check(token < size, "special_token_template", problem)
    for token in template.target_prefix:
        problem = f"must hold tokens of targets below vocab_size {config.vocab_size}, got {token}"
        check(0 <= token < config.vocab_size, "special_token_template", problem)


def check_layers(
    groups: tuple[LayerGroup, ...], count: int, field: str, *, can_turn: bool, layer: Callable[[int], Config]
) -> None:
    """Raises ConfigError unless each group has some of so many layers, no two groups have the same, and their values
    make a configuration.

    can_turn: whether layers have rotary positions. layer: the configuration of one.
    """
    seen = set[int]()
    for place, group in enumerate(groups):
        problem = f"must be numbers 0..{count - 1} of layers, each once, got {group.layers!r:.80}"
        is_list = isinstance(group.layers, tuple) and bool(group.layers)
        check(is_list, f"{field}[{place}].layers", problem)
        for number in group.layers:
            is_new = type(number) is int and 0 <= number < count and number not in seen
            check(is_new, f"{field}[{place}].layers", problem)
            seen.add(number)
        problem = f"must differ in sliding_window alone without rotary positions, got {group.changes}"
        check(can_turn or not group.has_own_rotation, f"{field}[{place}]", problem)
        try:
            layer(group.layers[0])
        except ConfigError as error:
            raise ConfigError(f"{field}[{place}].{error.field}", error.problem) from None


def parts(value: Any, field: str, kind: type[Part]) -> tuple[Part, ...]:
    """The parts in JSON values, or in parts. Raises ConfigError."""
    needed = next(iter(field_types(kind)))
    check(isinstance(value, tuple | list), field, f"must be a list of objects with {needed}, got {value!r:.80}")
    found = list[Part]()
    for place, part in enumerate(value):
        is_part = isinstance(part, dict | kind)
        check(is_part, f"{field}[{place}]", f"must be an object with {needed}, got {part!r:.80}")
        try:
            found.append(kind.from_json(part) if isinstance(part, dict) else part)
        except ConfigError as error:
            raise ConfigError(f"{field}[{place}].{error.field}", error.problem) from None
    return tuple(found)


def check_default(name: str, field: str, known: Prompts) -> None:
    """Raises ConfigError unless this is the name of one of the prompts, or ""."""
    names = [name for name, _ in known]
    problem = f"must be one of the prompts {', '.join(names)}" if names else "must be left out without prompts"
    check(name in ("", *names), field, f"{problem}, got {name!r:.80}")


def prompts(value: Any, field: str) -> Prompts:
    """The pairs in JSON values. Raises ConfigError."""
    are_pairs = isinstance(value, tuple) and all(
        isinstance(pair, tuple | list) and [type(part) for part in pair] == [str, str] for pair in value
    )
    check(are_pairs, field, f"must be pairs of a name and a text, got {value!r:.80}")
    check(len(value) <= MAX_PROMPTS, field, f"must be at most {MAX_PROMPTS}, got {len(value)}")
    names = [name for name, _ in value]
    check(len(set(names)) == len(names), field, f"must have different names, got {', '.join(names):.80}")
    for name, text in value:
        is_name = bool(name) and name.isprintable() and len(name) <= MAX_PROMPT_CHARACTERS
        check(is_name, field, f"must have names of 1..{MAX_PROMPT_CHARACTERS} printable characters, got {name!r:.80}")
        is_short = len(text) <= MAX_PROMPT_CHARACTERS and not UNFIT.search(text)
        problem = f"must be at most {MAX_PROMPT_CHARACTERS} characters without U+0000 and surrogates"
        check(is_short, field, f"{problem}, got {name!r} of {len(text)}: {text!r:.40}")
    return tuple((name, text) for name, text in value)
