"""`glossa ensemble`: several checkpoints to one whose members answer together. The work is `model.ensemble`'s."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.terminal import AsJson, report_errors, show


def ensemble(
    members: Annotated[list[Path], typer.Argument(help="two or more checkpoints of one shape and one tokenizer")],
    out: Annotated[Path, typer.Option(help="checkpoint directory to write")],
    as_json: AsJson = False,
) -> None:
    """Join translation models that were trained with different seeds: the next token has their mean distribution."""
    from model.checkpoints.checkpoint import CheckpointError
    from model.checkpoints.ensemble_checkpoint import save_ensemble

    with report_errors(CheckpointError):
        config = save_ensemble(members, out)
    figures = {"members": config.ensemble_size, "layers": f"{config.num_encoder_layers}+{config.num_decoder_layers}"}
    show({**figures, "checkpoint": str(out)}, as_json)
