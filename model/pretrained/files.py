"""The files of a Hugging Face checkpoint directory: typed access to their fields and weights.

A configuration is read field by field; unsupported values and unknown tensors are rejected, so that nothing that
changes the output is ignored silently.

    PretrainedError    not a checkpoint directory, not supported, or weights are missing or unused
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from model.architectures import build
from model.checkpoints.atomic_write import DIGESTS
from model.config import ModelConfig
from model.pretrained.text_part import text_part

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLED_WEIGHTS = "pytorch_model.bin"
PICKLED_WEIGHTS_INDEX = "pytorch_model.bin.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"


class PretrainedError(Exception):
    """A checkpoint of another library cannot be imported."""


class Fields:
    """A JSON configuration, read field by field; `unread` names the fields that nothing has asked for."""

    def __init__(self, values: Mapping[str, Any], *, file: str = CONFIG, read: set[str] | None = None) -> None:
        self._values, self.file = values, file
        self._read = set[str]() if read is None else read

    def __bool__(self) -> bool:
        """Whether there are any fields."""
        return bool(self._values)

    def get(self, name: str, default: Any) -> Any:
        """The value, or the default where the field is absent or null."""
        self._read.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def __contains__(self, name: str) -> bool:
        """Whether the field exists, null included."""
        self._read.add(name)
        return name in self._values

    def need(self, name: str) -> Any:
        """The value of a required field."""
        self._read.add(name)
        value = self._values.get(name)
        if value is None:
            raise PretrainedError(f"{self.file}: {name} is missing")
        return value

    def count(self, name: str) -> int:
        """The value of a required field, an integer of at least 1."""
        value = self.need(name)
        if type(value) is not int or value < 1:
            raise PretrainedError(f"{self.file}: {name} must be a whole number from 1, got {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """The value of a numeric field; required if there is no default."""
        value = self.need(name) if default is None else self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PretrainedError(f"{self.file}: {name} must be a number, got {value!r}")
        return float(value)

    def inner(self, name: str) -> Fields:
        """The fields of a nested object; empty if it is absent or null."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise PretrainedError(f"{self.file}: {name} must be an object, got {value!r}")
        return Fields(value, file=f"{self.file}: {name}")

    def with_value(self, name: str, value: Any) -> Fields:
        """A copy with one value replaced."""
        return Fields({**self._values, name: value}, file=self.file, read=self._read)

    @property
    def unread(self) -> list[str]:
        """The fields with a value that nothing has read, sorted."""
        return sorted(name for name, value in self._values.items() if value is not None and name not in self._read)

    def refuse(self, name: str, fix: str = "") -> PretrainedError:
        """The error for a value that is not supported."""
        value = self._values.get(name)
        return PretrainedError(f"{self.file}: {name} {value!r:.200} is not covered{fix and '; '}{fix}")

    def only(self, name: str, *allowed: Any, default: Any) -> Any:
        """The value. Raises PretrainedError if it is not one of `allowed`."""
        value = self.get(name, default)
        if value not in allowed:
            covered = ", ".join(map(repr, allowed))
            raise PretrainedError(f"{self.file}: {name} {value!r} is not covered; covered: {covered}")
        return value

    def choice(self, name: str, names: Mapping[str, str], *, default: str) -> str:
        """Our name for the field's value."""
        return names[self.only(name, *names, default=default)]


class Weights:
    """The tensors of a checkpoint. Each must be taken exactly once or dropped explicitly.

    Names may begin with the name of the base model, as in `model.norm.weight`: checkpoints without a head lack it.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, named: Callable[[str], str] = str) -> None:
        """named: how errors name a tensor."""
        self._tensors, self.named = dict(tensors), named

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self._tensors

    def _stored(self, name: str) -> str:
        return name if name in self._tensors else name.partition(".")[2]

    def size(self, name: str) -> int:
        """The length of the first dimension of a tensor. Raises PretrainedError if it is missing."""
        if name not in self:
            raise PretrainedError(f"weights: {self.named(name)} is missing")
        return len(self._tensors[self._stored(name)])

    def take(self, name: str) -> Tensor:
        """Removes a tensor and returns it as float32. Raises PretrainedError if it is missing or not a float tensor."""
        self.size(name)
        tensor = self._tensors.pop(self._stored(name))
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            problem = f"must be float32, float16 or bfloat16, got {tensor.dtype}"
            raise PretrainedError(f"weights: {self.named(name)} {problem}")
        return tensor.float()

    def put(self, name: str, tensor: Tensor) -> None:
        """Adds a tensor, or another one of a name."""
        self._tensors[self._stored(name) if name in self else name] = tensor

    def joined(self, names: Sequence[str]) -> Tensor:
        """Removes tensors and returns them as one. Raises PretrainedError as `take` does, and if they do not fit."""
        parts = [self.take(name) for name in names]
        if len({part.shape[1:] for part in parts}) > 1:
            problem = f"must have equal dimensions but for the first, got {[tuple(part.shape) for part in parts]}"
            raise PretrainedError(f"weights: {', '.join(map(self.named, names))} {problem}")
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def differ(self, name: str, other: str) -> bool:
        """Whether both tensors are stored, with different values."""
        if name not in self or other not in self:
            return False
        first, second = (self._tensors[self._stored(stored)] for stored in (name, other))
        return not torch.equal(first, second)

    def tie(self, output: str, table: str) -> bool:
        """Whether an output projection is the embedding, which then is stored as `table` alone: as in transformers 5,
        unless both are stored and differ, whatever the configuration says."""
        if output not in self:
            return True
        if table not in self:
            self._tensors[table] = self._tensors.pop(self._stored(output))
            return True
        if not torch.equal(self._tensors[self._stored(output)], self._tensors[self._stored(table)]):
            return False
        del self._tensors[self._stored(output)]
        return True

    def rename(self, old: str, new: str) -> None:
        """Replaces the last component of names."""
        self._tensors = {re.sub(rf"\.{old}$", f".{new}", name): tensor for name, tensor in self._tensors.items()}

    def strip(self, *prefixes: str) -> None:
        """Takes such a beginning off names."""
        for prefix in prefixes:
            self._tensors = {name.removeprefix(prefix): tensor for name, tensor in self._tensors.items()}

    def drop(self, *patterns: str) -> None:
        """Drops redundant tensors, such as tables that can be computed. patterns: as in `fnmatch`."""
        kept = [name for name in self._tensors if not any(fnmatchcase(name, pattern) for pattern in patterns)]
        self._tensors = {name: self._tensors[name] for name in kept}

    def finish(self) -> None:
        """Raises PretrainedError if tensors remain."""
        if self._tensors:
            names = ", ".join(sorted(map(self.named, self._tensors))[:5])
            raise PretrainedError(f"weights: {len(self._tensors)} tensors are not covered: {names}")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Weights outside the directory of a model: the files that all comes from, what their lineage says, and how the
    weights are read."""

    files: tuple[Path, ...]
    origin: Mapping[str, str]
    load: Callable[[], Weights]


class NeedsWeightsError(Exception):
    """A configuration has been read as far as that is possible without weights."""


class NoWeights(Weights):
    """Stands for weights that are not there yet. Raises NeedsWeightsError when a tensor decides how to go on."""

    def __init__(self) -> None:
        super().__init__({})

    def __contains__(self, name: str) -> bool:
        raise NeedsWeightsError(name)

    def size(self, name: str) -> int:
        raise NeedsWeightsError(name)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """An imported model. weights: float32, by the names of `build(config).state_dict()`, tied weights included.

    unknown: fields that neither an import reads nor `model.pretrained.field_rules` knows. options: settings of
    `generate`, which each request of Glossa sets itself.
    """

    config: ModelConfig
    weights: dict[str, Tensor]
    unknown: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def shortened(self, max_length: int) -> Imported:
        """A copy with a context of at most max_length tokens. Disables a sliding window of at least that length."""
        config, weights, changes = self.config, dict(self.weights), dict[str, int]()
        for stack, field in (("encoder", "max_source_len"), ("decoder", "max_target_len")):
            length = min(getattr(config, field), max_length)
            if (name := f"{stack}.embedding.positions") in weights:
                weights[name] = weights[name][:length]
            if length:
                changes[field] = length
        windowed = changes.get("max_target_len") or changes["max_source_len"]
        if config.sliding_window >= windowed:
            changes["sliding_window"] = 0
        return dataclasses.replace(self, config=config.replace(**changes), weights=weights)


Names = Mapping[str, str | tuple[str, ...]]
"""Layers of Glossa → their original names. {} stands for the number of a block. Parameters of several original layers
are concatenated along the first dimension; those of none are zeros. A name may also be that of a parameter."""


def in_blocks(stack: str, theirs: str, names: Names) -> Names:
    """The names of layers in all blocks of a stack, such as `decoder`. theirs: a block. names: within a block."""
    parts = {ours: (layers,) if isinstance(layers, str) else layers for ours, layers in names.items()}
    return {f"{stack}.blocks.{{}}.{ours}": tuple(f"{theirs}.{part}" for part in parts[ours]) for ours in names}


def read_weights(
    config: ModelConfig,
    weights: Weights,
    names: Names,
    *,
    known: Mapping[str, Tensor] | None = None,
    changes: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
) -> Imported:
    """The parameters of a model.

    known: parameters that have been read already. changes: functions of stored parameters, by our names.
    Raises PretrainedError for a missing tensor and for a wrong shape.
    """
    with torch.device("meta"):
        expected = build(config).state_dict()
    ours = dict(known or {})
    stored: dict[tuple[str, ...], Tensor] = {}  # a tensor may belong to several parameters
    for name, parameter in expected.items():
        origin = ""
        if name not in ours:
            pattern, sources = _sources(name, names)
            if not sources:
                ours[name] = torch.zeros(parameter.shape)
                continue
            if sources not in stored:
                stored[sources] = weights.joined(sources)
            origin = f" of {', '.join(map(weights.named, sources))}"
            change = (changes or {}).get(pattern)
            ours[name] = change(stored[sources]) if change else stored[sources]
        if ours[name].shape != parameter.shape:
            raise PretrainedError(
                f"weights: {name} (Glossa name) must have shape {tuple(parameter.shape)} of {CONFIG}, got "
                f"{tuple(ours[name].shape)}{origin}"
            )
    return Imported(config=config, weights=ours)


def _sources(name: str, names: Names) -> tuple[str, tuple[str, ...]]:
    """A parameter's name with {} for the number of its block, and the original parameters."""
    block = re.search(r"\.(\d+)\.", name)
    pattern = name.replace(block[0], ".{}.", 1) if block else name
    layer, _, part = pattern.rpartition(".")
    layers, ending = (names[pattern], "") if pattern in names else (names[layer], f".{part}")
    layers = (layers,) if isinstance(layers, str) else layers
    return pattern, tuple(f"{source.format(block and block[1])}{ending}" for source in layers)


Family = Callable[[Fields, Fields, Weights], Imported]
"""config.json, generation_config.json ({} if there is none) and the weights → the model."""

ACTIVATIONS = {
    **{name: name for name in ("relu", "gelu", "silu")},
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
    "swish": "silu",
}


def read_configuration(path: Path) -> tuple[Fields, Fields]:
    """config.json and generation_config.json of a directory. Raises PretrainedError."""
    generation, config = read_optional_json(path / GENERATION_CONFIG), read_json(path / CONFIG)
    if (path / DIGESTS).is_file() and "model_type" not in config:
        raise PretrainedError(f"{path}: is a checkpoint of Glossa already; export it, or train it further")
    return Fields(text_part(config)), Fields(generation, file=GENERATION_CONFIG)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises PretrainedError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{path}: cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise PretrainedError(f"{path}: must hold an object")
    return values


def read_optional_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} if the file does not exist. Raises PretrainedError."""
    return read_json(path) if path.is_file() else {}


def load_weights(path: Path, *, allow_pickle: bool = False) -> Weights:
    """The weights of a directory, all loaded into memory. Raises PretrainedError.

    allow_pickle: read pytorch_model.bin if there are no safetensors files, with `weights_only`, which executes no code
    from the file.
    """
    tensors: dict[str, Tensor] = {}
    for file in weight_files(path):
        is_pickle = file.suffix != ".safetensors"
        if is_pickle and not allow_pickle:
            raise PretrainedError(
                f"{file} is a pickle and there is no {WEIGHTS}; convert it to safetensors, or pass --allow-pickle if "
                "you trust its origin"
            )
        try:
            if is_pickle:
                # Only files since PyTorch 1.6, which are zip files, can be mapped into memory.
                is_zip = zipfile.is_zipfile(file)
                tensors |= torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
            else:
                tensors |= safetensors.torch.load_file(file)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, safetensors.SafetensorError) as error:
            raise PretrainedError(f"{file}: cannot be read: {error}") from error
    return Weights(tensors)


def weight_files(path: Path) -> list[Path]:
    """The weight files of a directory: safetensors, else pickles. Raises PretrainedError if there are none."""
    for whole, index in ((WEIGHTS, WEIGHTS_INDEX), (PICKLED_WEIGHTS, PICKLED_WEIGHTS_INDEX)):
        if (path / index).is_file():
            names = Fields(read_json(path / index), file=index).need("weight_map").values()
            return [path / name for name in sorted({Path(name).name for name in names})]  # never a path to elsewhere
        if (path / whole).is_file():
            return [path / whole]
    raise PretrainedError(f"{path}: holds no weights; there must be {WEIGHTS} or {PICKLED_WEIGHTS}{_or_gguf(path)}")


def check_folder(path: Path) -> None:
    """Raises PretrainedError for a directory without a configuration that holds GGUF files."""
    if not (path / CONFIG).is_file() and (other := _or_gguf(path)):
        raise PretrainedError(f"{path}: holds no {CONFIG}{other}")


def _or_gguf(path: Path) -> str:
    names = sorted(file.name for file in path.glob("*.gguf"))
    return f"; a GGUF file is imported by its own name: {path / names[0]} (of {len(names)})" if names else ""
