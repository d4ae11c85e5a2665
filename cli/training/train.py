"""`glossa train`: a preset or a YAML file, and data, to a checkpoint. Training itself is `model.training.train`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.terminal import UsageError
from cli.training.fine_tuning import (
    FIELDS,
    Freeze,
    From,
    KeepAdapter,
    LayerDecay,
    LearningRate,
    LoraAlpha,
    LoraRank,
    LoraTargets,
    LoraTrain,
    NewHead,
    Patience,
    SourceLanguages,
    StopMetric,
    TargetLanguages,
    TokenizerFile,
    tuning_of,
)
from cli.training.ranks import joined_ranks, report_shared_errors
from cli.training.rows import SkipBadRows, row_rules
from cli.training.source_unit import with_source_unit

if TYPE_CHECKING:
    from model.config import LanguagePair, ModelConfig, TrainConfig
    from model.presets import Preset
    from model.training.data.examples import Examples
    from model.training.distributed.ranks import Ranks
    from model.training.start import Start


RANK_TIMEOUT_S = 600.0  # longer than one of several processes reads data, trains a tokenizer or writes a state
CONTINUED = ("from_", "source_language", "target_language", "head", "tokenizer", "learning_rate")


def preset_names() -> list[tuple[str, str]]:
    """Completions of a preset: names and descriptions."""
    from model.presets import PRESETS

    return [(name, preset.description) for name, preset in PRESETS.items()]


Data = Annotated[
    list[Path] | None,
    typer.Option(
        help="TSV, CSV (.csv), JSON lines (.jsonl) or TMX (.tmx) of pairs, or of texts and labels or spans, or text; "
        "may be .gz"
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(help="names of the two columns, or keys, of --data and --validation, such as en,de; of texts of one"),
]
Events = Annotated[
    Path | None, typer.Option(help="directory of the run's TensorBoard events (needs glossa\\[tensorboard])")
]


def train(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="checkpoint directory to write")],
    preset: Annotated[
        str | None, typer.Argument(help="name of a preset, or a YAML file", autocompletion=preset_names)
    ] = None,
    data: Data = None,
    columns: Columns = None,
    skip_bad_rows: SkipBadRows = False,
    source: Annotated[Path | None, typer.Option(help="source sentences, one a line (with --target)")] = None,
    target: Annotated[Path | None, typer.Option(help="target sentences, one a line (with --source)")] = None,
    validation: Annotated[list[Path] | None, typer.Option(help="like --data; by default held out of the data")] = None,
    minutes: Annotated[float | None, typer.Option(help="length of the training, instead of the preset's")] = None,
    steps: Annotated[int | None, typer.Option(help="number of steps, instead of the preset's")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted run, bit for bit")] = False,
    from_: From = None,
    source_language: SourceLanguages = None,
    target_language: TargetLanguages = None,
    head: NewHead = None,
    tokenizer: TokenizerFile = None,
    learning_rate: LearningRate = None,
    freeze: Freeze = None,
    layer_decay: LayerDecay = None,
    patience: Patience = None,
    stop_metric: StopMetric = None,
    lora_rank: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_targets: LoraTargets = None,
    lora_train: LoraTrain = None,
    keep_adapter: KeepAdapter = False,
    tensorboard: Events = None,
    shard: Annotated[
        bool, typer.Option("--shard", help="of several processes, each keeps a share of the weights and moments")
    ] = False,
    rank_timeout_s: Annotated[
        float, typer.Option(help="of several processes, one that does not answer for so long is lost", min=1.0)
    ] = RANK_TIMEOUT_S,
) -> None:
    """Train a model, or continue a checkpoint (--from). Without data, a preset trains on its embedded corpus.

    A model with context_sentences reads each sentence with those before it: empty lines end documents in its data.
    """
    files = [file for file in (*(data or ()), *(validation or ()), source, target, tokenizer) if file is not None]
    with joined_ranks(os.environ, timeout_s=rank_timeout_s) as ranks:
        recipe, start = beginning(context.params, files, ranks)
        model, config, arguments = configured(context.params, recipe, ranks)
        run_training(
            model,
            config,
            f"continue{', in any number of processes,' * (ranks.size > 1)} with: {resuming_command(context.params)}",
            ranks=ranks,
            out=out,
            start=start,
            resume=resume,
            tensorboard=tensorboard,
            shard=shard,
            **arguments,
        )
        if ranks.is_first:
            typer.echo(f"{out}: checkpoint, {out / 'model_card.md'}, {out / 'curves.png'}")


def configured(given: dict[str, Any], recipe: Preset, ranks: Ranks) -> tuple[ModelConfig, TrainConfig, dict[str, Any]]:
    """The model with its own languages, the settings of the training with the arguments' own, and its data; prints an
    error and exits for wrong ones."""
    from model.config import ConfigError
    from model.training.data.examples import DataError

    with report_shared_errors(ranks, ConfigError, DataError):
        config, (model, languages) = ranks.everywhere(
            lambda: (recipe.train.replace(**_changes(given)), with_languages_of(given, recipe)),
            ConfigError,
            UsageError,
            DataError,
        )
        examples, held_out = ranks.everywhere(
            lambda: training_examples(recipe, given, languages), UsageError, DataError
        )
    return model, config, {"data": examples, "validation": held_out}


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of TrainConfig that the arguments change. Raises UsageError."""
    length = {name: given[name] for name in ("steps", "minutes") if given[name] is not None}
    for name, value in length.items():
        if not value > 0:
            raise UsageError(f"--{name}: must be above 0, got {value}")
    if len(length) > 1:
        raise UsageError("--steps and --minutes: give one of them, which ends the training")
    rate = {"learning_rate": given["learning_rate"]} if given["learning_rate"] is not None else {}
    return {**({"steps": 0, "minutes": 0.0, **length} if length else {}), **rate}


def beginning(given: dict[str, Any], files: list[Path], ranks: Ranks) -> tuple[Preset, Start]:
    """The preset and the start that the arguments describe; prints an error and exits for those that do not fit."""
    from model.config import ConfigError

    with report_shared_errors(ranks, ConfigError):
        recipe = ranks.everywhere(lambda: _recipe(given, files), ConfigError, UsageError)
        if ranks.is_first:
            typer.echo("loading PyTorch", err=True)
    from model.checkpoints.checkpoint import CheckpointError
    from model.tokenizer import TokenizerError

    errors = ConfigError, CheckpointError, TokenizerError, UsageError
    with report_shared_errors(ranks, *errors):
        return ranks.everywhere(lambda: _start(given, recipe), *errors)


def _recipe(given: dict[str, Any], files: list[Path]) -> Preset | None:
    """The preset, with all files there; None to continue a checkpoint. Raises ConfigError, UsageError."""
    from model.presets import load_preset

    for file in files:
        if file.is_dir():
            raise UsageError(f"{file}: Is a directory; give a file in it")
        if not file.is_file():
            raise UsageError(f"{file}: no such file; check the path")
    if given["from_"] is not None:
        return None
    if given["preset"] is None:
        raise UsageError("give a preset or a YAML file, or a checkpoint to continue with --from")
    if given["head"] is not None:
        raise UsageError("--head goes with --from; without it, the head is a field of the model in a YAML file")
    return load_preset(given["preset"])


def _start(given: dict[str, Any], recipe: Preset | None) -> tuple[Preset, Start]:
    from model.presets import continuing
    from model.pretrained.convert_tokenizer import read_tokenizer
    from model.training.data.given_tokenizer import special_ids
    from model.training.start import Start, read_base

    base = None
    if recipe is None:
        base = read_base(given["from_"])
        recipe = continuing(base.config, given["preset"], head=given["head"])
    tokenizer = read_tokenizer(given["tokenizer"]) if given["tokenizer"] is not None else None
    if tokenizer is not None and base is None:
        ids = special_ids(tokenizer, needs_mask=recipe.model.head == "masked")
        recipe = replace(recipe, model=recipe.model.replace(**ids, vocab_size=tokenizer.vocab_size))
    tuning = tuning_of(given, recipe.fine_tuning)
    return recipe, Start(base=base, new_head=recipe.new_head, tokenizer=tokenizer, tuning=tuning)


def run_training(
    model: ModelConfig, config: TrainConfig, advice: str, *, ranks: Ranks | None = None, **arguments: Any
) -> None:
    """`model.training.train.train` with a progress display; errors are printed, an interruption with `advice`."""
    from model.checkpoints.checkpoint import CheckpointError
    from model.config import ConfigError
    from model.tokenizer import TokenizerError
    from model.training.data.examples import DataError
    from model.training.distributed.ranks import Ranks
    from model.training.train import Interrupted, TrainError, train

    ranks = ranks or Ranks()
    with report_shared_errors(ranks, ConfigError, TokenizerError, DataError, TrainError, CheckpointError):
        try:
            train(with_source_unit(model, arguments["data"]), config, ranks=ranks, **arguments)
        except Interrupted as stopped:
            raise UsageError(f"{str(stopped).partition(';')[0]}; {advice}") from None


def resuming_command(given: dict[str, Any]) -> str:
    """The command line that continues the training of these arguments."""
    words = ["glossa", "train", *([str(given["preset"])] if given["preset"] is not None else [])]
    for name in (
        "out",
        "data",
        "columns",
        "source",
        "target",
        "validation",
        "minutes",
        "steps",
        "tensorboard",
        *CONTINUED,
        *FIELDS,
    ):
        values = given[name] if isinstance(given[name], list | tuple) else [given[name]]
        flag = "--" + name.rstrip("_").replace("_", "-")
        words += [word for value in values if value is not None for word in (flag, str(value))]
    words += ["--" + name.replace("_", "-") for name in ("keep_adapter", "shard", "skip_bad_rows") if given[name]]
    if given["rank_timeout_s"] != RANK_TIMEOUT_S:
        words += ["--rank-timeout-s", str(given["rank_timeout_s"])]
    return shlex.join([*words, "--resume"])


def with_languages_of(given: dict[str, Any], preset: Preset) -> tuple[ModelConfig, list[LanguagePair]]:
    """The model with those languages of its data that its special tokens do not name, and for each file those that they
    do, [] where the arguments name none. Raises ConfigError for languages that are not the model's, or that it needs
    and that are missing, UsageError for validation data of unknown languages, DataError for a damaged TMX."""
    from model.config import DEFAULT_LANGUAGES
    from model.training.data.languages import check_languages, language_pairs, own_languages, read_languages

    model, files = preset.model, 1 if given["source"] is not None else len(given["data"] or [""])
    languages = language_pairs(given["source_language"] or [], given["target_language"] or [], files=files)
    if model.has_encoder and model.has_decoder:
        own = own_languages(model.template, languages or [_languages_of_data(given, preset)])
        source, target = own.source or model.source_language, own.target or model.target_language
        model = model.replace(source_language=source, target_language=target)
        languages = [read_languages(model.template, pair) for pair in languages]
        languages = languages if any(map(any, languages)) else []
    for pair in languages or [DEFAULT_LANGUAGES]:
        check_languages(model.template, pair)
    count = len(given["validation"] or ())
    if len(set(languages)) > 1 and count not in (0, files):
        raise UsageError(
            f"--validation: must be given once for each of the {files} --data, whose languages it has, or left out, "
            f"got {count} of them"
        )
    return model, languages


def _languages_of_data(given: dict[str, Any], preset: Preset) -> LanguagePair:
    """The languages that data without arguments names: an embedded corpus, or translation memories of one pair."""
    from model.config import DEFAULT_LANGUAGES
    from model.training.data.embedded import LANGUAGES
    from model.training.data.text_files import named_languages

    if not given["data"]:
        return DEFAULT_LANGUAGES if given["source"] is not None else LANGUAGES.get(preset.embedded, DEFAULT_LANGUAGES)
    columns = row_rules(given["columns"], skips=False, is_given=True).columns
    found = {named_languages(file, columns) for file in given["data"]}
    return found.pop() if len(found) == 1 else DEFAULT_LANGUAGES


def training_examples(
    preset: Preset, given: dict[str, Any], languages: Sequence[LanguagePair]
) -> tuple[Examples, Examples | None]:
    """Training data, and validation data unless it is to be held out. languages: of each file, or none. Raises
    UsageError, DataError, OSError."""
    from model.training.data.embedded import embedded_examples
    from model.training.data.languages import with_languages
    from model.training.data.text_files import read_parallel, read_text, read_tsv

    def read(files: list[Path]) -> Examples:
        if languages:
            of_files = languages if len(languages) == len(files) else [languages[0]] * len(files)
            return with_languages([read_plain([file]) for file in files], of_files)
        return read_plain(files)

    def read_plain(files: list[Path]) -> Examples:
        if reads_pairs:
            return read_tsv(files, has_documents=has_documents, rules=rules)
        return read_text(files, documents=preset.train.documents, rules=rules)

    reads_pairs = preset.model.has_encoder and preset.model.head != "masked"
    has_documents = preset.model.context_sentences > 0
    data, source, target = given["data"], given["source"], given["target"]
    rules = row_rules(
        given["columns"],
        skips=given["skip_bad_rows"],
        count=2 if reads_pairs else 1,
        files="--data and --validation",
        is_given=bool(data or given["validation"]),
    )
    if (source is None) != (target is None) or (data and source is not None):
        raise UsageError("give --data FILE…, or both --source and --target")
    held_out = read(given["validation"]) if given["validation"] else None
    if source is not None and target is not None:
        examples = read_parallel(source, target, has_documents=has_documents, rules=rules)
        return (with_languages([examples], languages) if languages else examples), held_out
    if data:
        return read(data), held_out
    if not preset.embedded:
        raise UsageError("this preset has no embedded corpus; give --data FILE…, or both --source and --target")
    return embedded_examples(preset.embedded), held_out
