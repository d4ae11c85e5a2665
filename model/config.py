"""Configurations: what every model has (`ModelConfig`), its special tokens, and how it is trained (`TrainConfig`).

A configuration is frozen, keyword-only and validated on construction; it turns into plain JSON values and back. Which
fields an architecture adds is in `model.architecture_config`, complete configurations under a name in `model.presets`.
Nothing here imports torch, so that a configuration can be read, checked and printed anywhere.

    ConfigError    the field, the value and the values allowed are in the message
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, cast, get_args, get_origin, get_type_hints

Architecture = Literal["encoder_decoder", "decoder", "encoder", "recurrent"]
TokenizerKind = Literal["bpe", "words"]
Documents = Literal["lines", "stream"]

T = TypeVar("T")
_hints = functools.cache(get_type_hints)


class ConfigError(ValueError):
    """A configuration field has a value that cannot be used."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def check(is_valid: bool, field: str, problem: str) -> None:
    """Raises ConfigError unless the field's value can be used."""
    if not is_valid:
        raise ConfigError(field, problem)


def unknown_key(key: str, known: Collection[str], *, noun: str = "key") -> str:
    """The message for a key that does not exist, with the closest one that does."""
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known {noun}s: {', '.join(sorted(known))}"
    return f"unknown {noun}; {hint}"


def bounded(default: T, low: float, high: float = math.inf) -> T:
    """A field with this default, whose value must be low..high."""
    field: T = dataclasses.field(default=default, metadata={"bounds": (low, high)})
    return field


@dataclass(frozen=True, kw_only=True)
class Config:
    """Shared by all configurations: JSON both ways, and the checks that types and bounds imply."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The configuration of these JSON values. Raises ConfigError, also for a key that is no field."""
        kinds = field_types(cls)
        for key in values:
            if key not in kinds:
                raise ConfigError(key, cls.unknown(key))
        return cls(**{key: _from_json(kinds[key], value) for key, value in values.items()})

    @classmethod
    def unknown(cls, key: str) -> str:
        """The message for a key that is no field."""
        return unknown_key(key, field_types(cls))

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> Self:
        """The same configuration with other values in some fields. Raises ConfigError."""
        return self.from_json({**self.to_json(), **changes})

    def __post_init__(self) -> None:
        kinds = field_types(type(self))
        for field in dataclasses.fields(self):
            _check_type(field.name, kinds[field.name], getattr(self, field.name))
            if "bounds" in field.metadata:
                self._require(field.name, *field.metadata["bounds"])

    def _require(self, name: str, low: float, high: float = math.inf) -> None:
        value = getattr(self, name)
        limits = f"at least {low}" if high == math.inf else f"{low}..{high}"
        check(low <= value <= high, name, f"must be {limits}, got {value}")


def field_types(cls: type) -> dict[str, Any]:
    """The types of a configuration's fields by their names."""
    return {field.name: _hints(cls)[field.name] for field in dataclasses.fields(cls)}


def _check_type(name: str, kind: Any, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if get_origin(kind) is Literal:
        check(value in get_args(kind), name, f"must be one of {', '.join(get_args(kind))}, got {value!r}")
    elif kind is int:
        check(is_number and isinstance(value, int), name, f"must be a whole number, got {value!r}")
    elif kind is float:
        check(is_number, name, f"must be a number, got {value!r}")
        check(math.isfinite(value), name, f"must be finite, got {value!r}")
    elif kind is bool:
        check(isinstance(value, bool), name, f"must be true or false, got {value!r}")


def _from_json(kind: Any, value: Any) -> Any:
    """A JSON value as a field of this type: lists become tuples, objects configurations."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, Mapping):
        for part in get_args(kind):
            if isinstance(part, type) and issubclass(part, Config):
                return part.from_json(value)
    return value


SOURCE_LANGUAGE = -1
TARGET_LANGUAGE = -2


class LanguagePair(NamedTuple):
    """The source and target language of a translation, by their codes; "": the model's first language."""

    source: str = ""
    target: str = ""


DEFAULT_LANGUAGES = LanguagePair()


@dataclass(frozen=True, kw_only=True)
class SpecialTokenTemplate(Config):
    """Special tokens before and after the tokens of a text. SOURCE_LANGUAGE and TARGET_LANGUAGE stand for the token of
    the request's languages.

    target_prefix: what the decoder reads first; it precedes every prompt of a decoder-only model. languages: pairs of
    a code and its token id; () for a model without languages.
    """

    source_prefix: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = ()
    target_prefix: tuple[int, ...] = ()
    languages: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        are_pairs = isinstance(self.languages, tuple) and all(_is_language(pair) for pair in self.languages)
        check(are_pairs, "languages", f"must be pairs of a code and a token id, got {self.languages!r:.80}")
        object.__setattr__(self, "languages", tuple((code, token) for code, token in self.languages))
        languages = f"{SOURCE_LANGUAGE} and {TARGET_LANGUAGE}"
        for name in ("source_prefix", "source_suffix", "target_prefix"):
            ids = getattr(self, name)
            are_ids = isinstance(ids, tuple) and all(type(token) is int and token >= TARGET_LANGUAGE for token in ids)
            check(are_ids, name, f"must be a list of token ids, or {languages}, got {ids!r}")
            has_language = any(token < 0 for token in ids)
            check(bool(self.languages) or not has_language, name, f"names a language, and there are none, got {ids!r}")

    @property
    def num_source_special(self) -> int:
        """The number of special tokens around a source."""
        return len(self.source_prefix) + len(self.source_suffix)

    def wrap_source(self, ids: Sequence[int], languages: LanguagePair = DEFAULT_LANGUAGES) -> list[int]:
        """The encoder's input for the token ids of a text."""
        return [*self._filled(self.source_prefix, languages), *ids, *self._filled(self.source_suffix, languages)]

    def wrap_prompt(self, ids: Sequence[int] = (), languages: LanguagePair = DEFAULT_LANGUAGES) -> list[int]:
        """The decoder's input for the token ids of a prompt; without any, what every answer starts from."""
        return [*self._filled(self.target_prefix, languages), *ids]

    def wrap_target(self, ids: Sequence[int], eos_id: int, languages: LanguagePair = DEFAULT_LANGUAGES) -> list[int]:
        """A target in training: a decoder reads all of it but the last token, and predicts all of it but the first.

        Where the target language itself is the start, as in mBART of 25 languages, it also follows the end: fairseq
        and transformers train it so.
        """
        end = (eos_id, TARGET_LANGUAGE) if self.target_prefix[:1] == (TARGET_LANGUAGE,) else (eos_id,)
        return self.wrap_prompt([*ids, *self._filled(end, languages)], languages)

    def _filled(self, ids: Sequence[int], languages: LanguagePair) -> list[int]:
        codes = {SOURCE_LANGUAGE: languages.source, TARGET_LANGUAGE: languages.target}
        return [self._language(codes[token]) if token < 0 else token for token in ids]

    def _language(self, code: str) -> int:
        known = dict(self.languages)
        if code and code not in known:
            raise ConfigError("languages", f"{code!r}: {unknown_key(code, known, noun='language')}")
        return known[code or self.languages[0][0]]

    @property
    def token_ids(self) -> frozenset[int]:
        """All ids that appear in the template."""
        ids = (*self.source_prefix, *self.source_suffix, *self.target_prefix, *(token for _, token in self.languages))
        return frozenset(token for token in ids if token >= 0)


def _is_language(pair: Any) -> bool:
    """Whether this is a code and a token id; a pair from JSON is a list."""
    return isinstance(pair, tuple | list) and [type(part) for part in pair] == [str, int] and pair[1] >= 0


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """The fields of every architecture. `vocab_size` is set from the tokenizer when training starts.

    The attributes without a type are constants: they answer for the architectures that lack the field of that name.
    """

    architecture: ClassVar[Architecture]

    num_encoder_layers, num_decoder_layers = 0, 0
    max_source_len, max_target_len = 0, 0
    positions, position_dim, rotary_dims = "none", 0, 0
    norm, norm_eps = "layer", 1e-5
    num_heads, num_kv_heads, head_dim = 0, 0, 0
    attention_scale, attention_softcap, logits_softcap = 0.0, 0.0, 0.0
    qk_norm = False
    num_experts, sliding_window, compression_stride = 0, 0, 0
    parallel_residual, first_attention_norm = False, True
    decoder_mixing, score = "attention", "none"
    share_embeddings = False
    head, pooler = "none", "none"
    labels, layer_groups = tuple[str, ...](), tuple[Any, ...]()
    multi_label = False
    mask_id = cast("int | None", None)
    source_vocab_size, context_sentences, source_unit, source_language, target_language = 0, 0, "text", "", ""
    separator_id = cast("int | None", None)

    vocab_size: int = bounded(0, 0)  # 0: not known yet
    d_model: int = bounded(256, 1)
    embedding_scale: float = bounded(0.0, 0)  # of token vectors; 0: sqrt(d_model)
    embedding_norm: bool = False  # a norm after the embeddings, as in BERT and BART
    tie_embeddings: bool = True  # the output projection is the target's embedding
    output_bias: bool = False  # of the logits
    dropout: float = bounded(0.0, 0.0, 0.99)
    pad_id: int = bounded(0, 0)
    bos_id: int = bounded(1, 0)  # the first token of every target, unless the special-token template has another prefix
    eos_id: int = bounded(2, 0)
    extra_eos_ids: tuple[int, ...] = ()  # further tokens that end an answer, such as the end of a chat turn
    unk_id: int = bounded(3, 0)
    special_token_template: SpecialTokenTemplate | None = None  # None: the default one of bos_id and eos_id

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """As `Config.from_json`; `architecture`, if given, must be the one of this class."""
        other = values.get("architecture", cls.architecture)
        if other != cls.architecture:
            raise ConfigError("architecture", f"must be {cls.architecture}, got {other!r}")
        return super().from_json({key: value for key, value in values.items() if key != "architecture"})

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values, the architecture first."""
        return {"architecture": self.architecture, **super().to_json()}

    def __post_init__(self) -> None:
        super().__post_init__()
        template = self.special_token_template
        is_template = template is None or isinstance(template, SpecialTokenTemplate)
        problem = f"must be a SpecialTokenTemplate or left out, got {template!r}"
        check(is_template, "special_token_template", problem)
        limit = self.vocab_size or math.inf
        for name in ("pad_id", "bos_id", "eos_id", "unk_id"):
            token = getattr(self, name)
            check(token < limit, name, f"must be below vocab_size {limit}, got {token}")
        known = f" below vocab_size {limit}" if self.vocab_size else ""
        is_list = isinstance(self.extra_eos_ids, tuple)
        check(is_list, "extra_eos_ids", f"must be a list of token ids, got {self.extra_eos_ids!r}")
        for token in self.extra_eos_ids:
            is_token = type(token) is int and 0 <= token < limit
            check(is_token, "extra_eos_ids", f"must be token ids{known}, got {token!r}")
        most = max(limit, self.source_vocab_size)
        for token in self.template.token_ids:
            check(token < most, "special_token_template", f"must hold tokens below vocab_size {most}, got {token}")

    def check_trainable(self) -> None:
        """Refuses what training data cannot express, although a checkpoint of another library may have it and can be
        served. Special tokens may coincide: no loss reads padding. Raises ConfigError."""
        template, field = self.template, "special_token_template"
        has_start = bool(template.target_prefix) or not (self.has_encoder and self.has_decoder)
        check(has_start, field, "must have a target prefix to predict the first token from")

    def layer(self, number: int) -> Self:
        """The configuration of one layer, the first is 0."""
        return self

    def is_compressed(self, layer: int) -> bool:
        """Whether this decoder layer (the first is 0) attends to compressed keys and values."""
        return self.compression_stride > 0 and layer % 2 == 1

    @property
    def has_encoder(self) -> bool:
        """Whether the model reads a source."""
        return self.num_encoder_layers > 0

    @property
    def has_decoder(self) -> bool:
        """Whether the model generates tokens."""
        return self.num_decoder_layers > 0

    @property
    def is_recurrent(self) -> bool:
        """Whether the layers are LSTM or GRU cells."""
        return self.architecture == "recurrent"

    @property
    def carries_states(self) -> bool:
        """Whether a decoder's layers carry states from token to token, which padding would change."""
        return self.is_recurrent or self.decoder_mixing == "ssru"

    @property
    def is_classifier(self) -> bool:
        """Whether the model is an encoder that predicts labels of a text."""
        return self.head in ("classify", "attention")

    @property
    def is_tagger(self) -> bool:
        """Whether the model is an encoder that predicts a label of each token."""
        return self.head == "tokens"

    @property
    def supports_chunked_prefill(self) -> bool:
        """Whether a decode step can read several tokens."""
        return self.architecture == "decoder" and not self.compression_stride

    @property
    def softmax_scale(self) -> float:
        """The factor of the products of queries and keys."""
        return self.attention_scale or self.attention_head_dim**-0.5

    @property
    def attention_head_dim(self) -> int:
        """The width of an attention head."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def attention_kv_heads(self) -> int:
        """The number of key-value heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def source_dim(self) -> int:
        """The width of the encoder's states."""
        return self.d_model

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer; models are trained with the first."""
        return self.eos_id, *self.extra_eos_ids

    @property
    def template(self) -> SpecialTokenTemplate:
        """The special-token template, or the default one of bos_id and eos_id."""
        default = SpecialTokenTemplate(source_suffix=(self.eos_id,), target_prefix=(self.bos_id,))
        return self.special_token_template or default


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """How a model is trained. Exactly one of `steps` and `minutes` ends the run."""

    tokenizer: TokenizerKind = "bpe"
    vocab_size: int = bounded(8000, 8)  # upper limit for the tokenizer that is trained on the corpus
    documents: Documents = "lines"  # of a language model: each line is a text, or a file is one text cut into windows
    validation_size: int = bounded(1000, 1)  # examples held out, at most a tenth, unless validation data is given
    batch_tokens: int = bounded(4096, 1)  # target tokens of one batch, padding included
    accumulate: int = bounded(1, 1)  # batches of one optimiser step
    steps: int = bounded(0, 0)  # optimiser steps; 0: until `minutes`
    minutes: float = bounded(0.0, 0)  # wall-clock training time; the learning rate decays against it
    learning_rate: float = 2e-3  # the peak
    warmup_steps: int = bounded(400, 0)
    weight_decay: float = bounded(0.0, 0)
    beta1: float = bounded(0.9, 0.0, 0.9999)
    beta2: float = bounded(0.98, 0.0, 0.99999)
    clip_norm: float = bounded(1.0, 0)  # 0: no clipping
    label_smoothing: float = bounded(0.1, 0.0, 0.99)
    r_drop_weight: float = bounded(0.0, 0.0, 100.0)  # between two passes (Liang et al. 2021); 0: one pass
    balance_weight: float = bounded(0.01, 0)  # of the loss that spreads tokens over experts (Fedus et al. 2022)
    bpe_dropout: float = bounded(0.0, 0.0, 1.0)  # share of merges skipped in training (Provilkov et al. 2020); 0: none
    mask_share: float = bounded(0.15, 0.01, 0.99)  # of a text's tokens that a masked head predicts (Devlin et al. 2019)
    average_checkpoints: int = bounded(5, 1)  # the last K saved states are averaged into the result; 1: only the last
    save_every_steps: int = bounded(500, 1)
    validate_every_steps: int = bounded(500, 1)
    log_every_steps: int = bounded(10, 1)  # of the training loss in metrics.csv and on the progress line
    bf16: bool | Literal["auto"] = "auto"  # autocast; weights and optimiser stay float32. auto: where that is fast
    seed: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        is_switch = self.bf16 == "auto" or isinstance(self.bf16, bool)
        check(is_switch, "bf16", f"must be true, false or auto, got {self.bf16!r}")
        check(self.learning_rate > 0, "learning_rate", f"must be above 0, got {self.learning_rate}")
        ends = f"steps={self.steps} minutes={self.minutes}"
        check((self.steps > 0) != (self.minutes > 0), "steps", f"set exactly one of steps and minutes, got {ends}")
