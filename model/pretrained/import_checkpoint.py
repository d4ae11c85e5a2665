"""Converts a directory written by Hugging Face's `save_pretrained` to a Glossa checkpoint.

`import_model` converts the weights, `convert_tokenizer` the tokenizer; this module combines both into a checkpoint with
its lineage. An imported checkpoint has no TrainConfig and no metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from model.architectures import build
from model.atomic_write import digest_of_file
from model.checkpoint import check_unfinished, save_checkpoint
from model.config import ModelConfig
from model.pretrained.files import (
    CONFIG,
    GENERATION_CONFIG,
    PretrainedError,
    read_json,
    read_optional_json,
    weight_files,
)
from model.pretrained.import_model import import_model
from model.pretrained.languages import with_languages
from model.tokenizer import Tokenizer
from model.training.report import table

MAX_LENGTH = 4096  # default context in tokens: position tables and KV caches grow with it
DESCRIPTIONS = ("*.json", "*.txt", "*.model", "*.spm")  # configuration and tokenizer files


@dataclass(frozen=True, kw_only=True)
class ImportedCheckpoint:
    """Summary of an import. max_source_len and max_target_len are those of the original."""

    config: ModelConfig
    parameters: int
    max_source_len: int
    max_target_len: int
    lineage: dict[str, Any]


def import_checkpoint(
    source: Path,
    out: Path,
    tokenizer: Tokenizer,
    *,
    allow_pickle: bool = False,
    max_length: int = MAX_LENGTH,
    eos_id: int | None = None,
) -> ImportedCheckpoint:
    """Writes the checkpoint `out`.

    max_length: maximum context in tokens. eos_id: the only end-of-sequence token, instead of those in the source files.
    Raises PretrainedError for an unsupported source, CheckpointError if `out` exists or cannot be written.
    """
    check_unfinished(out)
    theirs = import_model(source, allow_pickle=allow_pickle, eos_id=eos_id)
    if tokenizer.vocab_size > theirs.config.vocab_size:
        sizes = f"{theirs.config.vocab_size} is less than the {tokenizer.vocab_size} entries of the tokenizer"
        raise PretrainedError(f"{CONFIG}: vocab_size {sizes}")
    ours = with_languages(theirs, source, tokenizer.special).shortened(max_length)
    with torch.device("meta"):
        names = [name for name, _ in build(ours.config).named_parameters()]  # tied weights once
    weights = {name: ours.weights[name] for name in names}
    lineage = lineage_of(source)
    parameters = sum(tensor.numel() for tensor in weights.values())
    save_checkpoint(
        out,
        ours.config,
        weights,
        tokenizer=tokenizer,
        train=None,
        metrics={},
        lineage=lineage,
        extra={"model_card.md": model_card(ours.config, parameters, lineage).encode()},
    )
    return ImportedCheckpoint(
        config=ours.config,
        parameters=parameters,
        max_source_len=theirs.config.max_source_len,
        max_target_len=theirs.config.max_target_len,
        lineage=lineage,
    )


def lineage_of(source: Path) -> dict[str, Any]:
    """The lineage of an import: the original model and the digests of its files."""
    config = read_json(source / CONFIG)
    files = {file for pattern in DESCRIPTIONS for file in source.glob(pattern)} | set(weight_files(source))
    return {
        "imported_from": source.resolve().name,
        "model_type": config["model_type"],
        "transformers_version": config.get("transformers_version"),
        "files_sha256": {file.name: digest_of_file(file) for file in sorted(files)},
        "generation_config": read_optional_json(source / GENERATION_CONFIG),
        "versions": {name: metadata.version(name) for name in ("torch", "tokenizers", "safetensors")},
    }


def model_card(model: ModelConfig, parameters: int, lineage: dict[str, Any]) -> str:
    """The model card in Markdown."""
    origin = {name: value for name, value in lineage.items() if not isinstance(value, dict)}
    parts = [
        f"# {lineage['imported_from']}",
        f"A {lineage['model_type']} model with {parameters:,} parameters that Glossa imported and did not train.",
        table("Lineage", origin),
        table("Files (SHA-256)", lineage["files_sha256"]),
        table("Versions", lineage["versions"]),
        table("Model", model.to_json()),
    ]
    return "\n\n".join(parts) + "\n"
