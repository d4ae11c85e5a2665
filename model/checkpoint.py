"""Checkpoint directories: a finished model with everything needed to use and to trace it. Written once, atomically.

    config.json        {"format_version": 1, "model": {…}, "train": {…}}
    tokenizer.json     Hugging Face `tokenizers`
    model.safetensors  weights by parameter name; tied weights once
    metrics.json       scores of the training run
    lineage.json       seed, git commit, data digest, versions
    digests.json       size and SHA-256 of every file; written last, so a directory without it is no checkpoint

Only safetensors and JSON: nothing here can execute code when loaded. The states a training run resumes from are
`model/state.py`'s.

    CheckpointError    missing, damaged, of another format, or impossible to write
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from model.config import ConfigError, ModelConfig, TrainConfig
from model.disk import DIGESTS, DamagedError, Disk, digests_of, read_verified, write_file
from model.tokenizer import Tokenizer, TokenizerError
from model.transformer import Model, build

FORMAT_VERSION = 1
REQUIRED = ("config.json", "tokenizer.json", "model.safetensors", "metrics.json", "lineage.json")


class CheckpointError(Exception):
    """A checkpoint cannot be read or written."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint; the model is on the CPU, in float32 and in evaluation mode."""

    model: Any  # a `Model`; its class follows from the architecture, as with `build`
    config: ModelConfig
    tokenizer: Tokenizer
    metrics: dict[str, Any]
    lineage: dict[str, Any]
    path: Path


def save_checkpoint(
    path: Path,
    model: Model,
    *,
    tokenizer: Tokenizer,
    train: TrainConfig,
    metrics: Mapping[str, Any],
    lineage: Mapping[str, Any],
    extra: Mapping[str, bytes] | None = None,
    disk: Disk | None = None,
) -> None:
    """Write a checkpoint into `path`, which may exist but must not hold a finished checkpoint yet.

    extra: further files (model card, curves) under their names. On any failure `path` still is no finished checkpoint
    and CheckpointError says why.
    """
    if (path / DIGESTS).exists():
        raise CheckpointError(f"{path} already holds a finished checkpoint; choose another directory or delete it")
    files = {
        "config.json": config_json(model.config, train),
        "tokenizer.json": tokenizer.to_json().encode(),
        "model.safetensors": weights_to_bytes(model),
        "metrics.json": to_json(metrics),
        "lineage.json": to_json(lineage),
        **(extra or {}),
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name, data in {**files, DIGESTS: digests_of(files)}.items():
            write_file(path / name, data, disk)
    except OSError as error:
        (path / DIGESTS).unlink(missing_ok=True)  # renamed, but perhaps not durably
        raise CheckpointError(cannot_save(path, error, sum(map(len, files.values())))) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Verify every file against digests.json, then build the model. CheckpointError names the file that is wrong."""
    if not (path / DIGESTS).is_file():
        raise CheckpointError(_not_a_checkpoint(path))
    try:
        files = read_verified(path, REQUIRED)
    except DamagedError as error:
        raise CheckpointError(f"{error}; copy or train the checkpoint again") from error
    config, _ = read_config(files["config.json"], path)
    try:
        tokenizer = Tokenizer.from_json(files["tokenizer.json"].decode(), name=str(path / "tokenizer.json"))
    except (TokenizerError, UnicodeDecodeError) as error:
        raise CheckpointError(str(error)) from error
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            f"{path / 'tokenizer.json'}: must have the model's {config.vocab_size} entries, got {tokenizer.vocab_size}"
        )
    model: Model = build(config)
    load_weights(model, read_tensors(files["model.safetensors"], path / "model.safetensors"), path)
    metrics, lineage = json.loads(files["metrics.json"]), json.loads(files["lineage.json"])
    return Checkpoint(model.eval(), config, tokenizer, metrics, lineage, path)


def config_json(model: ModelConfig, train: TrainConfig) -> bytes:
    return to_json({"format_version": FORMAT_VERSION, "model": model.to_json(), "train": train.to_json()})


def read_config(data: bytes, path: Path) -> tuple[ModelConfig, TrainConfig]:
    """Both configurations out of config.json; `path` is the directory, for messages."""
    where = path / "config.json"
    try:
        values = json.loads(data)
        version = values["format_version"]
        if version != FORMAT_VERSION:
            raise CheckpointError(f"{where}: format_version must be {FORMAT_VERSION}, got {version!r}")
        return ModelConfig.from_json(values["model"]), TrainConfig.from_json(values["train"])
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: cannot be read: {error!r}") from error


def weights_to_bytes(model: nn.Module) -> bytes:
    return tensors_to_bytes({name: parameter.detach() for name, parameter in model.named_parameters()})


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file; the tensors may be on any device and must not share memory."""
    data: bytes = safetensors.torch.save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
    return data


def read_tensors(data: bytes, where: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{where}: not a safetensors file: {error}") from error
    return tensors


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy weights into the model's parameters; names and shapes must agree exactly."""
    parameters = dict(model.named_parameters())
    for name in sorted(parameters.keys() ^ tensors.keys()):
        problem = "is missing" if name in parameters else "is not part of the model that config.json describes"
        raise CheckpointError(f"{path}: weight {name} {problem}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                raise CheckpointError(
                    f"{path}: weight {name} must have shape {tuple(parameter.shape)}, got {tuple(tensors[name].shape)}"
                )
            parameter.copy_(tensors[name])


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
