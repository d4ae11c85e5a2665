"""The options of `glossa train` that continue a checkpoint or choose what is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.terminal import UsageError

if TYPE_CHECKING:
    from model.fine_tuning import FineTuning

PANEL = "Fine-tuning"

From = Annotated[
    Path | None,
    typer.Option("--from", help="checkpoint to continue; its model and tokenizer are kept", rich_help_panel=PANEL),
]
NewHead = Annotated[
    str | None,
    typer.Option(
        "--head",
        help="train a new head on an encoder: classify or attention for labels of texts, tokens for labels of words, "
        "masked; labels come from the data",
        rich_help_panel=PANEL,
    ),
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        help="tokenizer.json or SentencePiece model to use instead of training one",
        rich_help_panel=PANEL,
    ),
]
LearningRate = Annotated[
    float | None, typer.Option(help="peak learning rate, instead of the preset's", rich_help_panel=PANEL)
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(help="pattern of parameter names to leave as they are, such as 'encoder.*'", rich_help_panel=PANEL),
]
LayerDecay = Annotated[
    float | None,
    typer.Option(
        help="factor of the learning rate per layer from the top, such as 0.9 (default: 1)", rich_help_panel=PANEL
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(
        help="end after this many validations without a better value and keep the best state", rich_help_panel=PANEL
    ),
]
StopMetric = Annotated[
    str | None,
    typer.Option(help="value for --patience: loss, bleu, accuracy or f1 (default: loss)", rich_help_panel=PANEL),
]
LoraRank = Annotated[
    int | None, typer.Option(help="train low-rank updates (LoRA) of this rank only", rich_help_panel=PANEL)
]
LoraAlpha = Annotated[
    float | None, typer.Option(help="updates are scaled by alpha / rank (default: the rank)", rich_help_panel=PANEL)
]
LoraTargets = Annotated[
    list[str] | None,
    typer.Option(help="pattern of names of linear layers to update (default: '*attention*')", rich_help_panel=PANEL),
]
LoraTrain = Annotated[
    list[str] | None,
    typer.Option(help="pattern of parameters to train beside the updates", rich_help_panel=PANEL),
]
KeepAdapter = Annotated[
    bool,
    typer.Option(
        "--keep-adapter",
        help="write the updates with a reference to the base, instead of an ordinary checkpoint",
        rich_help_panel=PANEL,
    ),
]
SourceLanguages = Annotated[
    list[str] | None,
    typer.Option(
        "--source-language",
        help="of the data, by its code, once for all --data, or for models with languages once for each",
        rich_help_panel=PANEL,
    ),
]
TargetLanguages = Annotated[
    list[str] | None,
    typer.Option("--target-language", help="as --source-language, of the targets", rich_help_panel=PANEL),
]
FIELDS = ("freeze", "layer_decay", "patience", "stop_metric", "lora_rank", "lora_alpha", "lora_targets", "lora_train")


def tuning_of(given: Mapping[str, Any], preset: FineTuning) -> FineTuning:
    """A preset's settings with those of the command line. Raises ConfigError, UsageError."""
    changes: dict[str, Any] = {name: given[name] for name in FIELDS if given[name] not in (None, [], ())}
    if given["keep_adapter"]:
        if not changes.get("lora_rank", preset.lora_rank):
            raise UsageError("--keep-adapter: needs updates to keep; give --lora-rank")
        changes["lora_merge"] = False
    return preset.replace(**changes)
