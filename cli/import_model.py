"""`glossa import`: a model in the format of Hugging Face to a checkpoint. The work is `model.pretrained`'s."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.terminal import AsJson, UsageError, report_errors, show

if TYPE_CHECKING:
    from model.pretrained.import_checkpoint import ImportedCheckpoint


def import_(
    directory: Annotated[Path, typer.Argument(help="directory that save_pretrained of Hugging Face wrote")],
    checkpoint: Annotated[Path, typer.Argument(help="checkpoint directory to write")],
    max_length: Annotated[
        int | None, typer.Option(help="longest context to keep, in tokens [default: the model's, at most 4096]", min=1)
    ] = None,
    eos_id: Annotated[
        int | None,
        typer.Option(help="only token that ends an answer [default: all that the model's files name]", min=0),
    ] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="read pytorch_model.bin where there are no safetensors")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="replace an existing checkpoint")] = False,
    as_json: AsJson = False,
) -> None:
    """Import a Hugging Face model as a checkpoint, which can be exported and served."""
    from model.checkpoint import CheckpointError
    from model.pretrained.convert_tokenizer import convert_tokenizer
    from model.pretrained.files import PretrainedError
    from model.pretrained.import_checkpoint import MAX_LENGTH, import_checkpoint

    with report_errors(PretrainedError, CheckpointError):
        if not directory.is_dir():
            raise PretrainedError(f"{directory}: no such directory; give one that save_pretrained has written")
        with replacing(checkpoint) if replace else contextlib.nullcontext(checkpoint) as written:
            imported = import_checkpoint(
                directory,
                written,
                convert_tokenizer(directory),
                allow_pickle=allow_pickle,
                max_length=max_length or MAX_LENGTH,
                eos_id=eos_id,
            )
    show(imported_figures(imported), as_json)


def replacing(checkpoint: Path) -> AbstractContextManager[Path]:
    """A directory to write; it takes the place of an existing checkpoint when the block ends without an error.

    Raises UsageError if the path is taken by something that is no checkpoint.
    """
    from model.atomic_write import DIGESTS, new_directory

    if not checkpoint.exists():
        return contextlib.nullcontext(checkpoint)
    if not (checkpoint / DIGESTS).is_file():
        raise UsageError(f"{checkpoint}: is not a checkpoint, so --replace leaves it alone; choose another directory")
    return new_directory(checkpoint, replace=True)


def imported_figures(imported: ImportedCheckpoint) -> dict[str, Any]:
    """What `import` prints about a model."""
    config = imported.config

    def of(ours: int, theirs: int) -> str:
        return f"{ours}" if ours == theirs else f"{ours} of {theirs}"

    figures = {
        "model_type": imported.lineage["model_type"],
        "parameters": imported.parameters,
        "vocabulary": config.vocab_size,
    }
    if config.has_decoder:
        figures["context"] = of(config.max_target_len, imported.max_target_len)
    if config.has_encoder:
        figures["source"] = of(config.max_source_len, imported.max_source_len)
    if not config.has_decoder:
        heads = {
            "masked": "fills masks",
            "classify": f"{len(config.labels)} labels",
            "tokens": f"{len(config.labels)} token labels",
        }
        return {**figures, "frame": [*config.template.token_ids], "head": heads.get(config.head, "none")}
    return {**figures, "begins": list(config.template.target_prefix), "ends": list(config.eos_ids)}
