"""`glossa import`: a model in the format of Hugging Face to a checkpoint. The work is `model.pretrained`'s."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.terminal import AsJson, report_errors, show

if TYPE_CHECKING:
    from model.pretrained.import_checkpoint import ImportedCheckpoint


def import_(
    directory: Annotated[Path, typer.Argument(help="what Hugging Face's save_pretrained has written")],
    checkpoint: Annotated[Path, typer.Argument(help="checkpoint directory to write")],
    max_length: Annotated[
        int | None, typer.Option(help="longest context to keep, in tokens [4096 if the model's is longer]", min=1)
    ] = None,
    eos_id: Annotated[
        int | None, typer.Option(help="the only token that ends answers [all that the model's files name]", min=0)
    ] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="read pytorch_model.bin where there are no safetensors")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take over a model of Hugging Face's form as a checkpoint, which can be exported and served."""
    from model.checkpoint import CheckpointError
    from model.pretrained.files import PretrainedError
    from model.pretrained.import_checkpoint import MAX_LENGTH, import_checkpoint
    from model.tokenizer import TokenizerError
    from model.tokenizers.convert import convert_tokenizer

    with report_errors(PretrainedError, CheckpointError, TokenizerError):
        if not directory.is_dir():
            raise PretrainedError(f"{directory}: no such directory; give one that save_pretrained has written")
        taken = import_checkpoint(
            directory,
            checkpoint,
            convert_tokenizer(directory),
            allow_pickle=allow_pickle,
            max_length=max_length or MAX_LENGTH,
            eos_id=eos_id,
        )
    show(imported_figures(taken), as_json)


def imported_figures(taken: ImportedCheckpoint) -> dict[str, Any]:
    """What `import` tells of a model."""
    config = taken.config

    def of(ours: int, theirs: int) -> str:
        return f"{ours}" if ours == theirs else f"{ours} of {theirs}"

    figures = {
        "model_type": taken.lineage["model_type"],
        "parameters": taken.parameters,
        "vocabulary": config.vocab_size,
    }
    if config.has_decoder:
        figures["context"] = of(config.max_target_len, taken.max_target_len)
    if config.has_encoder:
        figures["source"] = of(config.max_source_len, taken.max_source_len)
    if not config.has_decoder:
        heads = {"masked": "fills masks", "classify": f"tells {len(config.labels)} labels"}
        return {**figures, "frame": [*config.template.token_ids], "head": heads.get(config.head, "none")}
    return {**figures, "begins": list(config.template.target_prefix), "ends": list(config.eos_ids)}
