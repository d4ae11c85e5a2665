"""One configuration class for each architecture, with the fields that it uses and no others.

    ModelConfig
    ├── TransformerConfig       heads, feed-forwards, norms and positions
    │   ├── EncoderDecoderConfig
    │   └── LayeredConfig       layers whose attention differs: DecoderConfig, EncoderConfig
    └── RecurrentConfig         LSTM and GRU cells

`model_config` makes the one that an `architecture` names. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, Self, get_args

from model.config import Architecture, ModelConfig, SpecialTokenTemplate, bounded, check, field_types, unknown_key
from model.config_parts import (
    DenseLayer,
    LayerGroup,
    Prompts,
    RotaryScaling,
    check_compression,
    check_default,
    check_labels,
    check_language,
    check_layers,
    check_numbers,
    check_ssru,
    check_token,
    check_vocabularies,
    parts,
    prompts,
)

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Norm = Literal["layer", "rms"]
NormPosition = Literal["pre", "post", "res_post", "sandwich"]
NormSpan = Literal["head", "all"]
Positions = Literal["sinusoidal", "learned", "rotary", "shaw", "bucketed", "alibi", "none"]
Sinusoids = Literal["interleaved", "halves", "fairseq", "tensor2tensor"]
Mixing = Literal["attention", "ssru"]
Head = Literal["none", "masked", "classify", "attention", "tokens"]
Pooler = Literal["none", "tanh", "relu"]
Pooling = Literal["mean", "cls", "max", "last", "mean_sqrt_len", "weighted_mean"]
Cell = Literal["lstm", "gru"]
SourceUnit = Literal["sentence", "text"]
Score = Literal["none", "dot", "multiplicative", "additive"]

_STACKS = ("num_encoder_layers", "num_decoder_layers")
MAX_CONTEXT = 8  # sentences: a few hundred tokens, which every step attends to


class _ArchitectureConfig(ModelConfig):
    """A key of another architecture is refused as such."""

    @classmethod
    def unknown(cls, key: str) -> str:
        users = [name for name, config in CLASSES.items() if key in field_types(config)]
        if not users:
            return unknown_key(key, (*field_types(cls), "architecture"))
        fix = f"leave it out, or choose {' or '.join(users)}"
        return f"architecture {cls.architecture} does not use it; {fix}"


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(_ArchitectureConfig):
    """Blocks of attention and feed-forward."""

    num_heads: int = bounded(4, 1)
    num_kv_heads: int = bounded(0, 0)  # 0: num_heads; fewer = grouped-query attention (Ainslie et al. 2023)
    head_dim: int = bounded(0, 0)  # 0: d_model / num_heads
    d_ff: int = bounded(1024, 1)
    activation: Activation = "relu"
    gated: bool = False  # act(W1 x) * W3 x instead of act(W1 x) (Shazeer 2020)
    num_experts: int = bounded(0, 0)  # feed-forwards of each block that a router chooses from; 0: one, no router
    experts_per_token: int = 1  # the number of them that each token is sent to
    norm: Norm = "layer"
    norm_position: NormPosition = "pre"  # post is the order of Vaswani et al. 2017; see model.layers.Residual
    norm_eps: float = 1e-5
    attention_scale: float = bounded(0.0, 0)  # of the scores; 0: 1/sqrt(head_dim); 1: unscaled, as in T5
    qk_norm: bool = False  # RMSNorm of queries and keys (Henry et al. 2020)
    qk_norm_span: NormSpan = "head"  # what is normalized together: each head, or all heads
    qk_norm_after_rotary: bool = False  # they turn before they are normalized
    positions: Positions = "sinusoidal"
    position_dim: int = bounded(0, 0)  # width of a position vector concatenated with the token's; 0: it is added
    sinusoids: Sinusoids = "interleaved"  # see model.positions.sinusoidal_table
    position_range: int = bounded(128, 1)  # shaw, bucketed: the distance that longer ones count as
    position_buckets: int = bounded(32, 4)  # of bucketed positions, half of them for each direction in an encoder
    rotary_base: float = bounded(10000.0, 1)
    rotary_dims: int = bounded(0, 0)  # dimensions of a head that are rotated; 0: all
    rotary_scaling: RotaryScaling = "none"  # see model.positions.rotary_frequencies
    rotary_factor: float = bounded(1.0, 1)  # by which scaled angles turn slower
    rotary_low_freq: float = 1.0  # llama3, yarn: turns in the original context below which the factor counts in full
    rotary_high_freq: float = 4.0  # llama3, yarn: turns above which it does not count
    rotary_original_len: int = bounded(8192, 1)  # llama3, yarn, longrope: the original context
    rotary_factors: tuple[float, ...] = ()  # longrope: of each angle up to the original context, then in a longer one
    rotary_amplitude: float = 1.0  # yarn, longrope: of the rotated queries and keys
    bias: bool = True  # of the linear layers
    qkv_bias: bool = False  # with bias false: query, key and value have one nevertheless, as in Qwen2

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.norm_eps > 0, "norm_eps", f"must be above 0, got {self.norm_eps}")
        self._require("experts_per_token", 1, max(self.num_experts, 1))
        self._check_heads("num_heads", self.num_heads)
        heads, kv_heads = self.num_heads, self.attention_kv_heads
        check(heads % kv_heads == 0, "num_kv_heads", f"must divide num_heads {heads}, got {kv_heads}")
        self._check_vectors()
        self._check_rotary()
        is_far = self.positions != "bucketed" or self.position_range > self.position_buckets // 2
        check(is_far, "position_range", f"must be above half of position_buckets, got {self.position_range}")

    def _check_heads(self, field: str, heads: int) -> None:
        divides = bool(self.head_dim) or self.d_model % heads == 0
        check(divides, field, f"must divide d_model {self.d_model} unless head_dim is set, got {heads}")

    def _check_vectors(self) -> None:
        """Sinusoidal and learned positions."""
        kind, width = self.positions, self.position_dim or self.d_model
        if kind == "sinusoidal":
            field = "position_dim" if self.position_dim else "d_model"
            check(width % 2 == 0, field, f"must be even for sinusoidal positions, got {width}")
            is_wide = self.sinusoids in ("interleaved", "halves") or width >= 4
            check(is_wide, "sinusoids", f"fairseq's need a width of at least 4, got {width}")
        if self.position_dim:
            goes_with = f"must be below d_model {self.d_model} and goes with sinusoidal or learned positions"
            is_beside = kind in ("sinusoidal", "learned") and self.position_dim < self.d_model
            check(is_beside, "position_dim", f"{goes_with}, got {self.position_dim} with {kind}")
            is_tied = self.tie_embeddings and (self.has_decoder or self.head == "masked")
            problem = "must be false with position_dim: token vectors are narrower than states"
            check(not is_tied, "tie_embeddings", problem)

    def _check_rotary(self) -> None:
        rotated, head_dim = self.rotary_dims or self.attention_head_dim, self.attention_head_dim
        field = "rotary_dims" if self.rotary_dims else "head_dim"
        fits = self.positions != "rotary" or (rotated % 2 == 0 and rotated <= head_dim)
        check(fits, field, f"must be even and at most head_dim {head_dim} for rotary positions, got {rotated}")
        low, high = self.rotary_low_freq, self.rotary_high_freq
        check(0 < low < high, "rotary_low_freq", f"must be above 0 and below rotary_high_freq {high}, got {low}")
        check(self.rotary_amplitude > 0, "rotary_amplitude", f"must be above 0, got {self.rotary_amplitude}")
        has_frequencies = self.rotary_scaling != "yarn" or self.rotary_base > 1
        count = rotated if self.rotary_scaling == "longrope" else 0
        check_numbers(self.rotary_factors, "rotary_factors", count)
        check(has_frequencies, "rotary_base", f"must be above 1 with yarn, got {self.rotary_base}")

    @property
    def has_last_norm(self) -> bool:
        """Whether a norm follows the last layer, whose sum no norm has seen."""
        return self.norm_position != "post"

    @property
    def is_stretched(self) -> bool:
        """Whether the context is longer than that in which rotary positions were learnt."""
        return max(self.max_source_len, self.max_target_len) > self.rotary_original_len

    @property
    def encoder_stack(self) -> TransformerConfig:
        """The configuration that the encoder's layers are built from."""
        return self


@dataclass(frozen=True, kw_only=True)
class _TranslationConfig(_ArchitectureConfig):
    """A source and a target."""

    num_encoder_layers: int = bounded(3, 1)
    num_decoder_layers: int = bounded(3, 1)
    share_embeddings: bool = True  # source and target have one embedding
    max_source_len: int = bounded(256, 1)  # tokens, end of sentence included
    max_target_len: int = bounded(256, 1)  # tokens after the start token
    context_sentences: int = bounded(0, 0, MAX_CONTEXT)  # most sentences before each one that it reads beside it
    separator_id: int | None = None  # the token between them; set from the tokenizer when training starts
    source_unit: SourceUnit = "text"  # what a source is, by the training data: when training starts, or at import
    source_language: str = ""  # of a model of two languages, by its code; "": unknown, or named by each request
    target_language: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_token(self.separator_id, "separator_id", self.vocab_size)
        for field in ("source_language", "target_language"):
            check_language(field, getattr(self, field))

    def check_trainable(self) -> None:
        """As `ModelConfig.check_trainable`; sentences need a token between them."""
        super().check_trainable()
        others = (None, self.pad_id, self.bos_id, self.eos_id, self.unk_id)
        has_separator = not self.context_sentences or self.separator_id not in others
        check(has_separator, "separator_id", f"must be a token of its own with context, got {self.separator_id}")


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(TransformerConfig, _TranslationConfig):
    """The Transformer of Vaswani et al. 2017. Encoder and decoder may differ in heads and feed-forward width."""

    architecture: ClassVar[Architecture] = "encoder_decoder"

    encoder_num_heads: int = bounded(0, 0)  # of the encoder's self-attention; 0: num_heads
    encoder_d_ff: int = bounded(0, 0)  # 0: d_ff
    source_vocab_size: int = bounded(0, 0)  # sources have so many ids of their own; 0: those of targets
    sliding_window: int = bounded(0, 0)  # a decoder's token attends to itself and the window - 1 tokens before; 0: all
    decoder_mixing: Mixing = "attention"  # of target positions; ssru: a recurrent layer (Kim et al. 2019)
    ensemble_size: int = bounded(1, 1)  # members whose distributions are averaged; the layers are those of all together

    def __post_init__(self) -> None:
        super().__post_init__()
        heads, kv_heads = self.encoder_num_heads or self.num_heads, self.num_kv_heads or 1
        self._check_heads("encoder_num_heads", heads)
        check(heads % kv_heads == 0, "encoder_num_heads", f"must be a multiple of num_kv_heads {kv_heads}, got {heads}")
        _ = self.encoder_stack  # which must be a valid configuration, too
        check_ssru(self.decoder_mixing, self.positions, self.sliding_window)
        check_vocabularies(self)
        size = self.ensemble_size
        for field in _STACKS:
            layers, problem = getattr(self, field), f"must be a multiple of ensemble_size {size}"
            check(layers % size == 0, field, f"{problem}, got {layers}")
        check(size == 1 or not self.num_experts, "ensemble_size", "must be 1 with num_experts: no ensembles of experts")

    def check_trainable(self) -> None:
        """As `ModelConfig.check_trainable`; the members of an ensemble are trained one by one."""
        super().check_trainable()
        problem = f"must be 1 for training, got {self.ensemble_size}; train the members, each with its seed"
        check(self.ensemble_size == 1, "ensemble_size", problem)

    @property
    def member(self) -> EncoderDecoderConfig:
        """The configuration of one member of an ensemble."""
        layers = {name: getattr(self, name) // self.ensemble_size for name in _STACKS}
        return self.replace(ensemble_size=1, **layers)

    @property
    def source_dim(self) -> int:
        """The width of the encoder's states: those of all members."""
        return self.d_model * self.ensemble_size

    @property
    def encoder_stack(self) -> TransformerConfig:
        """As the decoder's, without its window, and with the encoder's own heads and feed-forward width."""
        if not (self.encoder_num_heads or self.encoder_d_ff or self.sliding_window):
            return self
        heads, width = self.encoder_num_heads or self.num_heads, self.encoder_d_ff or self.d_ff
        own: dict[str, Any] = {"encoder_num_heads": 0, "encoder_d_ff": 0, "sliding_window": 0}
        return dataclasses.replace(self, num_heads=heads, d_ff=width, **own)


@dataclass(frozen=True, kw_only=True)
class LayeredConfig(TransformerConfig):
    """Layers of one stack, whose attention may differ."""

    sliding_window: int = bounded(0, 0)  # a token attends to itself and window - 1 tokens before; encoders: and after
    layer_groups: tuple[LayerGroup, ...] = ()  # layers with another window or other rotary positions

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "layer_groups", parts(self.layer_groups, "layer_groups", LayerGroup))
        count, turns = self.num_encoder_layers + self.num_decoder_layers, self.positions == "rotary"
        check_layers(self.layer_groups, count, "layer_groups", can_turn=turns, layer=partial(_layer.__wrapped__, self))

    def layer(self, number: int) -> Self:
        """The configuration of one layer, the first is 0, without groups."""
        found: Self = _layer(self, number) if self.layer_groups else self
        return found


@lru_cache(maxsize=1024)
def _layer(config: LayeredConfig, number: int) -> Any:
    changes = next((group.changes for group in config.layer_groups if number in group.layers), {})
    return dataclasses.replace(config, layer_groups=(), **changes)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(LayeredConfig):
    """A decoder-only language model."""

    architecture: ClassVar[Architecture] = "decoder"

    num_decoder_layers: int = bounded(3, 1)
    parallel_residual: bool = False  # attention and feed-forward read the same x (Wang and Komatsuzaki 2021); pre-norm
    attention_softcap: float = bounded(0.0, 0)  # c of c tanh(s / c) for scores s (Gemma 2), before biases; 0: none
    logits_softcap: float = bounded(0.0, 0)  # the same of the logits, before their bias
    compression_stride: int = bounded(0, 0)  # of every second layer: positions per key (Liu et al. 2018); 0: none
    max_target_len: int = bounded(256, 1)  # tokens of the whole context

    def __post_init__(self) -> None:
        super().__post_init__()
        is_pre = not self.parallel_residual or self.norm_position == "pre"
        check(is_pre, "parallel_residual", f"needs norm_position pre, got {self.norm_position}")
        check_compression(self)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(LayeredConfig):
    """An encoder alone. head: predicts masked tokens, labels of a text (from the first state, or all) or of tokens."""

    architecture: ClassVar[Architecture] = "encoder"

    num_encoder_layers: int = bounded(3, 0)  # 0: head attention pools the token vectors themselves
    max_source_len: int = bounded(256, 1)  # tokens, special ones included
    first_attention_norm: bool = True  # false: the first layer attends to what the embedding's norm returns
    head: Head = "none"
    pooler: Pooler = "none"  # a layer with this activation over the first token's state
    pooling: Pooling = "mean"  # how the states of a text become its vector, unless a request says otherwise
    dense: tuple[DenseLayer, ...] = ()  # layers that this vector passes
    normalized: bool = False  # that vector is scaled to length 1
    prompts: Prompts = ()  # by name: what a request may put before its text
    default_prompt: str = ""  # the name of the one that stands there unless a request says otherwise; "": none
    pools_prompt: bool = True  # the pooling includes the tokens of a prompt
    labels: tuple[str, ...] = ()  # of texts or of tokens; set from the data when training starts
    multi_label: bool = False  # a sigmoid for each label instead of one softmax over all
    mask_id: int | None = None  # the token that hides another one; None: there is none

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "dense", parts(self.dense, "dense", DenseLayer))
        object.__setattr__(self, "prompts", prompts(self.prompts, "prompts"))
        check_default(self.default_prompt, "default_prompt", self.prompts)
        check_token(self.mask_id, "mask_id", self.vocab_size)
        check_labels(self.labels, "labels")
        is_used = self.is_classifier or self.is_tagger or not self.labels
        check(is_used, "labels", f"go with head classify, attention or tokens, got head {self.head}")
        is_used = self.is_classifier or not self.multi_label
        check(is_used, "multi_label", f"goes with head classify or attention, got head {self.head}")
        self._require("num_encoder_layers", 0 if self.head == "attention" else 1)
        has_norm = self.first_attention_norm or (self.norm_position == "pre" and self.embedding_norm)
        check(has_norm, "first_attention_norm", "must be true without embedding_norm and norm_position pre, got false")

    def check_trainable(self) -> None:
        """As `ModelConfig.check_trainable`; the head must have something to learn."""
        super().check_trainable()
        check(self.head != "none", "head", "must be masked, classify, attention or tokens for training, got none")
        others = (None, self.pad_id, self.bos_id, self.eos_id, self.unk_id)
        has_mask = self.head != "masked" or self.mask_id not in others
        check(has_mask, "mask_id", f"must be a token of its own for a masked head, got {self.mask_id}")
        least = 1 if self.multi_label else 2
        has_labels = not (self.is_classifier or self.is_tagger) or len(self.labels) >= least
        check(has_labels, "labels", f"must be at least {least} for training, got {len(self.labels)}")

    @property
    def has_encoder(self) -> bool:
        """Also without layers: the graph `encode` returns the token vectors."""
        return True

    @property
    def vector_size(self) -> int:
        """The size of a text's vector after all its layers."""
        return self.dense[-1].size if self.dense else self.d_model

    @property
    def template(self) -> SpecialTokenTemplate:
        """The default puts bos_id first: the token whose state represents the text."""
        default = SpecialTokenTemplate(source_prefix=(self.bos_id,), source_suffix=(self.eos_id,))
        return self.special_token_template or default


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(_TranslationConfig):
    """An encoder and a decoder of LSTM or GRU cells. d_model: the width of token vectors and decoder states."""

    architecture: ClassVar[Architecture] = "recurrent"

    cell: Cell = "lstm"  # Hochreiter and Schmidhuber 1997, or Cho et al. 2014
    score: Score = "multiplicative"  # of encoder and decoder states; none: no attention, only initial decoder states
    input_feeding: bool = False  # the attention vector is an input of the next step (Luong et al. 2015, 3.3)
    bidirectional: bool = True  # the encoder also reads from the end (Bahdanau et al. 2015)
    encoder_dim: int = bounded(0, 0)  # d1, the width of the encoder's states, both directions together; 0: d_model
    attention_dim: int = bounded(0, 0)  # d3 of the additive score; 0: d_model

    def __post_init__(self) -> None:
        super().__post_init__()
        width = self.source_dim
        got = f"got encoder_dim {width} and d_model {self.d_model}; choose multiplicative or additive"
        check(self.score != "dot" or width == self.d_model, "score", f"dot needs states of one width, {got}")
        field = "encoder_dim" if self.encoder_dim else "d_model"
        is_even = not self.bidirectional or width % 2 == 0
        check(is_even, field, f"must be even for a bidirectional encoder, got {width}")
        has_score = not self.input_feeding or self.score != "none"
        check(has_score, "input_feeding", "feeds the attention vector and needs a score, got none")

    @property
    def source_dim(self) -> int:
        """The width of the encoder's states."""
        return self.encoder_dim or self.d_model


CLASSES: Mapping[Architecture, type[_ArchitectureConfig]] = {
    config.architecture: config for config in (EncoderDecoderConfig, DecoderConfig, EncoderConfig, RecurrentConfig)
}


def model_config(values: Mapping[str, Any]) -> ModelConfig:
    """The configuration of these JSON values, whose `architecture` is encoder_decoder unless given. Raises ConfigError
    for a field that the architecture does not use."""
    architecture = values.get("architecture", "encoder_decoder")
    known = get_args(Architecture)
    check(architecture in known, "architecture", f"must be one of {', '.join(known)}, got {architecture!r}")
    return CLASSES[architecture].from_json(values)
