"""Adapters of PEFT (`save_pretrained` of peft 0.21): a folder with adapter_config.json, and LoRA matrices beside the
name of a base model. `merged` gives the weights of the base with the adapter, as it computes before it is merged.

Of a table that is embedding and output projection at once, an adapter of PEFT changes the one of both that it names; so
the merged model has two. `merge_and_unload` of PEFT changes both, and computes something else than was trained.

Shapes: O outputs, I inputs, V tokens, D width, R rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from model.pretrained.files import PretrainedError, Weights, read_json

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of every tensor
_LINEAR, _TABLE = (".lora_A.weight", ".lora_B.weight"), (".lora_embedding_A", ".lora_embedding_B")
_OUTPUT, _EMBEDDINGS = "lm_head.weight", ("model.embed_tokens.weight", "transformer.wte.weight")
_BASE_LAYER = ".base_layer.weight"  # a copy of an adapted table of the base
_DRAWN = ("", "true", "false", "gaussian", "eva", "orthogonal")  # that start from the base as it is
_TRAINING = """
auto_mapping base_model_name_or_path ensure_weight_tying eva_config exclude_modules inference_mode layers_pattern
layers_to_transform lora_dropout megatron_core modules_to_save peft_version qalora_group_size r rank_pattern revision
target_modules task_type"""
"""Fields that say how an adapter was trained, or what its tensors show."""
_READ = "alpha_pattern bias fan_in_fan_out init_lora_weights lora_alpha peft_type use_rslora"


@dataclass(frozen=True)
class PeftAdapter:
    """An adapter. folder: its files. base: of the model that it is for, a directory or a name of the Hub; revision: of
    the latter."""

    folder: Path
    base: str
    revision: str | None
    _config: Mapping[str, Any]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that lineage records."""
        return self.folder / ADAPTER_CONFIG, self.folder / ADAPTER_WEIGHTS

    def merged(self, weights: Weights) -> Weights:
        """The weights of a base, which are used up, with the adapter. Raises PretrainedError for those of another
        base."""
        tensors = self._tensors()
        layers = {name.removesuffix(end) for name in tensors for end in (*_LINEAR, *_TABLE) if name.endswith(end)}
        for name in [name for name in tensors if name.endswith(_BASE_LAYER)]:
            self._check_copy(weights, name.removesuffix(_BASE_LAYER), tensors.pop(name))
        for layer in sorted(layers):
            self._merge(weights, layer, tensors)
        for name, tensor in tensors.items():  # modules_to_save, and biases
            self._check_shape(name, self._base(weights, name), tensor)
            weights.put(name, tensor)
        return weights

    def _merge(self, weights: Weights, layer: str, tensors: dict[str, Tensor]) -> None:
        ends = _TABLE if f"{layer}{_TABLE[0]}" in tensors else _LINEAR
        if lacking := [f"{layer}{end}" for end in ends if f"{layer}{end}" not in tensors]:
            raise PretrainedError(f"{self.files[1]}: {lacking[0]} is missing")
        name = f"{layer}.weight"
        plain = self._base(weights, name)
        a_RI, b_OR = (tensors.pop(f"{layer}{end}").float() for end in ends)
        changed = self._scale(layer, len(a_RI)) * (b_OR @ a_RI)
        is_turned = ends is _TABLE or self._config.get("fan_in_fan_out") is True  # stored (V, D) or (I, O)
        changed = changed.T if is_turned else changed
        self._check_shape(name, plain, changed)
        weights.put(name, plain + changed)

    def _base(self, weights: Weights, name: str) -> Tensor:
        """A tensor of the base, float32. Of a table that is two at once, both are stored from here on."""
        if name not in weights and name != _OUTPUT:
            raise PretrainedError(f"{self.files[1]}: {self.base} has no {name}; it is for another base")
        if name in (_OUTPUT, *_EMBEDDINGS) and _OUTPUT not in weights:
            table = next((table for table in _EMBEDDINGS if table in weights), None)
            if table is None:
                raise PretrainedError(f"{self.files[1]}: {name} is not covered for this model: it is no decoder")
            weights.put(_OUTPUT, _peeked(weights, table))
        return _peeked(weights, name)

    def _scale(self, layer: str, rank: int) -> float:
        config = self._config
        alpha = _of_pattern(config.get("alpha_pattern"), layer, config["lora_alpha"])
        if not isinstance(alpha, int | float) or isinstance(alpha, bool):
            raise PretrainedError(f"{self.files[0]}: lora_alpha: must be a number, got {alpha!r}")
        return alpha / (rank**0.5 if config.get("use_rslora") is True else rank)

    def _check_copy(self, weights: Weights, layer: str, copy: Tensor) -> None:
        name = f"{layer}.weight"
        plain = self._base(weights, name)
        self._check_shape(name, plain, copy)
        if not torch.equal(plain, copy.float()):
            raise PretrainedError(f"{self.files[1]}: {name} differs from that of {self.base}; it is of another base")

    def _check_shape(self, name: str, plain: Tensor, own: Tensor) -> None:
        if plain.shape != own.shape:
            shapes = f"{tuple(own.shape)}, and in {self.base} it has {tuple(plain.shape)}"
            raise PretrainedError(f"{self.files[1]}: {name} has the shape {shapes}; it is for another base")

    def _tensors(self) -> dict[str, Tensor]:
        file = self.files[1]
        try:
            found = safetensors.torch.load_file(file)
        except (OSError, safetensors.SafetensorError) as error:
            fix = f"; save the adapter as {ADAPTER_WEIGHTS}" if not file.is_file() else ""
            raise PretrainedError(f"{file}: cannot be read: {error}{fix}") from error
        for name in found:
            if not name.startswith(_PREFIX) or ".lora_magnitude" in name or name.endswith(".lora_B.bias"):
                raise PretrainedError(f"{file}: {name} is not covered; covered: LoRA matrices and whole tensors")
        return {name.removeprefix(_PREFIX): tensor for name, tensor in found.items()}


def read_adapter(folder: Path) -> PeftAdapter:
    """The adapter in a folder. Raises PretrainedError for one that is not covered."""
    file = folder / ADAPTER_CONFIG
    config = read_json(file)
    if (kind := config.get("peft_type")) != "LORA":
        raise PretrainedError(f"{file}: peft_type {kind!r} is not covered; covered: 'LORA'")
    if str(start := config.get("init_lora_weights", "")).lower() not in _DRAWN:
        fix = "save it with path_initial_model_for_weight_conversion"
        raise PretrainedError(f"{file}: init_lora_weights {start!r} is not covered: it changes the base; {fix}")
    for name, value in config.items():
        if value and name not in (*_READ.split(), *_TRAINING.split()):
            raise PretrainedError(f"{file}: {name} {value!r:.60} is not covered; remove the field if it has no effect")
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        fix = "write the directory of the base, or its name on the Hub, into it"
        raise PretrainedError(f"{file}: base_model_name_or_path names no base; {fix}")
    if "lora_alpha" not in config:
        raise PretrainedError(f"{file}: lora_alpha is missing")
    return PeftAdapter(folder, base, config.get("revision") or None, config)


def is_adapter(folder: Path) -> bool:
    """Whether a folder has an adapter of PEFT and no model."""
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def _peeked(weights: Weights, name: str) -> Tensor:
    tensor = weights.take(name)
    weights.put(name, tensor)
    return tensor


def _of_pattern(patterns: Any, layer: str, default: Any) -> Any:
    """The value of the first pattern that matches the end of a layer's name, as PEFT compares them."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return value
    return default
