"""Checkpoints of other people, in Hugging Face's `save_pretrained` form, as checkpoints of ours.

A family says what a `config.json` of its `model_type` means as a `ModelConfig` and where each of our weights is among
theirs. Families of decoder-only models are here, others in `model.pretrained_seq2seq` and `model.pretrained_encoder`.
What a family does not cover is refused with the field and its value; a tensor that nobody asked for is refused too, so
that nothing that changes an answer is left out in silence.

    PretrainedError    not such a directory, not covered, or weights are missing or left over
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from model.config import ConfigError, Framing, ModelConfig
from model.transformer import build

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLED_WEIGHTS = "pytorch_model.bin"
PICKLED_WEIGHTS_INDEX = "pytorch_model.bin.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
# What changes answers wherever it stands, and no family covers.
NOT_COVERED = (
    "quantization_config",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_kv_shared_layers",
)


class PretrainedError(Exception):
    """A checkpoint of another library cannot be taken over."""


class Fields:
    """A configuration as JSON, read field by field."""

    def __init__(self, values: Mapping[str, Any], *, file: str = CONFIG) -> None:
        self._values, self.file = values, file

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._values)

    def get(self, name: str, default: Any) -> Any:
        """The value, or the default where the field is absent or null."""
        value = self._values.get(name)
        return default if value is None else value

    def __contains__(self, name: str) -> bool:
        """Whether the field is there, null or not."""
        return name in self._values

    def need(self, name: str) -> Any:
        """The value of a field without which nothing can be said."""
        value = self._values.get(name)
        if value is None:
            raise PretrainedError(f"{self.file}: {name} is missing")
        return value

    def count(self, name: str) -> int:
        """The value of a field that must be a whole number from 1."""
        value = self.need(name)
        if type(value) is not int or value < 1:
            raise PretrainedError(f"{self.file}: {name} must be a whole number from 1, got {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """The value of a field that must be a number; needed unless there is a default."""
        value = self.need(name) if default is None else self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PretrainedError(f"{self.file}: {name} must be a number, got {value!r}")
        return float(value)

    def inner(self, name: str) -> Fields:
        """The fields of an object inside; none where it is absent or null."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise PretrainedError(f"{self.file}: {name} must be an object, got {value!r}")
        return Fields(value, file=f"{self.file}: {name}")

    def with_value(self, name: str, value: Any) -> Fields:
        """The same with another value in one field."""
        return Fields({**self._values, name: value}, file=self.file)

    def refuse(self, name: str, fix: str = "") -> PretrainedError:
        """The error that says that the value of a field is not covered."""
        value = self._values.get(name)
        return PretrainedError(f"{self.file}: {name} {value!r:.200} is not covered{fix and '; '}{fix}")

    def only(self, name: str, *allowed: Any, default: Any) -> Any:
        """The value, refused unless it is one of those that are covered."""
        value = self.get(name, default)
        if value not in allowed:
            covered = ", ".join(map(repr, allowed))
            raise PretrainedError(f"{self.file}: {name} {value!r} is not covered; covered: {covered}")
        return value

    def choice(self, name: str, names: Mapping[str, str], *, default: str) -> str:
        """Our word for theirs."""
        return names[self.only(name, *names, default=default)]


class Weights:
    """The tensors of a checkpoint, each to be taken once or left on purpose; float32."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise PretrainedError(f"weights: {name} is missing")
        tensor = self._tensors.pop(name)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise PretrainedError(f"weights: {name} must be float32, float16 or bfloat16, got {tensor.dtype}")
        return tensor.float()

    def stack(self, *names: str) -> Tensor:
        """Several tensors, one below the other."""
        tensors = [self.take(name) for name in names]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def leave(self, *prefixes: str) -> None:
        """Drops tensors that say nothing new: tables that can be worked out, a second name of a tied matrix."""
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if not name.startswith(prefixes)}

    def finish(self) -> None:
        """Raises PretrainedError if anything is left."""
        if self._tensors:
            names = sorted(self._tensors)
            raise PretrainedError(f"weights: {len(names)} tensors are not covered: {', '.join(names[:5])}")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A model in our terms. weights: by the names of `build(config).state_dict()`, float32; of tied ones, each name."""

    config: ModelConfig
    weights: dict[str, Tensor]

    def shortened(self, max_length: int) -> Imported:
        """With a context of at most max_length tokens; a window that is no shorter than it goes."""
        config, weights = self.config, dict(self.weights)
        source, target = min(config.max_source_len, max_length), min(config.max_target_len, max_length)
        for stack, length in (("encoder", source), ("decoder", target)):
            if (name := f"{stack}.embedding.positions") in weights:
                weights[name] = weights[name][:length]
        window = config.window if config.window < target else 0
        config = config.replace(max_source_len=source, max_target_len=target, window=window)
        return Imported(config=config, weights=weights)


Family = Callable[[Fields, Fields, Weights], Imported]
"""config.json, generation_config.json ({} if there is none) and the weights → the model."""

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


def read_directory(path: Path, *, allow_pickle: bool = False) -> tuple[Fields, Fields, Weights]:
    """config.json, generation_config.json and the weights of a directory.

    Weights come into memory where they are read. allow_pickle: read pytorch_model.bin where there are no safetensors;
    with `weights_only`, which runs no code of it.
    """
    config = read_json(path / CONFIG)
    generation = read_json(path / GENERATION_CONFIG) if (path / GENERATION_CONFIG).is_file() else {}
    return Fields(config), Fields(generation, file=GENERATION_CONFIG), Weights(_read_tensors(path, allow_pickle))


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds an object. Raises PretrainedError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{path}: cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise PretrainedError(f"{path}: must hold an object")
    return values


def _read_tensors(path: Path, allow_pickle: bool) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in weight_files(path):
        is_pickle = file.suffix != ".safetensors"
        if is_pickle and not allow_pickle:
            raise PretrainedError(
                f"{file} is a pickle and there is no {WEIGHTS}; convert it to safetensors, or say --allow-pickle if "
                "you trust where it comes from"
            )
        try:
            if is_pickle:
                tensors |= torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            else:
                tensors |= safetensors.torch.load_file(file)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, safetensors.SafetensorError) as error:
            raise PretrainedError(f"{file}: cannot be read: {error}") from error
    return tensors


def weight_files(path: Path) -> list[Path]:
    """Where the weights of a directory are: safetensors, else pickles. Raises PretrainedError if there are none."""
    for whole, index in ((WEIGHTS, WEIGHTS_INDEX), (PICKLED_WEIGHTS, PICKLED_WEIGHTS_INDEX)):
        if (path / index).is_file():
            names = Fields(read_json(path / index), file=index).need("weight_map").values()
            return [path / name for name in sorted({Path(name).name for name in names})]  # never a path to elsewhere
        if (path / whole).is_file():
            return [path / whole]
    raise PretrainedError(f"{path}: holds no weights; there must be {WEIGHTS} or {PICKLED_WEIGHTS}")


def import_model(path: Path, *, allow_pickle: bool = False, eos_id: int | None = None) -> Imported:
    """The model in a directory. Raises PretrainedError.

    eos_id: the only token that ends answers, instead of whatever their files say.
    """
    if not path.is_dir():
        raise PretrainedError(f"{path}: no such directory; give one that save_pretrained has written")
    config, generation, weights = read_directory(path, allow_pickle=allow_pickle)
    if eos_id is not None:
        config = config.with_value("eos_token_id", eos_id)
        generation = generation.with_value("eos_token_id", eos_id) if generation else generation
    kind = config.need("model_type")
    families = all_families()
    if kind not in families:
        raise PretrainedError(f"{CONFIG}: model_type {kind!r} is not covered; covered: {', '.join(sorted(families))}")
    for name in NOT_COVERED:
        if config.get(name, None):
            raise config.refuse(name)
    try:
        imported = families[kind](config, generation, weights)
        weights.finish()
        if imported.config.architecture == "decoder":
            imported = _with_prompt_prefix(imported, path)
        elif imported.config.architecture == "encoder":
            from model.pretrained_encoder import with_special_tokens  # which is made of the classes here

            imported = with_special_tokens(imported, path)
        _check_weights(imported)
    except ConfigError as error:
        raise PretrainedError(f"{CONFIG}: what it describes is not covered: {error}") from error
    return imported


def _with_prompt_prefix(imported: Imported, path: Path) -> Imported:
    """With the tokens that its tokenizer puts before every text, where the directory says which."""
    prefix = _prompt_prefix(path, imported.config.bos_id)
    if prefix is None:
        return imported
    return replace(imported, config=imported.config.replace(framing=Framing(before_target=prefix)))


def _prompt_prefix(path: Path, bos_id: int) -> tuple[int, ...] | None:
    if (path / TOKENIZER_CONFIG).is_file():
        adds = Fields(read_json(path / TOKENIZER_CONFIG), file=TOKENIZER_CONFIG).get("add_bos_token", None)
        if isinstance(adds, bool):
            return (bos_id,) if adds else ()
    if not (path / TOKENIZER).is_file():
        return None
    processor = Fields(read_json(path / TOKENIZER), file=TOKENIZER).inner("post_processor")
    steps = [Fields(step, file=f"{TOKENIZER}: post_processor") for step in processor.get("processors", [])]
    prefix: list[int] = []
    for step in steps or [processor]:
        if step.only("type", "ByteLevel", "TemplateProcessing", default="ByteLevel") == "TemplateProcessing":
            *before, text = step.need("single")  # what stands behind the text would have to be the last one
            if "Sequence" not in text:
                raise step.refuse("single", "tokens behind a prompt would end it")
            special = step.inner("special_tokens")
            prefix += [token for piece in before for token in special.need(piece["SpecialToken"]["id"])["ids"]]
    return tuple(prefix)


def _check_weights(imported: Imported) -> None:
    """Every weight that the configuration speaks of, in its shape, and no other."""
    with torch.device("meta"):
        expected = build(imported.config).state_dict()
    for name in sorted(expected.keys() ^ imported.weights.keys()):
        problem = "is missing" if name in expected else f"is none of the model that {CONFIG} describes"
        raise PretrainedError(f"weights: {name} (in our words) {problem}")
    for name, tensor in imported.weights.items():
        if tensor.shape != expected[name].shape:
            raise PretrainedError(
                f"weights: {name} (in our words) must have shape {tuple(expected[name].shape)} as {CONFIG} says, got "
                f"{tuple(tensor.shape)}"
            )


# ---- decoder-only models


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where decoder-only models keep their weights: `{base}{tokens}.weight`, and of layer i `{base}{layers}.{i}.NAME`.

    norms: theirs → ours, each with the same values. linears: theirs, one below the other → ours, equal parts of that.
    derived: what follows from the configuration. is_transposed: linear layers are (in, out). norm_offset: what has to
    be added to the weights of norms. The base is missing in files of a model without its output.
    """

    norms: Mapping[str, tuple[str, ...]]
    linears: Mapping[tuple[str, ...], tuple[str, ...]]
    base: str = "model."
    layers: str = "layers"
    tokens: str = "embed_tokens"
    positions: str = ""
    norm: str = "norm"
    derived: tuple[str, ...] = ()
    is_transposed: bool = False
    norm_offset: float = 0.0

    def read(self, model: ModelConfig, weights: Weights, unbiased: tuple[str, ...]) -> dict[str, Tensor]:
        """Everything by our names. unbiased: layers that begin so have no bias though the configuration says bias."""
        base = self.base if f"{self.base}{self.tokens}.weight" in weights else ""
        ours = {"decoder.embedding.tokens.weight": weights.take(f"{base}{self.tokens}.weight")}
        if self.positions:
            ours["decoder.embedding.positions"] = weights.take(f"{base}{self.positions}.weight")
        ours |= self._read_norm(model, weights, f"{base}{self.norm}", ["decoder.norm"])
        for i in range(model.num_decoder_layers):
            theirs, mine = f"{base}{self.layers}.{i}.", f"decoder.blocks.{i}."
            for norm, places in self.norms.items():
                ours |= self._read_norm(model, weights, theirs + norm, [mine + place for place in places])
            for names, places in self.linears.items():
                paths = [mine + place for place in places]
                matrix = weights.stack(*(f"{theirs}{name}.weight" for name in names))
                matrix = matrix.T if self.is_transposed else matrix
                ours |= _parts(matrix, paths, "weight")
                if model.bias or (model.qkv_bias and "self_attention.query_key_value" in places):
                    biases = [f"{theirs}{name}.bias" for name in names if not name.startswith(unbiased)]
                    ours |= _parts(weights.stack(*biases) if biases else torch.zeros(len(matrix)), paths, "bias")
            weights.leave(*(f"{theirs}{name}" for name in self.derived))
        if model.tie_embeddings:
            weights.leave("lm_head.weight")
            ours["decoder.unembedding.weight"] = ours["decoder.embedding.tokens.weight"]
        else:
            ours["decoder.unembedding.weight"] = weights.take("lm_head.weight")
        if model.output_bias:
            ours["decoder.unembedding.bias"] = weights.take("lm_head.bias")
        return ours

    def _read_norm(self, model: ModelConfig, weights: Weights, name: str, paths: list[str]) -> dict[str, Tensor]:
        parts = {"weight": weights.take(f"{name}.weight") + self.norm_offset}
        if model.norm == "layer":
            parts["bias"] = weights.take(f"{name}.bias")
        return {f"{path}.{part}": tensor for path in paths for part, tensor in parts.items()}


def _parts(stacked: Tensor, paths: list[str], part: str) -> dict[str, Tensor]:
    """The equal parts of a stack by their names."""
    return {f"{path}.{part}": tensor for path, tensor in zip(paths, stacked.chunk(len(paths)), strict=True)}


@dataclass(frozen=True, kw_only=True)
class DecoderFamily:
    """A `Family` of decoder-only models. describe: their config.json → fields of `ModelConfig`, special tokens apart.

    begins: prompts begin with bos where the directory does not say which tokens its tokenizer adds. biases: fields that
    say whether linear layers, by the beginning of their names, have a bias.
    """

    describe: Callable[[Fields], dict[str, Any]]
    layout: Layout
    begins: bool = True
    biases: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, config: Fields, generation: Fields, weights: Weights) -> Imported:
        has_bias = {prefix: bool(config.get(name, False)) for name, prefix in self.biases.items()}
        tokens = _special_tokens(config, generation)
        framing = Framing(before_target=(tokens["bos_id"],) if self.begins else ())
        fields = {"bias": any(has_bias.values()), **self.describe(config), **tokens, "framing": framing}
        model = ModelConfig(architecture="decoder", **fields)
        unbiased = tuple(prefix for prefix, has in has_bias.items() if not has)
        return Imported(config=model, weights=self.layout.read(model, weights, unbiased))


def _special_tokens(config: Fields, generation: Fields) -> dict[str, Any]:
    """Ids that coincide where a model has none of its own. What ends answers is what `generate` ends them with."""
    for name in ("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
        for fields in (config, generation):
            if fields.get(name, None):
                raise fields.refuse(name)
    origin = generation if generation.get("eos_token_id", None) is not None else config
    ends = origin.get("eos_token_id", None)
    ends = ends if isinstance(ends, list) else [ends]
    if not ends or any(type(token) is not int for token in ends):
        raise origin.refuse("eos_token_id", "an answer must end with a token or one of several; say which, --eos-id ID")
    eos, *more = dict.fromkeys(ends)
    others = {f"{name}_id": config.get(f"{name}_token_id", eos) for name in ("pad", "bos")}
    found = {name: eos if value == -1 else value for name, value in others.items()}
    return {**found, "eos_id": eos, "more_eos_ids": tuple(more), "unk_id": eos}


def _gpt2(config: Fields) -> dict[str, Any]:
    """Radford et al. 2019: learned positions, one product for query, key and value."""
    config.only("scale_attn_weights", True, default=True)
    config.only("scale_attn_by_inverse_layer_idx", False, default=False)
    config.only("add_cross_attention", False, default=False)
    width = config.count("n_embd")
    return {
        "bias": True,
        "vocab_size": config.count("vocab_size"),
        "d_model": width,
        "num_heads": config.count("n_head"),
        "d_ff": config.get("n_inner", 4 * width),
        "num_decoder_layers": config.count("n_layer"),
        "activation": config.choice("activation_function", ACTIVATIONS, default="gelu_new"),
        "norm_eps": config.number("layer_norm_epsilon", 1e-5),
        "positions": "learned",
        "embedding_scale": 1.0,
        "tie_embeddings": config.get("tie_word_embeddings", True),
        "max_target_len": config.count("n_positions"),
    }


def _llama(config: Fields, *, head_dim: int = 0, tied: bool = False, rotary_share: float = 1.0) -> dict[str, Any]:
    """Touvron et al. 2023: rotary positions, RMSNorm, gated feed-forward, no biases; what most others start from.

    head_dim, tied, rotary_share: what holds where config.json does not say.
    """
    width, heads = config.count("hidden_size"), config.count("num_attention_heads")
    head_dim = config.get("head_dim", head_dim or width // heads)
    return {
        "vocab_size": config.count("vocab_size"),
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads", heads),
        "head_dim": head_dim,
        "d_ff": config.count("intermediate_size"),
        "num_decoder_layers": config.count("num_hidden_layers"),
        "activation": config.choice("hidden_act", ACTIVATIONS, default="silu"),
        "gated": True,
        "norm": "rms",
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "embedding_scale": 1.0,
        "tie_embeddings": config.get("tie_word_embeddings", tied),
        "max_target_len": config.count("max_position_embeddings"),
        **_rotary(config, head_dim, rotary_share),
    }


def _mistral(config: Fields) -> dict[str, Any]:
    """Jiang et al. 2023: a window in every layer."""
    window = config.get("sliding_window", 0) if "sliding_window" in config else 4096
    return {**_llama(config), "window": window}


def _qwen2(config: Fields) -> dict[str, Any]:
    """Yang et al. 2024: biases of query, key and value, and of nothing else."""
    return {**_llama(config), "qkv_bias": True, "window": _layered_window(config)}


def _qwen3(config: Fields) -> dict[str, Any]:
    """Yang et al. 2025: each head's query and key are normalised."""
    return {**_llama(config, head_dim=128), "qk_norm": True, "window": _layered_window(config)}


def _gemma(config: Fields) -> dict[str, Any]:
    """Mesnard et al. 2024: token vectors times the root of their width, weights of norms less 1, gated GELU."""
    config.only("use_bidirectional_attention", False, default=False)
    words = {**ACTIVATIONS, "gelu": "gelu_tanh"}  # files of the first release say gelu and mean this
    return {
        **_llama(config, head_dim=256, tied=True),
        "activation": config.choice("hidden_act", words, default="gelu_pytorch_tanh"),
        "embedding_scale": 0.0,
    }


def _phi(config: Fields) -> dict[str, Any]:
    """Li et al. 2023: attention and feed-forward side by side behind one norm, half of a head turns, biases."""
    config.only("qk_layernorm", False, default=False)
    return {
        **_llama(config, rotary_share=0.5),
        "activation": config.choice("hidden_act", ACTIVATIONS, default="gelu_new"),
        "gated": False,
        "norm": "layer",
        "norm_eps": config.number("layer_norm_eps", 1e-5),
        "parallel": True,
        "bias": True,
        "output_bias": True,
    }


def _phi3(config: Fields) -> dict[str, Any]:
    """Abdin et al. 2024: as Llama, with products that are one where they read the same."""
    return {**_llama(config), "window": config.get("sliding_window", 0)}


def _layered_window(config: Fields) -> int:
    """The window, where layers may have one or not, 0: none. All layers must be alike."""
    if not config.get("use_sliding_window", False):
        return 0
    layers, first = config.count("num_hidden_layers"), config.get("max_window_layers", 28)
    kinds = config.get("layer_types", ["sliding_attention" if i >= first else "full_attention" for i in range(layers)])
    if set(kinds) == {"full_attention"}:
        return 0
    if set(kinds) != {"sliding_attention"}:
        raise config.refuse("layer_types" if "layer_types" in config else "max_window_layers", "layers must be alike")
    return config.count("sliding_window")


def _rotary(config: Fields, head_dim: int, share: float) -> dict[str, Any]:
    """Everything of rotary positions, which is in rope_parameters, or beside rope_scaling in earlier files."""
    name = "rope_scaling" if config.get("rope_scaling", None) else "rope_parameters"
    rope = config.inner(name)
    if any(isinstance(value, Mapping) for value in config.get(name, {}).values()):
        raise config.refuse(name, "all layers must turn alike")
    kind = rope.only("rope_type" if "rope_type" in rope else "type", "default", "linear", "llama3", default="default")
    share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", share))
    fields: dict[str, Any] = {
        "positions": "rotary",
        "rotary_base": rope.number("rope_theta", config.number("rope_theta", 10000.0)),
        "rotary_dims": int(head_dim * share) if share < 1 else 0,
    }
    if kind != "default":
        fields |= {"rotary_scaling": kind, "rotary_factor": rope.number("factor")}
    if kind == "llama3":
        original = rope.get("original_max_position_embeddings", config.count("max_position_embeddings"))
        fields |= {
            "rotary_low_freq": rope.number("low_freq_factor"),
            "rotary_high_freq": rope.number("high_freq_factor"),
            "rotary_original_len": config.get("original_max_position_embeddings", original),
        }
    return fields


LLAMA = Layout(
    norms={
        "input_layernorm": ("self_residual.norm",),
        "post_attention_layernorm": ("feed_forward_residual.norm",),
    },
    linears={
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): ("self_attention.query_key_value",),
        ("self_attn.o_proj",): ("self_attention.output",),
        ("mlp.gate_proj",): ("feed_forward.inner",),  # the one that is activated
        ("mlp.up_proj",): ("feed_forward.gate",),
        ("mlp.down_proj",): ("feed_forward.outer",),
    },
    derived=("self_attn.rotary_emb.inv_freq",),
)
LLAMA_BIASES = {"attention_bias": "self_attn.", "mlp_bias": "mlp."}

QWEN3 = replace(
    LLAMA,
    norms={
        **LLAMA.norms,
        "self_attn.q_norm": ("self_attention.query_norm",),
        "self_attn.k_norm": ("self_attention.key_norm",),
    },
)

PHI3 = replace(
    LLAMA,
    linears={
        ("self_attn.qkv_proj",): ("self_attention.query_key_value",),
        ("self_attn.o_proj",): ("self_attention.output",),
        ("mlp.gate_up_proj",): ("feed_forward.inner", "feed_forward.gate"),
        ("mlp.down_proj",): ("feed_forward.outer",),
    },
)

PHI = Layout(
    norm="final_layernorm",
    norms={"input_layernorm": ("self_residual.norm", "feed_forward_residual.norm")},
    linears={
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): ("self_attention.query_key_value",),
        ("self_attn.dense",): ("self_attention.output",),
        ("mlp.fc1",): ("feed_forward.inner",),
        ("mlp.fc2",): ("feed_forward.outer",),
    },
    derived=("self_attn.rotary_emb.inv_freq",),
)

GPT2 = Layout(
    base="transformer.",
    layers="h",
    tokens="wte",
    positions="wpe",
    norm="ln_f",
    norms={"ln_1": ("self_residual.norm",), "ln_2": ("feed_forward_residual.norm",)},
    linears={
        ("attn.c_attn",): ("self_attention.query_key_value",),
        ("attn.c_proj",): ("self_attention.output",),
        ("mlp.c_fc",): ("feed_forward.inner",),
        ("mlp.c_proj",): ("feed_forward.outer",),
    },
    derived=("attn.bias", "attn.masked_bias"),
    is_transposed=True,
)

FAMILIES: dict[str, Family] = {
    "gpt2": DecoderFamily(describe=_gpt2, layout=GPT2, begins=False),
    "llama": DecoderFamily(describe=_llama, layout=LLAMA, biases=LLAMA_BIASES),
    "mistral": DecoderFamily(describe=_mistral, layout=LLAMA),
    "qwen2": DecoderFamily(describe=_qwen2, layout=LLAMA, begins=False),
    "qwen3": DecoderFamily(describe=_qwen3, layout=QWEN3, biases=LLAMA_BIASES, begins=False),
    "gemma": DecoderFamily(describe=_gemma, layout=replace(LLAMA, norm_offset=1.0), biases=LLAMA_BIASES),
    "phi": DecoderFamily(describe=_phi, layout=PHI, begins=False),
    "phi3": DecoderFamily(describe=_phi3, layout=PHI3),
}


def all_families() -> dict[str, Family]:
    """Those of decoder-only models and all others, by model_type."""
    from model import pretrained_encoder, pretrained_seq2seq  # which are made of the classes here

    return FAMILIES | pretrained_seq2seq.FAMILIES | pretrained_encoder.FAMILIES
