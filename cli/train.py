"""`glossa train`: a preset or a YAML file, and data, to a checkpoint. Training itself is `model.training.train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.terminal import UsageError, report_errors

if TYPE_CHECKING:
    from model.config import ModelConfig, TrainConfig
    from model.presets import Preset
    from model.training.data import Examples


def preset_names() -> list[tuple[str, str]]:
    """Completions of a preset: names and descriptions."""
    from model.presets import PRESETS

    return [(name, preset.description) for name, preset in PRESETS.items()]


def train(
    context: typer.Context,
    preset: Annotated[str, typer.Argument(help="name of a preset, or a YAML file", autocompletion=preset_names)],
    out: Annotated[Path, typer.Option(help="checkpoint directory to write")],
    data: Annotated[
        list[Path] | None, typer.Option(help="TSV of pairs, or of texts and labels or spans, or plain text; may be .gz")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="source sentences, one a line (with --target)")] = None,
    target: Annotated[Path | None, typer.Option(help="target sentences, one a line (with --source)")] = None,
    validation: Annotated[Path | None, typer.Option(help="like --data; by default held out of the data")] = None,
    minutes: Annotated[float | None, typer.Option(help="length of the training, instead of the preset's")] = None,
    steps: Annotated[int | None, typer.Option(help="number of steps, instead of the preset's")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted run, bit for bit")] = False,
) -> None:
    """Train a model. Without data, a preset trains on its embedded corpus."""
    from model.config import ConfigError
    from model.presets import load_preset

    with report_errors(ConfigError):
        recipe = load_preset(preset)
        for file in (*(data or ()), source, target, validation):
            if file is not None and not file.is_file():
                raise UsageError(f"{file}: no such file; check the path")
    typer.echo("loading PyTorch", err=True)
    from model.training.data import DataError

    with report_errors(ConfigError, DataError):
        length = {name: value for name, value in (("steps", steps), ("minutes", minutes)) if value is not None}
        config = recipe.train.replace(**{"steps": 0, "minutes": 0.0, **length}) if length else recipe.train
        examples, held_out = training_examples(recipe, data or [], source, target, validation)
    command = f"continue with: {resuming_command(context.params)}"
    run_training(recipe.model, config, command, data=examples, validation=held_out, out=out, resume=resume)
    typer.echo(f"{out}: checkpoint, {out / 'model_card.md'}, {out / 'curves.png'}")


def run_training(model: ModelConfig, config: TrainConfig, advice: str, **arguments: Any) -> None:
    """`model.training.train.train` with a progress display; errors are printed, an interruption with `advice`."""
    from model.checkpoint import CheckpointError
    from model.config import ConfigError
    from model.tokenizer import TokenizerError
    from model.training.progress import Display
    from model.training.train import Interrupted, TrainError, train

    with report_errors(ConfigError, TokenizerError, TrainError, CheckpointError):
        try:
            train(model, config, display=Display(), **arguments)
        except Interrupted as stopped:
            raise UsageError(f"{str(stopped).partition(';')[0]}; {advice}") from None


def resuming_command(given: dict[str, Any]) -> str:
    """The command line that continues the training of these arguments."""
    words = ["glossa", "train", str(given["preset"])]
    for name in ("out", "data", "source", "target", "validation", "minutes", "steps"):
        values = given[name] if isinstance(given[name], list) else [given[name]]
        words += [word for value in values if value is not None for word in (f"--{name}", str(value))]
    return shlex.join([*words, "--resume"])


def training_examples(
    preset: Preset, data: list[Path], source: Path | None, target: Path | None, validation: Path | None
) -> tuple[Examples, Examples | None]:
    """Training data, and validation data unless it is to be held out. Raises UsageError, DataError, OSError."""
    from model.training.data import embedded_examples, read_parallel, read_text, read_tsv

    def read(files: list[Path]) -> Examples:
        reads_pairs = preset.model.has_encoder and preset.model.head != "masked"
        return read_tsv(files) if reads_pairs else read_text(files, documents=preset.train.documents)

    if (source is None) != (target is None) or (data and source is not None):
        raise UsageError("give --data FILE…, or both --source and --target")
    held_out = read([validation]) if validation is not None else None
    if source is not None and target is not None:
        return read_parallel(source, target), held_out
    if data:
        return read(data), held_out
    if not preset.embedded:
        raise UsageError("this preset has no embedded corpus; give --data FILE…, or both --source and --target")
    return embedded_examples(preset.embedded), held_out
