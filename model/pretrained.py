"""Checkpoints of other people, in Hugging Face's `save_pretrained` form, as checkpoints of ours.

A family says what a `config.json` of its `model_type` means as a `ModelConfig` and where each of our weights is among
theirs. Families of decoder-only models are here, others in `model.pretrained_seq2seq` and `model.pretrained_encoder`.
What a family does not cover is refused with the field and its value; a tensor that nobody asked for is refused too, so
that nothing that changes an answer is left out in silence.

    PretrainedError    not such a directory, not covered, or weights are missing or left over
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from model.config import ConfigError, Framing, ModelConfig

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLED_WEIGHTS = "pytorch_model.bin"


class PretrainedError(Exception):
    """A checkpoint of another library cannot be taken over."""


class Fields:
    """A configuration as JSON, read field by field."""

    def __init__(self, values: Mapping[str, Any], *, file: str = CONFIG) -> None:
        self._values, self._file = values, file

    def get(self, name: str, default: Any) -> Any:
        """The value, or the default where the field is absent or null."""
        value = self._values.get(name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        """The value of a field without which nothing can be said."""
        value = self._values.get(name)
        if value is None:
            raise PretrainedError(f"{self._file}: {name} is missing")
        return value

    def only(self, name: str, *allowed: Any, default: Any) -> Any:
        """The value, refused unless it is one of those that are covered."""
        value = self.get(name, default)
        if value not in allowed:
            covered = ", ".join(map(repr, allowed))
            raise PretrainedError(f"{self._file}: {name} {value!r} is not covered; covered: {covered}")
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
        return self._tensors.pop(name).float()

    def stack(self, *names: str) -> Tensor:
        """Several tensors, one below the other."""
        return torch.cat([self.take(name) for name in names])

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

    allow_pickle: read pytorch_model.bin where there are no safetensors; with `weights_only`, which runs no code of it.
    """
    config = _read_json(path / CONFIG)
    generation = _read_json(path / GENERATION_CONFIG) if (path / GENERATION_CONFIG).is_file() else {}
    return Fields(config), Fields(generation, file=GENERATION_CONFIG), Weights(_read_tensors(path, allow_pickle))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{path}: cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise PretrainedError(f"{path}: must hold an object")
    return values


def _read_tensors(path: Path, allow_pickle: bool) -> dict[str, Tensor]:
    files = [path / WEIGHTS]
    if (path / WEIGHTS_INDEX).is_file():
        names = sorted(set(_read_json(path / WEIGHTS_INDEX).get("weight_map", {}).values()))
        files = [path / Path(name).name for name in names]  # a name, never a path to somewhere else
    elif not files[0].is_file() and (path / PICKLED_WEIGHTS).is_file():
        if not allow_pickle:
            raise PretrainedError(
                f"{path / PICKLED_WEIGHTS} is a pickle and there is no {WEIGHTS}; convert it to safetensors, or say "
                "--allow-pickle if you trust where it comes from"
            )
        pickled: dict[str, Tensor] = torch.load(path / PICKLED_WEIGHTS, map_location="cpu", weights_only=True)
        return pickled
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= safetensors.torch.load_file(file)
        except (OSError, safetensors.SafetensorError) as error:
            raise PretrainedError(f"{file}: cannot be read: {error}") from error
    return tensors


def import_model(path: Path, *, allow_pickle: bool = False) -> Imported:
    """The model in a directory. Raises PretrainedError."""
    config, generation, weights = read_directory(path, allow_pickle=allow_pickle)
    kind = config.need("model_type")
    families = all_families()
    if kind not in families:
        raise PretrainedError(f"{CONFIG}: model_type {kind!r} is not covered; covered: {', '.join(sorted(families))}")
    try:
        imported = families[kind](config, generation, weights)
        if imported.config.architecture == "encoder":
            from model.pretrained_encoder import with_special_tokens

            imported = with_special_tokens(imported, path)
    except ConfigError as error:
        raise PretrainedError(f"{CONFIG}: what it describes is not covered: {error}") from error
    weights.finish()
    return imported


# ---- decoder-only models


def _gpt2(config: Fields, _generation: Fields, weights: Weights) -> Imported:
    """GPT-2 (Radford et al. 2019): learned positions, pre-norm, one product for query, key and value."""
    config.only("scale_attn_weights", True, default=True)
    config.only("scale_attn_by_inverse_layer_idx", False, default=False)
    config.only("add_cross_attention", False, default=False)
    width, layers, eos = config.need("n_embd"), config.need("n_layer"), config.get("eos_token_id", 50256)
    model = ModelConfig(
        architecture="decoder",
        vocab_size=config.need("vocab_size"),
        d_model=width,
        num_heads=config.need("n_head"),
        d_ff=config.get("n_inner", 4 * width),
        num_decoder_layers=layers,
        activation=config.choice("activation_function", ACTIVATIONS, default="gelu_new"),  # type: ignore[arg-type]
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        positions="learned",
        embedding_scale=1.0,
        tie_embeddings=config.get("tie_word_embeddings", True),
        max_target_len=config.need("n_positions"),
        pad_id=config.get("pad_token_id", eos),
        bos_id=config.get("bos_token_id", eos),
        eos_id=eos,
        unk_id=eos,
        framing=Framing(),  # prompts begin with their first token
    )
    base = "transformer." if "transformer.wte.weight" in weights else ""
    ours = {
        "decoder.embedding.tokens.weight": weights.take(f"{base}wte.weight"),
        "decoder.embedding.positions": weights.take(f"{base}wpe.weight"),
        "decoder.norm.weight": weights.take(f"{base}ln_f.weight"),
        "decoder.norm.bias": weights.take(f"{base}ln_f.bias"),
    }
    for i in range(layers):
        theirs, mine = f"{base}h.{i}.", f"decoder.blocks.{i}."
        for name, place in (("ln_1", "self_residual.norm"), ("ln_2", "feed_forward_residual.norm")):
            ours |= {f"{mine}{place}.{part}": weights.take(f"{theirs}{name}.{part}") for part in ("weight", "bias")}
        for name, place in (
            ("attn.c_attn", "self_attention.query_key_value"),
            ("attn.c_proj", "self_attention.output"),
            ("mlp.c_fc", "feed_forward.inner"),
            ("mlp.c_proj", "feed_forward.outer"),
        ):
            ours[f"{mine}{place}.weight"] = weights.take(f"{theirs}{name}.weight").T.contiguous()
            ours[f"{mine}{place}.bias"] = weights.take(f"{theirs}{name}.bias")
        weights.leave(f"{theirs}attn.bias", f"{theirs}attn.masked_bias")
    if model.tie_embeddings:
        weights.leave("lm_head.weight")
        ours["decoder.unembedding.weight"] = ours["decoder.embedding.tokens.weight"]
    else:
        ours["decoder.unembedding.weight"] = weights.take("lm_head.weight")
    return Imported(config=model, weights=ours)


FAMILIES: dict[str, Family] = {"gpt2": _gpt2}


def all_families() -> dict[str, Family]:
    """Those of decoder-only models and all others, by model_type."""
    from model import pretrained_encoder  # which is made of the classes above

    return FAMILIES | pretrained_encoder.FAMILIES
