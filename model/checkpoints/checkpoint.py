"""Checkpoint directories: a finished model with everything needed to use it and to trace its origin. Written once.

    config.json        {"format_version": 2, "model": {…}, "train": {…}}; without "train" if it was not trained here
    tokenizer.json     Hugging Face `tokenizers`
    model.safetensors  float32 weights by parameter name (float16 in examples/everyday); tied weights once; or, of a
                       LoRA adapter, instead of it
    adapter.json       where the base is, its digest, and the scale of the LoRA matrices (`model.adapters`)
    adapter.safetensors  the parameters that were trained; loading puts them into those of the base
    metrics.json       scores of the training run; {} if there was none
    lineage.json       seed, git commit, data digest, versions; or what it was imported from
    shortlist.json     target tokens by source token (`export.bundle.target_shortlist`), if imported with it
    chat_template.json, translation_template.json   how it is prompted, if it has that (`model.prompts`)
    training_rows.safetensors  digests of the rows it was trained on, if known (`model.checkpoints.training_rows`)
    digests.json       size and SHA-256 of every file; written last, so a directory without it is no checkpoint

Only safetensors and JSON: nothing here can execute code when loaded. The states a training run resumes from are
`model/training/training_state.py`'s.

    CheckpointError    missing, damaged, of another format, or impossible to write
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.adapters import merged_weights
from model.architecture_config import model_config
from model.architectures import Model, build
from model.checkpoints.atomic_write import (
    DIGESTS,
    Content,
    DamagedError,
    Disk,
    Pieces,
    digest_of_file,
    digests_of,
    size_of,
    verify,
    write_file,
)
from model.checkpoints.checkpoint_format_1 import upgraded_config, upgraded_weight
from model.config import ConfigError, ModelConfig, TrainConfig
from model.prompts.templates import NO_TEMPLATES, Templates, TemplatesError
from model.tokenizer import Tokenizer, TokenizerError

FORMAT_VERSION = 2  # 1, of release 0.1.0, is read as well
WEIGHTS = "model.safetensors"
SHORTLIST = "shortlist.json"
ADAPTER, ADAPTER_WEIGHTS = "adapter.json", "adapter.safetensors"
REQUIRED = ("config.json", "tokenizer.json", "metrics.json", "lineage.json")  # besides the weights
TYPES = {  # weights, moments; packed weights; random generators; digests
    torch.float32: "F32",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.int64: "I64",
}


class CheckpointError(Exception):
    """A checkpoint cannot be read or written."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint; the model is on the CPU, in float32 and in evaluation mode. train: None if the model was not
    trained here."""

    model: Any  # a `Model`; its class follows from the architecture, as with `build`
    config: ModelConfig
    tokenizer: Tokenizer
    metrics: dict[str, Any]
    lineage: dict[str, Any]
    train: TrainConfig | None = None
    templates: Templates = NO_TEMPLATES


@dataclass(frozen=True)
class Adapter:
    """The base of an adapter and how its LoRA matrices are merged. base_sha256: of the base's digests.json."""

    base: Path
    base_sha256: str
    scale: float

    def to_json(self, path: Path) -> dict[str, Any]:
        """For a checkpoint at `path`, from which the base is found again."""
        relative = os.path.relpath(self.base.resolve(), path.resolve())
        return {"base": relative, "base_sha256": self.base_sha256, "scale": self.scale}


def save_checkpoint(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer,
    train: TrainConfig | None,
    metrics: Mapping[str, Any],
    lineage: Mapping[str, Any],
    adapter: Adapter | None = None,
    extra: Mapping[str, Content] | None = None,
    disk: Disk | None = None,
) -> None:
    """Write a checkpoint into `path`, which may exist but must not hold a finished checkpoint yet.

    weights: float32, by the names of the model's parameters (`weights_of`); the file is written without a copy of them.
    train: None if the model was not trained here. adapter: `weights` are only those that differ from this base. extra:
    further files (model card, curves, digests of training rows) under their names.
    On any failure `path` still is no finished checkpoint; CheckpointError gives the reason.
    """
    check_unfinished(path)
    training = {} if train is None else {"train": train.to_json()}
    files: dict[str, Content] = {
        "config.json": to_json({"format_version": FORMAT_VERSION, "model": config.to_json(), **training}),
        "tokenizer.json": tokenizer.to_json().encode(),
        WEIGHTS if adapter is None else ADAPTER_WEIGHTS: tensors_in_pieces(weights),
        "metrics.json": to_json(metrics),
        "lineage.json": to_json(lineage),
        **({} if adapter is None else {ADAPTER: to_json(adapter.to_json(path))}),
        **(extra or {}),
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name, data in {**files, DIGESTS: digests_of(files)}.items():
            write_file(path / name, data, disk)
    except OSError as error:
        (path / DIGESTS).unlink(missing_ok=True)  # renamed, but perhaps not durably
        raise CheckpointError(cannot_save(path, error, sum(map(size_of, files.values())))) from error


def check_unfinished(path: Path) -> None:
    """Raises CheckpointError if `path` already holds a finished checkpoint."""
    if (path / DIGESTS).exists():
        raise CheckpointError(f"{path} already holds a finished checkpoint; choose another directory or delete it")


def check_new(path: Path) -> None:
    """Raises CheckpointError if there is anything at `path` but an empty directory."""
    check_unfinished(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path} holds other files; choose another directory")


def load_checkpoint(path: Path, *, maps_weights: bool = False) -> Checkpoint:
    """Verify every file against digests.json, then build the model. CheckpointError names the file that is wrong.

    maps_weights: the parameters are the file itself, mapped into memory: for callers that only read them, and no longer
    than the file stays as it is.
    """
    if not (path / DIGESTS).is_file():
        raise CheckpointError(_not_a_checkpoint(path))
    is_adapter = (path / ADAPTER).is_file()
    try:
        verify(path, (*REQUIRED, *((ADAPTER, ADAPTER_WEIGHTS) if is_adapter else (WEIGHTS,))))
        files = {name: (path / name).read_bytes() for name in REQUIRED}
    except DamagedError as error:
        raise CheckpointError(f"{error}; copy or train the checkpoint again") from error
    config, train = read_config(files["config.json"], path)
    if not config.vocab_size:
        raise CheckpointError(f"{path / 'config.json'}: vocab_size: must be that of the weights, got 0")
    try:
        tokenizer = Tokenizer.from_json(
            files["tokenizer.json"].decode(),
            name=str(path / "tokenizer.json"),
            vocab_size=config.vocab_size,
            source_vocab_size=config.source_vocab_size,
        )
    except (TokenizerError, UnicodeDecodeError) as error:
        raise CheckpointError(str(error)) from error
    with _Undrawn() if maps_weights else contextlib.nullcontext():
        model: Model = build(config)
    tensors = _adapted_weights(path, model) if is_adapter else map_tensors(path / WEIGHTS)
    load_weights(model, tensors, path, copies=not maps_weights)
    metrics, lineage = json.loads(files["metrics.json"]), json.loads(files["lineage.json"])
    return Checkpoint(model.eval(), config, tokenizer, metrics, lineage, train, _templates(path))


class _Undrawn(TorchFunctionMode):
    """Leaves new parameters as the allocator gives them, without a page of memory that was written."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def _templates(path: Path) -> Templates:
    try:
        return Templates.read(path)
    except (TemplatesError, OSError) as error:
        raise CheckpointError(f"{error}; correct it with the model's import, or import without it") from error


def digest_of_checkpoint(path: Path) -> str:
    """SHA-256 of digests.json, and thereby of every file. Raises CheckpointError if there is no checkpoint."""
    if not (path / DIGESTS).is_file():
        raise CheckpointError(_not_a_checkpoint(path))
    return digest_of_file(path / DIGESTS)


def _adapted_weights(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """The weights of an adapter's base with the adapter merged, as far as the model has them."""
    where = path / ADAPTER
    try:
        values = json.loads(where.read_bytes())
        base, expected, scale = Path(values["base"]), str(values["base_sha256"]), float(values["scale"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: cannot be read: {error!r}") from error
    base = (path.resolve() / base).resolve()
    if not (base / DIGESTS).is_file():
        raise CheckpointError(f"{where}: the base {base} is no checkpoint; put the one with SHA-256 {expected} there")
    if (found := digest_of_checkpoint(base)) != expected:
        raise CheckpointError(f"{where}: the base {base} must have SHA-256 {expected}, got {found}; put the right one")
    weights, tensors = weights_of(load_checkpoint(base).model), map_tensors(path / ADAPTER_WEIGHTS)
    try:
        merged = merged_weights(weights, tensors, scale)
    except (KeyError, RuntimeError) as error:  # a layer or a matrix that is missing, or shapes that do not fit
        raise CheckpointError(f"{path / ADAPTER_WEIGHTS}: does not fit the base {base}: {error}") from error
    names = {name for name, _ in model.named_parameters()}
    return {name: tensor for name, tensor in merged.items() if name in names}


def read_config(data: bytes, path: Path) -> tuple[ModelConfig, TrainConfig | None]:
    """Both configurations out of config.json, the second one if it was trained here; `path` is the directory, for
    messages."""
    where = path / "config.json"
    try:
        values = json.loads(data)
        version = values["format_version"]
        if version not in (1, FORMAT_VERSION):
            raise CheckpointError(f"{where}: format_version must be 1 or {FORMAT_VERSION}, got {version!r}")
        train = TrainConfig.from_json(values["train"]) if "train" in values else None
        return model_config(upgraded_config(values["model"]) if version == 1 else values["model"]), train
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{where}: cannot be read: {error!r}") from error


def tensors_in_pieces(tensors: Mapping[str, Tensor]) -> Pieces:
    """A safetensors file of tensors of `TYPES`, whole only on disk. The format: the size of a JSON header as a
    little-endian uint64, the header with each tensor's type, shape and offset, then the tensors one after another."""
    header, end = dict[str, Any](), 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    described = json.dumps(header).encode()
    described += b" " * (-len(described) % 8)  # so that what follows is aligned

    def parts() -> Iterator[bytes | memoryview]:
        yield struct.pack("<Q", len(described)) + described
        for tensor in tensors.values():
            yield tensor.cpu().contiguous().flatten().numpy().data.cast("B")

    return Pieces(8 + len(described) + end, parts)


def map_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, which come into memory where they are read."""
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(file)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{file}: not a safetensors file: {error}") from error
    return tensors


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by their names, without gradient."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path, *, copies: bool = True) -> None:
    """Copy weights into the model's parameters, or let these be the tensors; names and shapes must agree exactly."""
    parameters = dict(model.named_parameters())
    tensors = {upgraded_weight(name): tensor for name, tensor in tensors.items()}
    for name in sorted(parameters.keys() ^ tensors.keys()):
        problem = "is missing" if name in parameters else "is not part of the model that config.json describes"
        raise CheckpointError(f"{path}: weight {name} {problem}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                raise CheckpointError(
                    f"{path}: weight {name} must have shape {tuple(parameter.shape)}, got {tuple(tensors[name].shape)}"
                )
            if copies:
                parameter.copy_(tensors[name])
            else:
                parameter.data = tensors[name].to(parameter.dtype)


def to_json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def cannot_save(path: Path, error: OSError, needed_bytes: int) -> str:
    """The message for a failed save: what, why, how much is needed and free, and what to do."""
    existing = next(parent for parent in (path, *path.resolve().parents) if parent.exists())
    free_bytes = shutil.disk_usage(existing).free
    return (
        f"{path}: cannot be saved: {error.strerror or error}; {needed_bytes / 1e6:.1f} MB needed, "
        f"{free_bytes / 1e6:.1f} MB free; what was saved before is intact"
    )


def _not_a_checkpoint(path: Path) -> str:
    if not path.exists():
        return f"{path}: no such directory; train a model there or give the directory of a checkpoint"
    if (path / "states").is_dir():
        return f"{path}: this training run is not finished; finish it with --resume"
    return f"{path}: not a checkpoint, {DIGESTS} is missing; give a directory that training has finished"
