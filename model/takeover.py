"""From a directory of Hugging Face's `save_pretrained` to a checkpoint of ours.

What the weights mean is in `model.pretrained`, what the tokenizer does in `model.convert_tokenizer`; here both become
one checkpoint that says where it comes from. It has no training of its own: no TrainConfig, no metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from model.checkpoint import check_unfinished, write_checkpoint
from model.config import ModelConfig
from model.disk import digest_of_file
from model.pretrained import CONFIG, GENERATION_CONFIG, Imported, PretrainedError, import_model, read_json, weight_files
from model.report import table
from model.tokenizer import Tokenizer
from model.transformer import build

MAX_LENGTH = 4096  # of a context unless asked otherwise: tables of positions and caches grow with it
DESCRIPTIONS = ("*.json", "*.txt", "*.model", "*.spm")  # files beside the weights that say what a model is
TOKEN_ROWS = ("embedding.tokens.weight", "unembedding.weight", "unembedding.bias")


@dataclass(frozen=True, kw_only=True)
class Takeover:
    """What was taken over, to be told to the user. max_source_len, max_target_len and vocab_size are theirs."""

    config: ModelConfig
    parameters: int
    max_source_len: int
    max_target_len: int
    vocab_size: int
    lineage: dict[str, Any]


def take_over(
    source: Path,
    out: Path,
    tokenizer: Tokenizer,
    *,
    allow_pickle: bool = False,
    max_length: int = MAX_LENGTH,
    eos_id: int | None = None,
) -> Takeover:
    """Write the checkpoint `out`. Raises PretrainedError for what is not covered, CheckpointError for the disk.

    max_length: longest context that is kept, in tokens. eos_id: what ends answers, where their files name several. Rows
    of the vocabulary that the tokenizer has no text for, with which many models are padded, are left out.
    """
    check_unfinished(out)
    theirs = import_model(source, allow_pickle=allow_pickle, eos_id=eos_id)
    ours = with_vocabulary(theirs.shortened(max_length), tokenizer.vocab_size)
    with torch.device("meta"):
        names = [name for name, _ in build(ours.config).named_parameters()]  # of tied weights one
    weights = {name: ours.weights[name] for name in names}
    lineage = lineage_of(source)
    parameters = sum(tensor.numel() for tensor in weights.values())
    write_checkpoint(
        out,
        ours.config,
        weights,
        tokenizer=tokenizer,
        train=None,
        metrics={},
        lineage=lineage,
        extra={"model_card.md": model_card(ours.config, parameters, lineage).encode()},
    )
    return Takeover(
        config=ours.config,
        parameters=parameters,
        max_source_len=theirs.config.max_source_len,
        max_target_len=theirs.config.max_target_len,
        vocab_size=theirs.config.vocab_size,
        lineage=lineage,
    )


def with_vocabulary(imported: Imported, size: int) -> Imported:
    """With the first `size` entries of the vocabulary. Raises PretrainedError if there are not as many."""
    theirs = imported.config.vocab_size
    if size > theirs:
        raise PretrainedError(f"{CONFIG}: vocab_size {theirs} is less than the {size} entries of the tokenizer")
    weights = {
        name: tensor[:size] if name.endswith(TOKEN_ROWS) else tensor for name, tensor in imported.weights.items()
    }
    return Imported(config=imported.config.replace(vocab_size=size), weights=weights)


def lineage_of(source: Path) -> dict[str, Any]:
    """Where a model comes from: what it was, with the digests of its files."""
    config = read_json(source / CONFIG)
    files = {file for pattern in DESCRIPTIONS for file in source.glob(pattern)} | set(weight_files(source))
    generation = source / GENERATION_CONFIG
    return {
        "imported_from": source.resolve().name,
        "model_type": config["model_type"],
        "transformers_version": config.get("transformers_version"),
        "files_sha256": {file.name: digest_of_file(file) for file in sorted(files)},
        "generation_config": read_json(generation) if generation.is_file() else {},
        "versions": {name: metadata.version(name) for name in ("torch", "tokenizers", "safetensors")},
    }


def model_card(model: ModelConfig, parameters: int, lineage: dict[str, Any]) -> str:
    """Markdown for a person who is handed the checkpoint."""
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
