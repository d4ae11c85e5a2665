"""What a model is (`ModelConfig`) and how it is trained (`TrainConfig`), with the presets as literals.

Both are frozen, keyword-only and validated on construction; both turn into plain JSON values and back. Nothing here
imports torch, so that a configuration can be read, checked and printed anywhere.

    ConfigError
    └── (one class: the field, the value seen and the values allowed are in the message)
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

import yaml

Architecture = Literal["encoder_decoder", "decoder", "encoder", "recurrent"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Norm = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]
Positions = Literal["sinusoidal", "learned", "rotary", "shaw", "bucketed", "alibi", "none"]
Sinusoids = Literal["interleaved", "halves", "fairseq"]
RotaryScaling = Literal["none", "linear", "llama3"]
TokenizerKind = Literal["bpe", "words"]
Embedded = Literal["", "pairs", "scenes", "copy", "kinds"]
Documents = Literal["lines", "stream"]
Head = Literal["none", "masked", "classify", "attention"]
Pooler = Literal["none", "tanh", "relu"]
Cell = Literal["lstm", "gru"]
Score = Literal["none", "dot", "multiplicative", "additive"]


class ConfigError(ValueError):
    """A configuration field has a value that cannot be used."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def unknown_key(key: str, known: Collection[str]) -> str:
    """The message for a key that does not exist, with the closest one that does."""
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}"
    return f"unknown key; {hint}"


@dataclass(frozen=True, kw_only=True)
class _Config:
    """Shared by both configurations: JSON both ways, and the checks that types alone imply."""

    renamed: ClassVar[Mapping[str, str]] = {}  # names of fields in files of release 0.1.0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        kinds, values = _kinds(cls), {cls.renamed.get(key, key): value for key, value in values.items()}
        for key in values:
            if key not in kinds:
                raise ConfigError(key, unknown_key(key, kinds))
        return cls(**{key: _from_json(key, kinds[key], value) for key, value in values.items()})

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> Self:
        return self.from_json({**self.to_json(), **changes})

    def __post_init__(self) -> None:
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            if get_origin(kind) is Literal and value not in get_args(kind):
                raise ConfigError(name, f"must be one of {', '.join(get_args(kind))}, got {value!r}")
            if kind is int and (not isinstance(value, int) or isinstance(value, bool)):
                raise ConfigError(name, f"must be a whole number, got {value!r}")
            if kind is float and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ConfigError(name, f"must be a number, got {value!r}")
            if kind is float and not math.isfinite(value):
                raise ConfigError(name, f"must be finite, got {value!r}")
            if kind is bool and not isinstance(value, bool):
                raise ConfigError(name, f"must be true or false, got {value!r}")

    def _require(self, name: str, low: float, high: float = math.inf) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            limits = f"at least {low}" if high == math.inf else f"{low}..{high}"
            raise ConfigError(name, f"must be {limits}, got {value}")


def _kinds(cls: type) -> dict[str, Any]:
    """The types of a configuration's fields."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _from_json(field: str, kind: Any, value: Any) -> Any:
    """A value of JSON as a field of this type wants it: lists become tuples, objects configurations."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, Mapping):
        for part in get_args(kind):
            if isinstance(part, type) and issubclass(part, _Config):
                return part.from_json(value)
    return value


SOURCE_LANGUAGE = -1
TARGET_LANGUAGE = -2


class LanguagePair(NamedTuple):
    """Between which languages a model translates, by their codes; "": the first one it has."""

    source: str = ""
    target: str = ""


DEFAULT_LANGUAGES = LanguagePair()


@dataclass(frozen=True, kw_only=True)
class SpecialTokenTemplate(_Config):
    """Which token ids stand around the ids of a text. SOURCE_LANGUAGE and TARGET_LANGUAGE are the request's languages.

    Of a decoder-only model target_prefix precedes every prompt; of others it is what the decoder reads first. Of
    `languages`, pairs of a code and its token id, one may be asked for; () where a model has none.
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "before_source": "source_prefix",
        "after_source": "source_suffix",
        "before_target": "target_prefix",
    }

    source_prefix: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = ()
    target_prefix: tuple[int, ...] = ()
    languages: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "languages", tuple((code, token) for code, token in self.languages))
        for name in ("source_prefix", "source_suffix", "target_prefix"):
            ids = getattr(self, name)
            if not isinstance(ids, tuple) or not all(type(token) is int and token >= TARGET_LANGUAGE for token in ids):
                raise ConfigError(
                    name, f"must be a list of token ids, or {SOURCE_LANGUAGE} and {TARGET_LANGUAGE}, got {ids!r}"
                )
            if not self.languages and any(token < 0 for token in ids):
                raise ConfigError(name, f"names a language, and there are none, got {ids!r}")
        if not all(type(token) is int and token >= 0 and isinstance(code, str) for code, token in self.languages):
            raise ConfigError("languages", f"must be pairs of a code and a token id, got {self.languages!r:.80}")

    @property
    def num_source_special(self) -> int:
        """How many tokens stand around a source."""
        return len(self.source_prefix) + len(self.source_suffix)

    def wrap_source(self, ids: Sequence[int], languages: LanguagePair = DEFAULT_LANGUAGES) -> list[int]:
        """What the encoder reads of a text's ids."""
        return [*self._filled(self.source_prefix, languages), *ids, *self._filled(self.source_suffix, languages)]

    def wrap_prompt(self, ids: Sequence[int] = (), languages: LanguagePair = DEFAULT_LANGUAGES) -> list[int]:
        """What the decoder reads of a text's ids; without any, what it begins every answer from."""
        return [*self._filled(self.target_prefix, languages), *ids]

    def _filled(self, ids: Sequence[int], languages: LanguagePair) -> list[int]:
        codes = {SOURCE_LANGUAGE: languages.source, TARGET_LANGUAGE: languages.target}
        return [self._language(codes[token]) if token < 0 else token for token in ids]

    def _language(self, code: str) -> int:
        known = dict(self.languages)
        if code and code not in known:
            raise ConfigError("languages", f"{code!r}: {unknown_key(code, known).replace('key', 'language')}")
        return known[code or self.languages[0][0]]

    @property
    def token_ids(self) -> frozenset[int]:
        """All ids that appear in it."""
        ids = (*self.source_prefix, *self.source_suffix, *self.target_prefix, *(token for _, token in self.languages))
        return frozenset(token for token in ids if token >= 0)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Config):
    """The shape of a model. `vocab_size` is set from the tokenizer when training starts.

    A recurrent model takes d_model (of its vectors of tokens, and of its decoder's states), the numbers of layers, the
    fields behind `cell`, and what is said of embeddings, dropout, lengths and tokens. It does not use heads, d_ff,
    activation, norms, biases, attention_scale, sliding_window and positions.
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "framing": "special_token_template",
        "more_eos_ids": "extra_eos_ids",
        "compression": "compression_stride",
        "window": "sliding_window",
        "experts": "num_experts",
        "parallel": "parallel_residual",
    }

    architecture: Architecture = "encoder_decoder"
    vocab_size: int = 0  # 0: not known yet
    d_model: int = 256
    num_heads: int = 4
    num_kv_heads: int = 0  # 0: as many as num_heads; fewer = grouped-query attention (Ainslie et al. 2023)
    head_dim: int = 0  # 0: d_model / num_heads
    d_ff: int = 1024
    num_encoder_layers: int = 3  # not used by a decoder-only model
    num_decoder_layers: int = 3
    activation: Activation = "relu"
    gated: bool = False  # act(W1 x) * W3 x instead of act(W1 x) (Shazeer 2020)
    num_experts: int = 0  # feed-forwards of each block that a router chooses from; 0: one, without a router
    experts_per_token: int = 1  # of them that a token is read by
    norm: Norm = "layer"
    norm_position: NormPosition = "pre"  # post is the order of Vaswani et al. 2017
    norm_eps: float = 1e-5
    parallel_residual: bool = (
        False  # attention and feed-forward read the same x (Wang and Komatsuzaki 2021); pre-norm decoders
    )
    attention_scale: float = 0.0  # of the scores; 0: 1/sqrt(head_dim); 1: unscaled, as in T5
    sliding_window: int = (
        0  # a decoder's token sees itself and the sliding_window - 1 before it (Beltagy et al. 2020); 0: all
    )
    compression_stride: int = (
        0  # of every second layer, which sees all tokens by one key of so many (Liu et al. 2018); 0: none
    )
    qk_norm: bool = False  # RMSNorm of each head's query and key (Henry et al. 2020)
    positions: Positions = "sinusoidal"
    position_dim: int = 0  # of d_model, that hold a sinusoidal or learned position beside the token; 0: it is added
    sinusoids: Sinusoids = "interleaved"  # see model.positions.sinusoidal_table
    position_range: int = 128  # shaw: distances beyond it count as it; bucketed: as the last bucket
    position_buckets: int = 32  # of bucketed positions, half of them for each direction in an encoder
    rotary_base: float = 10000.0
    rotary_dims: int = 0  # of a head that turn; 0: all
    rotary_scaling: RotaryScaling = "none"  # linear: Chen et al. 2023; llama3: by wavelength
    rotary_factor: float = 1.0  # by which scaled angles turn slower
    rotary_low_freq: float = 1.0  # llama3: turns in the original context below which the factor counts in full
    rotary_high_freq: float = 4.0  # llama3: turns above which it does not count
    rotary_original_len: int = 8192  # llama3: the original context
    embedding_scale: float = 0.0  # of token vectors; 0: sqrt(d_model)
    embedding_norm: bool = False  # a norm behind the embeddings, as in BERT and BART
    bias: bool = True  # of the linear layers
    qkv_bias: bool = False  # with bias false: query, key and value have one all the same, as in Qwen2
    output_bias: bool = False  # of the logits
    tie_embeddings: bool = True  # the output is the target's embedding
    share_embeddings: bool = True  # source and target have one embedding
    dropout: float = 0.0
    max_source_len: int = 256  # tokens, end of sentence included
    max_target_len: int = 256  # tokens after the start token; a decoder-only model's whole context
    pad_id: int = 0
    bos_id: int = 1  # begins every target, unless the special_token_template says otherwise
    eos_id: int = 2
    extra_eos_ids: tuple[int, ...] = ()  # tokens that end an answer as eos_id does, such as that of a turn in a chat
    unk_id: int = 3
    special_token_template: SpecialTokenTemplate | None = None  # None: what bos_id and eos_id say
    head: Head = "none"  # of an encoder alone: fills masks, or tells labels from the first token or from all of them
    pooler: Pooler = "none"  # of an encoder alone: a layer with this activation over the first token's state
    labels: tuple[str, ...] = ()  # what a text can be; set from the data when training starts
    multi_label: bool = False  # each label holds or not, a sigmoid each, instead of exactly one, a softmax of all
    mask_id: int | None = None  # stands for a token that is to be told; None: there is none
    cell: Cell = "lstm"  # recurrent: Hochreiter and Schmidhuber 1997, or Cho et al. 2014
    score: Score = "multiplicative"  # of an encoder's state for a decoder's; none: the first decoder states are all
    input_feeding: bool = False  # what attention gave is read with the next token (Luong et al. 2015, 3.3)
    bidirectional: bool = True  # the encoder also reads from the end (Bahdanau et al. 2015)
    encoder_dim: int = 0  # d1 of the encoder's states, both directions together; 0: d_model
    attention_dim: int = 0  # d3 of the additive score; 0: d_model

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("d_model", "num_heads", "d_ff", "num_decoder_layers", "max_target_len"):
            self._require(name, 1)
        for name in (
            "vocab_size",
            "num_kv_heads",
            "head_dim",
            "num_encoder_layers",
            "num_experts",
            "position_dim",
            "rotary_dims",
            "attention_scale",
            "embedding_scale",
            "sliding_window",
            "encoder_dim",
            "attention_dim",
            "compression_stride",
            "pad_id",
            "bos_id",
            "eos_id",
            "unk_id",
        ):
            self._require(name, 0)
        self._require("dropout", 0.0, 0.99)
        if self.norm_eps <= 0:
            raise ConfigError("norm_eps", f"must be above 0, got {self.norm_eps}")
        template = self.special_token_template
        if template is not None and not isinstance(template, SpecialTokenTemplate):
            raise ConfigError("special_token_template", f"must be a SpecialTokenTemplate or left out, got {template!r}")
        self._require("experts_per_token", 1, max(self.num_experts, 1))
        if self.is_recurrent:
            self._check_recurrent()
        else:
            self._check_heads()
            self._check_positions()
        self._check_compression()
        if self.parallel_residual and (self.norm_position != "pre" or self.architecture != "decoder"):
            raise ConfigError("parallel_residual", "needs a decoder-only model with pre-norm")
        if self.has_encoder:
            self._require("num_encoder_layers", 1)
            self._require("max_source_len", 1)
        for name in ("pad_id", "bos_id", "eos_id", "unk_id"):
            token = getattr(self, name)
            if self.vocab_size and token >= self.vocab_size:
                raise ConfigError(name, f"must be below vocab_size {self.vocab_size}, got {token}")
        for token in self.extra_eos_ids:
            if type(token) is not int or token < 0 or (self.vocab_size and token >= self.vocab_size):
                known = f" below vocab_size {self.vocab_size}" if self.vocab_size else ""
                raise ConfigError("extra_eos_ids", f"must be token ids{known}, got {token!r}")
        for token in self.template.token_ids:
            if self.vocab_size and token >= self.vocab_size:
                raise ConfigError(
                    "special_token_template", f"must hold tokens below vocab_size {self.vocab_size}, got {token}"
                )
        self._check_head()

    def _check_heads(self) -> None:
        if self.head_dim == 0 and self.d_model % self.num_heads:
            raise ConfigError(
                "num_heads", f"must divide d_model {self.d_model} unless head_dim is set, got {self.num_heads}"
            )
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ConfigError("num_kv_heads", f"must divide num_heads {self.num_heads}, got {self.num_kv_heads}")

    def _check_recurrent(self) -> None:
        width = self.source_dim
        if self.score == "dot" and width != self.d_model:
            raise ConfigError(
                "score",
                f"dot multiplies states of encoder and decoder, which must be of one size, and encoder_dim is {width}, "
                f"d_model {self.d_model}; take multiplicative or additive",
            )
        if self.bidirectional and width % 2:
            field = "encoder_dim" if self.encoder_dim else "d_model"
            raise ConfigError(field, f"must be even for an encoder of two directions, got {width}")
        if self.input_feeding and self.score == "none":
            raise ConfigError("input_feeding", "feeds what attention gave and needs a score, got none")
        if self.num_experts:
            raise ConfigError(
                "num_experts", f"must be 0 in a recurrent model, which has no feed-forwards, got {self.num_experts}"
            )

    def _check_positions(self) -> None:
        kind, head_dim, turning = self.positions, self.attention_head_dim, self.rotary_dims or self.attention_head_dim
        if kind == "rotary" and (turning % 2 or turning > head_dim):
            field = "rotary_dims" if self.rotary_dims else "head_dim"
            raise ConfigError(
                field, f"must be even and at most head_dim {head_dim} for rotary positions, got {turning}"
            )
        width = self.position_dim or self.d_model
        if kind == "sinusoidal" and width % 2:
            field = "position_dim" if self.position_dim else "d_model"
            raise ConfigError(field, f"must be even for sinusoidal positions, got {width}")
        if kind == "sinusoidal" and self.sinusoids == "fairseq" and width < 4:
            raise ConfigError("sinusoids", f"fairseq's need a width of at least 4, got {width}")
        if self.position_dim and (kind not in ("sinusoidal", "learned") or self.position_dim >= self.d_model):
            raise ConfigError(
                "position_dim",
                f"must be below d_model {self.d_model} and goes with sinusoidal or learned positions, "
                f"got {self.position_dim} with {kind}",
            )
        if self.position_dim and self.has_decoder and self.tie_embeddings:
            raise ConfigError(
                "tie_embeddings", "must be false with position_dim: token vectors are narrower than states"
            )
        self._require("position_range", 1)
        self._require("position_buckets", 4)
        self._require("rotary_base", 1)
        self._require("rotary_factor", 1)
        self._require("rotary_original_len", 1)
        if not 0 < self.rotary_low_freq < self.rotary_high_freq:
            low, high = self.rotary_low_freq, self.rotary_high_freq
            raise ConfigError("rotary_low_freq", f"must be above 0 and below rotary_high_freq {high}, got {low}")
        if kind == "bucketed" and self.position_range <= self.position_buckets // 2:
            raise ConfigError("position_range", f"must be above half of position_buckets, got {self.position_range}")

    def _check_compression(self) -> None:
        if not self.compression_stride:
            return
        if self.compression_stride == 1:
            raise ConfigError("compression_stride", "must be 0 or at least 2, got 1")
        if self.architecture != "decoder" or self.num_decoder_layers < 2:
            raise ConfigError(
                "compression_stride",
                f"needs a decoder-only model of at least 2 layers, got {self.architecture} and "
                f"{self.num_decoder_layers}",
            )
        if not self.sliding_window:
            raise ConfigError("sliding_window", "must be set with compression, for the layers that see single tokens")
        if self.positions not in ("sinusoidal", "learned", "none"):
            raise ConfigError(
                "positions",
                f"must be sinusoidal, learned or none with compression: a key of several tokens has no position of its "
                f"own, got {self.positions}",
            )

    def is_compressed(self, layer: int) -> bool:
        """Whether this layer of the decoder, the first is 0, sees compressed keys and values of all tokens."""
        return self.compression_stride > 0 and layer % 2 == 1

    def _check_head(self) -> None:
        mask = self.mask_id
        if mask is not None and (type(mask) is not int or mask < 0 or (self.vocab_size and mask >= self.vocab_size)):
            limit = f" below vocab_size {self.vocab_size}" if self.vocab_size else ""
            raise ConfigError("mask_id", f"must be a token{limit} or left out, got {mask!r}")
        if self.has_decoder:
            for name, nothing in (("head", "none"), ("pooler", "none"), ("labels", ()), ("multi_label", False)):
                if (value := getattr(self, name)) != nothing:
                    raise ConfigError(name, f"is of architecture encoder, not {self.architecture}, got {value!r}")
            return
        if self.sliding_window:
            raise ConfigError("sliding_window", f"is a decoder's, got {self.sliding_window} with architecture encoder")
        if not isinstance(self.labels, tuple) or not all(isinstance(label, str) and label for label in self.labels):
            raise ConfigError("labels", f"must be a list of names, got {self.labels!r:.80}")
        if len(set(self.labels)) < len(self.labels):
            raise ConfigError("labels", f"must be different names, got {', '.join(self.labels):.80}")
        if not self.is_classifier and (self.labels or self.multi_label):
            raise ConfigError("labels", f"go with head classify or attention, got head {self.head}")
        if self.position_dim and self.head == "masked" and self.tie_embeddings:
            raise ConfigError(
                "tie_embeddings", "must be false with position_dim: token vectors are narrower than states"
            )

    def check_trainable(self) -> None:
        """Refuses special tokens that stand for two things, because losses ignore padding and models learn to end.
        Checkpoints of others may have them, and can be served."""
        special = {name: getattr(self, name) for name in ("pad_id", "bos_id", "eos_id", "unk_id")}
        if len(set(special.values())) < len(special):
            raise ConfigError("pad_id", f"pad, bos, eos and unk must be four different tokens, got {special}")
        if not self.has_decoder and self.head == "none":
            raise ConfigError("head", "must be masked, classify or attention for training: nothing else is learnt from")
        if self.head == "masked" and (self.mask_id is None or self.mask_id in special.values()):
            raise ConfigError("mask_id", f"must be a token of its own for a masked head, got {self.mask_id}")
        if self.is_classifier and len(self.labels) < 2:
            raise ConfigError("labels", f"must be at least 2 to learn to tell them apart, got {len(self.labels)}")
        if self.template.languages:
            raise ConfigError("special_token_template", "must have no languages: training data says nothing of them")
        if self.has_decoder and not self.template.target_prefix:
            raise ConfigError(
                "special_token_template", "must have a token before targets, behind which their first one is learned"
            )

    @property
    def has_encoder(self) -> bool:
        return self.architecture != "decoder"

    @property
    def has_decoder(self) -> bool:
        return self.architecture != "encoder"

    @property
    def supports_chunked_prefill(self) -> bool:
        """Whether a step of the decoder can read several tokens."""
        return self.architecture == "decoder" and not self.compression_stride

    @property
    def is_classifier(self) -> bool:
        """An encoder that classifies."""
        return self.head in ("classify", "attention")

    @property
    def is_recurrent(self) -> bool:
        return self.architecture == "recurrent"

    @property
    def source_dim(self) -> int:
        """Of a recurrent encoder's states."""
        return self.encoder_dim or self.d_model

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer; the first is the one that models are trained with."""
        return self.eos_id, *self.extra_eos_ids

    @property
    def template(self) -> SpecialTokenTemplate:
        """The special-token template, or the default one of bos_id and eos_id. The default of an encoder alone puts
        bos_id first: the token whose state represents the text."""
        if self.special_token_template is None and not self.has_decoder:
            return SpecialTokenTemplate(source_prefix=(self.bos_id,), source_suffix=(self.eos_id,))
        return self.special_token_template or SpecialTokenTemplate(
            source_suffix=(self.eos_id,), target_prefix=(self.bos_id,)
        )

    @property
    def softmax_scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        return self.attention_scale or self.attention_head_dim**-0.5

    @property
    def attention_head_dim(self) -> int:
        return self.head_dim or self.d_model // self.num_heads

    @property
    def attention_kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads


@dataclass(frozen=True, kw_only=True)
class TrainConfig(_Config):
    """How a model is trained. Exactly one of `steps` and `minutes` ends the run."""

    tokenizer: TokenizerKind = "bpe"
    vocab_size: int = 8000  # upper limit for the tokenizer that is trained on the corpus
    documents: Documents = "lines"  # of a language model: every line is a text, or a file is one text cut in windows
    validation_size: int = 1000  # examples held out, at most a tenth, unless validation data is given
    batch_tokens: int = 4096  # target tokens of one batch, padding included
    accumulate: int = 1  # batches of one optimiser step
    steps: int = 0  # optimiser steps; 0: until `minutes`
    minutes: float = 0.0  # wall-clock training time; the learning rate decays against it
    learning_rate: float = 2e-3  # the peak
    warmup_steps: int = 400
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.98
    clip_norm: float = 1.0  # 0: no clipping
    label_smoothing: float = 0.1
    balance_weight: float = 0.01  # of the loss that spreads tokens over experts (Fedus et al. 2022)
    mask_share: float = 0.15  # of the tokens of a text that a masked head has to tell (Devlin et al. 2019)
    average_checkpoints: int = 5  # the last K saved states are averaged into the result; 1: only the last
    save_every_steps: int = 500
    validate_every_steps: int = 500
    log_every_steps: int = 10  # of the training loss in metrics.csv and on the progress line
    bf16: bool | Literal["auto"] = "auto"  # autocast; weights and optimiser stay float32. auto: where that is fast
    seed: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bf16 != "auto" and not isinstance(self.bf16, bool):
            raise ConfigError("bf16", f"must be true, false or auto, got {self.bf16!r}")
        for name in (
            "batch_tokens",
            "accumulate",
            "average_checkpoints",
            "save_every_steps",
            "validate_every_steps",
            "log_every_steps",
            "validation_size",
        ):
            self._require(name, 1)
        for name in ("steps", "minutes", "warmup_steps", "weight_decay", "clip_norm", "balance_weight"):
            self._require(name, 0)
        self._require("vocab_size", 8)
        self._require("label_smoothing", 0.0, 0.99)
        self._require("mask_share", 0.01, 0.99)
        self._require("beta1", 0.0, 0.9999)
        self._require("beta2", 0.0, 0.99999)
        if self.learning_rate <= 0:
            raise ConfigError("learning_rate", f"must be above 0, got {self.learning_rate}")
        if (self.steps > 0) == (self.minutes > 0):
            raise ConfigError(
                "steps", f"set exactly one of steps and minutes, got steps={self.steps} minutes={self.minutes}"
            )


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model and its training under one name. `embedded`: the corpus it trains on when no data is given."""

    description: str
    model: ModelConfig
    train: TrainConfig
    embedded: Embedded = ""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """A preset from a YAML file: `preset: NAME` to start from, and what differs under `model` and `train`."""
        known = ("preset", "description", "embedded", "model", "train")
        for key in values:
            if key not in known:
                raise ConfigError(key, unknown_key(key, known))
        base = find_preset(str(values["preset"])) if "preset" in values else None
        model, train = values.get("model") or {}, values.get("train") or {}
        for name, part in (("model", model), ("train", train)):
            if not isinstance(part, Mapping):
                raise ConfigError(name, f"must be a mapping, got {part!r}")
        if {"steps", "minutes"} & set(train) and base is not None:
            train = {"steps": 0, "minutes": 0.0, **train}  # either one replaces whichever the base has
        embedded = values.get("embedded", base.embedded if base else "")
        if embedded not in get_args(Embedded):
            raise ConfigError(
                "embedded", f"must be one of {', '.join(filter(None, get_args(Embedded)))}, got {embedded!r}"
            )
        return cls(
            description=values.get("description", base.description if base else ""),
            model=base.model.replace(**model) if base else ModelConfig.from_json(model),
            train=base.train.replace(**train) if base else TrainConfig.from_json(train),
            embedded=embedded,
        )


PRESETS: Mapping[str, Preset] = {
    "demo": Preset(
        description="English to German on the embedded scene grammar: two to four minutes on two cores",
        model=ModelConfig(
            d_model=128, d_ff=512, num_encoder_layers=2, num_decoder_layers=2, max_source_len=64, max_target_len=64
        ),
        train=TrainConfig(
            tokenizer="words",
            vocab_size=4000,
            batch_tokens=2048,
            steps=1000,
            learning_rate=4e-3,
            warmup_steps=200,
            label_smoothing=0.0,
            average_checkpoints=3,
            save_every_steps=100,
            validation_size=500,
        ),
        embedded="pairs",
    ),
    "scenes": Preset(
        description="decoder-only, English scenes of the embedded grammar: three minutes on two cores",
        model=ModelConfig(
            architecture="decoder", d_model=128, d_ff=512, num_decoder_layers=3, positions="rotary", max_target_len=128
        ),
        train=TrainConfig(
            tokenizer="words",
            vocab_size=4000,
            batch_tokens=2048,
            minutes=3,
            learning_rate=4e-3,
            warmup_steps=200,
            label_smoothing=0.0,
            average_checkpoints=3,
            save_every_steps=100,
            validation_size=500,
        ),
        embedded="scenes",
    ),
    "tatoeba-small": Preset(
        description="everyday sentences, any pair of languages: 7.6 M parameters, 15 minutes on two cores",
        model=ModelConfig(
            d_model=256, d_ff=1024, num_encoder_layers=3, num_decoder_layers=3, max_source_len=128, max_target_len=128
        ),
        train=TrainConfig(
            vocab_size=8000,
            batch_tokens=2048,  # in two or three epochs many small steps learn more than half as many large ones
            minutes=15,
            learning_rate=2e-3,
            warmup_steps=300,  # of about 2,500 steps
            average_checkpoints=4,
            save_every_steps=100,  # so that the average reaches back over little more than the last tenth
            validate_every_steps=250,
        ),
    ),
    "shakespeare": Preset(
        description="decoder-only, one long text: ten minutes on two cores",
        model=ModelConfig(
            architecture="decoder",
            d_model=256,
            d_ff=1024,
            num_decoder_layers=4,
            positions="rotary",
            dropout=0.1,
            max_target_len=256,
        ),
        train=TrainConfig(
            vocab_size=1024,
            documents="stream",
            batch_tokens=4096,
            minutes=10,
            learning_rate=2e-3,
            warmup_steps=100,
            label_smoothing=0.0,
            save_every_steps=100,
            validate_every_steps=100,
        ),
    ),
    "masked-scenes": Preset(
        description="encoder alone, fills masks in English scenes of the embedded grammar: two minutes on two cores",
        model=ModelConfig(
            architecture="encoder", head="masked", d_model=128, d_ff=512, num_encoder_layers=3, max_source_len=128
        ),
        train=TrainConfig(
            tokenizer="words",
            vocab_size=4000,
            batch_tokens=2048,
            minutes=2,
            learning_rate=4e-3,
            warmup_steps=200,
            label_smoothing=0.0,
            average_checkpoints=3,
            save_every_steps=100,
            validation_size=500,
        ),
        embedded="scenes",
    ),
    "sentence-kinds": Preset(
        description="encoder alone, tells eight kinds of English sentences by attention pooling: a minute on two cores",
        model=ModelConfig(
            architecture="encoder", head="attention", d_model=64, d_ff=256, num_encoder_layers=2, max_source_len=64
        ),
        train=TrainConfig(
            tokenizer="words",
            vocab_size=4000,
            batch_tokens=1024,
            minutes=1,
            learning_rate=2e-3,
            warmup_steps=100,
            label_smoothing=0.0,
            average_checkpoints=3,
            save_every_steps=100,
            validation_size=500,
        ),
        embedded="kinds",
    ),
    "tiny-copy": Preset(
        description="copies letters: the whole path in seconds, for tests",
        model=ModelConfig(
            d_model=32,
            num_heads=2,
            d_ff=64,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_source_len=32,
            max_target_len=32,
        ),
        train=TrainConfig(
            tokenizer="words",
            vocab_size=64,
            batch_tokens=512,
            steps=60,
            learning_rate=5e-3,
            warmup_steps=10,
            label_smoothing=0.0,
            average_checkpoints=1,
            save_every_steps=30,
            validate_every_steps=30,
            validation_size=100,
            bf16=False,
        ),
        embedded="copy",
    ),
    "demo-recurrent": Preset(
        description="like demo with an LSTM and attention instead of a Transformer: two minutes on two cores",
        model=ModelConfig(
            architecture="recurrent",
            d_model=128,
            num_encoder_layers=1,
            num_decoder_layers=1,
            input_feeding=True,
            max_source_len=64,
            max_target_len=64,
        ),
        train=TrainConfig(
            tokenizer="words",
            vocab_size=4000,
            batch_tokens=2048,
            minutes=2,
            learning_rate=4e-3,
            warmup_steps=100,
            label_smoothing=0.0,
            average_checkpoints=3,
            save_every_steps=100,
            validation_size=500,
        ),
        embedded="pairs",
    ),
    "tiny-copy-recurrent": Preset(
        description="copies letters by a GRU with attention: the whole path in seconds, for tests",
        model=ModelConfig(
            architecture="recurrent",
            cell="gru",
            score="dot",
            d_model=48,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_source_len=32,
            max_target_len=32,
        ),
        train=TrainConfig(
            tokenizer="words",
            vocab_size=64,
            batch_tokens=512,
            steps=200,
            learning_rate=1e-2,
            warmup_steps=10,
            label_smoothing=0.0,
            average_checkpoints=1,
            save_every_steps=100,
            validate_every_steps=100,
            validation_size=100,
            bf16=False,
        ),
        embedded="copy",
    ),
}


def find_preset(name: str) -> Preset:
    """The preset of this name; ConfigError with the closest one if there is none."""
    if name not in PRESETS:
        raise ConfigError("preset", f"{name!r}: {unknown_key(name, PRESETS)}")
    return PRESETS[name]


def load_preset(name_or_file: str) -> Preset:
    """A preset by name, or from a YAML file (`Preset.from_json`). Raises ConfigError, OSError."""
    if not name_or_file.endswith((".yaml", ".yml")):
        return find_preset(name_or_file)
    try:
        values = yaml.safe_load(Path(name_or_file).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(name_or_file, f"is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(name_or_file, f"must be a mapping with model and train, got {type(values).__name__}")
    return Preset.from_json(values)
