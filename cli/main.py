"""The `glossa` command. Every verb imports its stage only when called, so `glossa serve` runs where torch is missing.

Exit code 0 only on success. What a stage refuses is printed as one line on stderr, saying what failed, the value, the
limit and the fix; anything else is a defect and shows its traceback. No logic of the stages lives here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from cli.local_server import ServerFailedError, fetch, is_ready, serving

if TYPE_CHECKING:
    from rich.table import Table

    from export.bundle import Manifest, SchemeMeasurement, Variant
    from glossa.client import Client
    from glossa.client.types import Alignment, Answer, Attended, TokenLogprob
    from model.config import LanguagePair, Preset
    from model.pretrained.import_checkpoint import ImportedCheckpoint
    from model.training.data import Examples

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=True, help=__doc__)

Address = Annotated[str, typer.Option(help="HOST:PORT of a server", envvar="GLOSSA_ADDRESS")]
ModelName = Annotated[str, typer.Option(help="name on the server; may be left out when one model fits")]
AsJson = Annotated[bool, typer.Option("--json", help="print figures as JSON")]
SourceLanguage = Annotated[str, typer.Option(help="of a model that has languages: the text's, by its code")]
TargetLanguage = Annotated[str, typer.Option(help="of a model that has languages: that of the answer, by its code")]


Number = TypeVar("Number", int, float)


class UsageError(Exception):
    """The arguments of a verb do not fit together."""


@contextlib.contextmanager
def complaints(*types: type[Exception]) -> Iterator[None]:
    """Turn the named errors of a stage, and those of the disk, into one line on stderr and exit code 1."""
    expected: tuple[type[Exception], ...] = (UsageError, ServerFailedError, OSError, *types)
    try:
        yield
    except expected as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def show(figures: dict[str, Any], as_json: bool) -> None:
    """Print a result as JSON, or as aligned lines."""
    if as_json:
        typer.echo(json.dumps(figures, ensure_ascii=False))
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        typer.echo(f"{name:{width}}  {value}")


@app.command()
def train(
    preset: Annotated[str, typer.Argument(help="a preset's name, or a YAML file")],
    out: Annotated[Path, typer.Option(help="checkpoint directory to write")],
    data: Annotated[
        list[Path] | None, typer.Option(help="TSV of pairs, or of texts and labels, or text; .gz is fine")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="source sentences, one a line (with --target)")] = None,
    target: Annotated[Path | None, typer.Option(help="target sentences, one a line (with --source)")] = None,
    validation: Annotated[Path | None, typer.Option(help="like --data; held out of the data if not given")] = None,
    minutes: Annotated[float | None, typer.Option(help="train so long instead of the preset's length")] = None,
    steps: Annotated[int | None, typer.Option(help="train so many steps instead of the preset's length")] = None,
    resume: Annotated[bool, typer.Option(help="go on with an interrupted run, exactly")] = False,
) -> None:
    """Train a model. Without data, a preset trains on its embedded corpus."""

    from rich.console import Console

    from model.checkpoint import CheckpointError
    from model.config import ConfigError, load_preset
    from model.tokenizer import TokenizerError
    from model.training.data import DataError
    from model.training.progress import BarDisplay, PlainDisplay
    from model.training.train import Interrupted, TrainError
    from model.training.train import train as run

    with complaints(ConfigError, DataError, TokenizerError, TrainError, CheckpointError, Interrupted):
        recipe = load_preset(preset)
        length = {name: value for name, value in (("steps", steps), ("minutes", minutes)) if value is not None}
        config = recipe.train.replace(**{"steps": 0, "minutes": 0.0, **length}) if length else recipe.train
        examples, held_out = training_examples(recipe, data or [], source, target, validation)
        console = Console(stderr=True)
        display = BarDisplay(console) if console.is_terminal else PlainDisplay()
        run(recipe.model, config, data=examples, validation=held_out, out=out, resume=resume, display=display)
    typer.echo(f"{out}: checkpoint, {out / 'model_card.md'}, {out / 'curves.png'}")


def training_examples(
    preset: Preset, data: list[Path], source: Path | None, target: Path | None, validation: Path | None
) -> tuple[Examples, Examples | None]:
    """What the arguments of `train` name: training data, and validation data unless it is to be held out."""
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


@app.command("import")
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

    with complaints(PretrainedError, CheckpointError, TokenizerError):
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


@app.command("eval")
def evaluate(
    subject: Annotated[str, typer.Argument(help="checkpoint, bundle, or HOST:PORT of a server", metavar="SUBJECT")],
    data: Annotated[Path | None, typer.Option(help="TSV of sources and references; .gz is fine")] = None,
    source: Annotated[Path | None, typer.Option(help="sources, one a line (with --reference)")] = None,
    reference: Annotated[Path | None, typer.Option(help="references, one a line (with --source)")] = None,
    model: ModelName = "",
    beam: Annotated[int, typer.Option(help="beam size; 1: greedily")] = 1,
    source_language: SourceLanguage = "",
    target_language: TargetLanguage = "",
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, such as length_penalty=0.6")] = None,
    as_json: AsJson = False,
) -> None:
    """Translate a test set and score it: BLEU (sacreBLEU, 13a, cased) with its signature."""
    from model.config import LanguagePair
    from model.training.data import DataError, read_parallel, read_tsv
    from model.training.evaluate import bleu

    with complaints(DataError):
        if data is not None and source is None and reference is None:
            examples = read_tsv([data])
        elif data is None and source is not None and reference is not None:
            examples = read_parallel(source, reference)
        else:
            raise UsageError("give --data FILE.tsv, or both --source and --reference")
        options = {"beam_size": beam, **decoding_options({"option": option})}
    texts = [text for text, _ in examples.pairs]
    started = time.monotonic()
    languages = LanguagePair(source_language, target_language)
    hypotheses = translations(subject, texts, {"model": model, **options}, languages)
    seconds = time.monotonic() - started
    score = bleu(hypotheses, [text for _, text in examples.pairs])
    figures = {"BLEU": round(score.score, 2), "signature": score.signature, "sentences": len(texts)}
    show({**figures, "seconds": round(seconds, 1)}, as_json)


def translations(subject: str, texts: list[str], options: dict[str, Any], languages: LanguagePair) -> list[str]:
    """By a checkpoint in PyTorch, by a bundle in a server of its own, or by a server that runs."""
    from export.bundle import MANIFEST
    from glossa.client import Client, ClientError
    from model.checkpoint import CheckpointError, load_checkpoint
    from model.training.evaluate import TooLongError
    from model.training.evaluate import translate as translate_in_torch

    with complaints(CheckpointError, ClientError, TooLongError, ValueError), contextlib.ExitStack() as stack:
        if (Path(subject) / MANIFEST).is_file():
            subject, _ = stack.enter_context(serving(Path(subject)))
        elif Path(subject).exists() or ":" not in subject:
            checkpoint = load_checkpoint(Path(subject))
            if not (checkpoint.config.has_encoder and checkpoint.config.has_decoder):
                raise UsageError(
                    f"{subject}: only models that translate can be scored; others tell scores when trained"
                )
            if options.keys() != {"model", "beam_size"} or options["beam_size"] != 1:
                raise UsageError(f"{subject}: a checkpoint is translated greedily; export it to use --beam and options")
            return translate_in_torch(checkpoint.model, checkpoint.tokenizer, texts, languages=languages)
        client = stack.enter_context(Client(subject))
        options |= {"source_language": languages.source, "target_language": languages.target}
        return [answer.text for answer in client.translate_batch(texts, **options)]


PRECISIONS = ("fp32", "fp16", "int8", "int4")


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="checkpoint directory")],
    bundle: Annotated[Path, typer.Argument(help="directory to write")],
    precision: Annotated[
        str,
        typer.Option(help="one or several of fp32, int8, int4 (CPU) and fp16 (CUDA needs it), such as fp32,int8"),
    ] = "fp32",
    scheme: Annotated[
        str,
        typer.Option(
            help="quantization scheme of int8 or int4: w8a8-dynamic, w8a8-static, "
            "w8a8-dynamic-kv8, w8a8-static-kv8, w8-block64 (int8), "
            "w4-block32, w4-block128 (int4; with "
            "w4-block128 answers may depend on the batch); auto: the fastest that loses little"
        ),
    ] = "auto",
    development: Annotated[
        Path | None,
        typer.Option(
            help="text on which int8 and int4 are compared with fp32: .tsv of sources and references, or one text a "
            "line; models of an embedded corpus bring their own"
        ),
    ] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(
            help="what int8 and int4 may lose there: BLEU points [0.3]; without references the share of answers that "
            "differ [0.25]; nats per token of a model that continues text [0.05]"
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="text like --development that sets the steps of int8; the development text if not given"),
    ] = None,
    source_language: SourceLanguage = "",
    target_language: TargetLanguage = "",
    attention: Annotated[
        bool, typer.Option(help="add the graphs that align words with their source and tell every attention")
    ] = False,
    shortlist: Annotated[
        Path | None,
        typer.Option(help="lines source<TAB>target, may be .gz: learn from them which words may translate which"),
    ] = None,
    replace: Annotated[bool, typer.Option(help="write over an existing bundle")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a checkpoint to a verified bundle: graphs, tokenizer, manifest."""
    from export.bundle import BundleError
    from export.select_scheme import Development
    from export.to_onnx import ExportError, QuantizationOptions, export_bundle
    from model.checkpoint import CheckpointError
    from model.config import ConfigError, LanguagePair
    from model.training.data import DataError, read_tsv

    with complaints(BundleError, ConfigError, ExportError, CheckpointError, DataError):
        precisions: list[Any] = [name.strip() for name in precision.split(",") if name.strip()]
        if not set(precisions) <= set(PRECISIONS):
            raise UsageError(f"--precision: must be of {', '.join(PRECISIONS)}, with commas between, got {precision}")
        measured = None
        if development is not None:
            pairs = sample_pairs(checkpoint, development)
            has_references = any(source for source, _ in pairs) and any(target for _, target in pairs)
            texts = [source or target for source, target in pairs]
            references = [target for _, target in pairs] if has_references else []
            measured = Development(texts, references, development.name, LanguagePair(source_language, target_language))
        manifest = export_bundle(
            checkpoint,
            bundle,
            precisions=precisions,
            quantization=QuantizationOptions(
                scheme=scheme,
                development=measured,
                calibration=sample_pairs(checkpoint, calibration) if calibration else (),
                max_loss=max_loss,
            ),
            attention=attention,
            parallel=read_tsv([shortlist]).pairs if shortlist else (),
            replace=replace,
        )
    show_parity(manifest.parity, manifest, as_json)


def sample_pairs(checkpoint: Path, file: Path) -> Sequence[tuple[str, str]]:
    """Text for a model: pairs of a .tsv; else lines, which are sources. A decoder-only model has texts, which are lines
    or the first column."""
    from model.checkpoint import load_checkpoint
    from model.training.data import read_text, read_tsv

    loaded = load_checkpoint(checkpoint)
    if ".tsv" in file.suffixes:
        pairs = read_tsv([file]).pairs
        return pairs if loaded.config.has_encoder else [("", source or target) for source, target in pairs]
    if loaded.config.has_encoder:
        return [(text, "") for _, text in read_text([file], documents="lines").pairs]
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    return read_text([file], documents=config.get("train", {}).get("documents", "lines")).pairs


@app.command()
def verify(
    bundle: Annotated[Path, typer.Argument(help="bundle directory")],
    checkpoint: Annotated[Path | None, typer.Option(help="also compare every output with this checkpoint")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a bundle: digests, golden answer and, with its checkpoint, every output."""
    from export.bundle import BundleError, load_bundle
    from export.verification.verifier import verify_bundle
    from model.checkpoint import CheckpointError

    with complaints(BundleError, CheckpointError):
        report = verify_bundle(bundle, checkpoint)
        manifest = load_bundle(bundle)
    show_parity(report, manifest, as_json)
    if not report["passed"]:
        raise typer.Exit(1)


def show_parity(report: dict[str, Any], manifest: Manifest, as_json: bool) -> None:
    """The parity report and what is known of quantised variants as tables, or as JSON."""
    if as_json:
        quantized = {
            variant.precision: {
                "quantization": dataclasses.asdict(variant.quantization),
                "comparison": [dataclasses.asdict(figures) for figures in variant.comparison],
            }
            for variant in manifest.variants
            if variant.quantization is not None
        }
        typer.echo(json.dumps({**report, "quantized": quantized}))
        return
    from rich.console import Console
    from rich.table import Table

    inputs = "; ".join(dict.fromkeys(check["inputs"] for check in report["checks"]))
    table = Table("check", "", "error", "allowed", "", title=f"parity on {report['provider']}", caption=inputs)
    for check in report["checks"]:
        is_exact = not check["tolerance"]
        table.add_row(
            check["name"],
            check["precision"],
            f"{check['max_error']:.0f} differ" if is_exact else f"{check['max_error']:.1e}",
            "none" if is_exact else f"{check['tolerance']:.0e}",
            "passed" if check["passed"] else "FAILED",
        )
    console = Console()
    console.print(table)
    for variant in manifest.variants:
        if variant.quantization is not None:
            console.print(scheme_table(variant))


def scheme_table(variant: Variant) -> Table:
    """The quantization schemes that were measured for a quantised variant."""
    from rich.table import Table

    kind = variant.quantization
    assert kind is not None
    place = f"blocks of {kind.block_size}" if kind.block_size else "scales by output"
    kind_told = f"{kind.scheme}, {kind.weight_bits}-bit weights, {place}, {kind.activations} activations, "
    kind_told += f"{kind.kv_cache} caches"
    if not kind.batch_invariant:
        kind_told += "; answers may depend on the batch"
    columns: dict[str, Callable[[SchemeMeasurement], str]] = {
        "scheme": lambda figures: figures.scheme,
        "texts": lambda figures: str(figures.evaluation_samples),
        "BLEU": lambda figures: shown(figures.bleu, ".2f"),
        "BLEU lost": lambda figures: shown(figures.bleu_loss, "+.2f"),
        "answers equal": lambda figures: shown(figures.exact_match, ".1%"),
        "nats per token": lambda figures: shown(figures.nats_per_token, ".3f"),
        "nats lost": lambda figures: shown(figures.nats_loss, "+.3f"),
        "tokens equal": lambda figures: shown(figures.equal_tokens, ".1%"),
        "tokens/s": lambda figures: f"{figures.tokens_per_s:.0f}",
        "alone": lambda figures: f"{figures.single_stream_tokens_per_s:.0f}",
        "taken": lambda figures: "yes" if figures.chosen else "",
    }
    told = {name: [tell(figures) for figures in variant.comparison] for name, tell in columns.items()}
    told = {name: column for name, column in told.items() if any(column)}
    table = Table(*told, title=f"{variant.precision}: {kind_told}")
    for row in zip(*told.values(), strict=True):
        table.add_row(*row)
    return table


def shown(value: float | None, form: str) -> str:
    """A figure, or nothing where there is none."""
    return "" if value is None else format(value, form)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    models: Annotated[list[str] | None, typer.Argument(metavar="NAME=BUNDLE…", help="what to serve")] = None,
    settings: Annotated[bool, typer.Option("--settings", help="list every setting and leave")] = False,
) -> None:
    """Serve bundles over gRPC. A setting is a flag (--max-queue 64), a GLOSSA_… variable or a key of --config FILE."""
    from service.config import ServerSettings, load_settings
    from service.errors import StartupError
    from service.runtime.huge_pages import take_huge_pages

    if settings:
        for name, known in ServerSettings.model_fields.items():
            typer.echo(f"--{name.replace('_', '-'):28} {known.description} [{known.get_default()}]")
        return
    with complaints(StartupError):
        arguments = [*(models or []), *context.args]
        wanted = load_settings(setting_flags(arguments))
        if wanted.huge_pages:
            take_huge_pages()  # before anything of weight is imported: the program begins anew
        from service.server import serve as run

        run(wanted)


def setting_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """`--max-queue 64`, `--max-queue=64`, `--log-text`, `--no-reflection` and NAME=BUNDLE as settings by field name."""
    from service.config import ServerSettings

    switches = {name for name, field in ServerSettings.model_fields.items() if field.annotation is bool}
    flags: dict[str, Any] = {}
    models: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, has_value, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--"):
            models.append(argument)
        elif has_value:
            flags[name.replace("-", "_")] = value
        elif name.removeprefix("no-").replace("-", "_") in switches:
            flags[name.removeprefix("no-").replace("-", "_")] = not name.startswith("no-")
        elif rest and not rest[0].startswith("--"):
            flags[name.replace("-", "_")] = rest.pop(0)
        else:
            raise UsageError(f"{argument}: needs a value")
    return flags | ({"models": models} if models else {})


def flag(kind: Any, help: str, *names: str) -> Any:
    """The type of a flag that may be left out."""
    annotated: Any = Annotated
    return annotated[kind | None, typer.Option(*names, help=help)]


FLAGS = {
    "max_tokens": flag(int, "most new tokens; 0: the model's own limit"),
    "min_tokens": flag(int, "no end before so many new tokens"),
    "stop": flag(list[str], "end the answer before this string; may be repeated"),
    "beam_size": flag(int, "hypotheses that beam search keeps"),
    "num_hypotheses": flag(int, "how many answers of the beam, or alternatives"),
    "length_penalty": flag(float, "above 1 longer answers of a beam win, below 1 shorter ones"),
    "temperature": flag(float, "sample; below 1 the likely tokens win, 0: greedy"),
    "top_k": flag(int, "sample from the k likeliest tokens"),
    "top_p": flag(float, "sample from the likeliest tokens that have this probability together"),
    "min_p": flag(float, "sample from tokens with this share of the likeliest one's probability"),
    "seed": flag(int, "sample with these random numbers"),
    "num_sequences": flag(int, "how many answers are sampled"),
    "repetition_penalty": flag(float, "above 1 what was said already is less likely"),
    "no_repeat_ngram_size": flag(int, "no sequence of so many tokens twice"),
    "prefix": flag(str, "the answer begins so"),
    "phrases": flag(list[str], "a text the answer contains; may be repeated", "--phrase"),
    "bad_words": flag(list[str], "a text the answer does not contain; may be repeated", "--ban"),
    "return_alternatives": flag(bool, "the likeliest different tokens next, each continued", "--alternatives"),
    "regex": flag(str, "the answer matches this regular expression"),
    "json_schema": flag(Path, "the answer is JSON of the schema in this file"),
    "lark": flag(Path, "the answer follows the grammar in this file, in Lark's notation"),
    "token_logprobs": flag(bool, "tell each token's log-probability", "--logprobs"),
    "top_logprobs": flag(int, "tell so many likeliest tokens at each place"),
    "alignment": flag(Literal["soft", "hard", "both"], "tell which places of the source a token belongs to"),
    "option": flag(list[str], "NAME=VALUE: any other option, see docs/decoding.md; may be repeated"),
}


def with_decoding_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command FLAGS, and its parameter `options` what they ask for by the names of the options.

    A flag that the command has itself, such as a seed of its own, is left to it.
    """
    parameters = dict(inspect.signature(command, eval_str=True).parameters)
    added = {name: kind for name, kind in FLAGS.items() if name not in parameters}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        flags = {name: given.pop(name) for name in added}
        with complaints():
            options = decoding_options(flags)
        command(**given, options=options)

    del parameters["options"]
    for name, kind in added.items():
        parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return run


def decoding_options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What was given of FLAGS, by the names of the options. Files are read. Raises UsageError."""
    from cli.decoding_flags import FlagError, parse

    options: dict[str, Any] = {}
    for name, value in flags.items():
        if name == "option" or value is None or value == []:
            continue
        options[name] = value.read_text() if isinstance(value, Path) else value
    try:
        others = parse(flags.get("option") or ())
    except FlagError as error:
        raise UsageError(f"--option {error}") from None
    if twice := options.keys() & others.keys():
        raise UsageError(f"--option {min(twice)}: is given by a flag of its own, too")
    return options | others


@app.command()
@with_decoding_flags
def translate(
    text: Annotated[str | None, typer.Argument(help="a text; without one, every line of standard input")] = None,
    address: Address = "127.0.0.1:50051",
    model: ModelName = "",
    source_language: SourceLanguage = "",
    target_language: TargetLanguage = "",
    as_json: AsJson = False,
    *,
    options: dict[str, Any],
) -> None:
    """Translate a text, streamed as it comes, or the lines of standard input, many at once and in order."""
    languages = {"source_language": source_language, "target_language": target_language}
    ask("translate", text, address, as_json, {"model": model, **languages, **options})


@app.command()
@with_decoding_flags
def generate(
    text: Annotated[str | None, typer.Argument(help="a prompt; without one, every line of standard input")] = None,
    address: Address = "127.0.0.1:50051",
    model: ModelName = "",
    as_json: AsJson = False,
    *,
    options: dict[str, Any],
) -> None:
    """Continue a prompt, streamed as it comes, or each line of standard input."""
    ask("generate", text, address, as_json, {"model": model, **options})


def ask(verb: str, text: str | None, address: str, as_json: bool, options: dict[str, Any]) -> None:
    """One text streamed to the terminal, or lines of standard input answered in order."""
    from glossa.client import Client, ClientError

    with complaints(ClientError, ValueError), Client(address) as client:
        if text is None:
            lines = [line.rstrip("\n") for line in sys.stdin]
            asked = (line for line in lines if line.strip())
            if verb == "translate":
                answers = iter(client.translate_batch(asked, **options))
            else:
                answers = (client.generate(line, **options) for line in asked)
            for number, line in enumerate(lines, start=1):
                if not line.strip():  # nothing to ask; the lines of input and output still correspond
                    typer.echo()
                    continue
                try:
                    show_answer(next(answers), line, as_json)
                except ClientError as error:
                    raise UsageError(f"line {number}: {error}") from error
            return
        several = options.get("num_hypotheses", 1) > 1 or options.get("num_sequences", 1) > 1
        if several or options.get("return_alternatives"):  # no text is the answer before the end
            show_answer((client.translate if verb == "translate" else client.generate)(text, **options), text, as_json)
            return
        shown = ""
        for piece in (client.stream_translate if verb == "translate" else client.stream_generate)(text, **options):
            if piece.answer is not None:
                show_answer(piece.answer, text, as_json, already=shown)
            elif not as_json:
                typer.echo(piece.text, nl=False)
                shown += piece.text


def show_answer(answer: Answer, text: str, as_json: bool, *, already: str = "") -> None:
    """An answer, behind what is shown of it already; where there are several, all of them with their scores."""
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(answer), ensure_ascii=False))
        return
    several = len(answer.hypotheses) > 1
    if not several or already:
        typer.echo(answer.text[len(already) :])
    for rank, hypothesis in enumerate(answer.hypotheses, start=1):
        if several:
            typer.echo(f"{rank:2}  {hypothesis.score:8.4f}  {hypothesis.text}")
        show_tokens(hypothesis.token_logprobs)
        show_alignment(hypothesis.alignment, text, hypothesis.text)
    if answer.seed is not None:
        typer.echo(f"seed {answer.seed}", err=True)


def show_tokens(tokens: Iterable[TokenLogprob]) -> None:
    """One line for each token: its log-probability, and what could have stood there."""
    for token in tokens:
        others = "   ".join(f"{other.text!r} {other.logprob:.4f}" for other in token.top_logprobs)
        typer.echo(f"      {token.logprob:9.4f}  {token.text!r:16}  {others}".rstrip())


def show_alignment(alignment: Alignment | None, source: str, target: str) -> None:
    """One line for each token of the answer: its place in the source, or the heaviest ones with their weights."""
    if alignment is None:
        return
    words = [source[start:end].strip() or "(end)" for start, end in alignment.source_spans]
    for place, (start, end) in enumerate(alignment.target_spans):
        told = [words[alignment.positions[place]]] if alignment.positions else []
        if alignment.rows:
            weights = alignment.rows[place]
            heaviest = sorted(range(len(words)), key=lambda index: -weights[index])[:3]
            told += [f"{words[index]} {weights[index]:.2f}" for index in heaviest]
        typer.echo(f"      {target[start:end].strip() or '(end)':16}  {'   '.join(told)}")


@app.command()
def score(
    text: Annotated[str | None, typer.Argument(help="source or prompt; without one, TSV on standard input")] = None,
    target: Annotated[str | None, typer.Argument(help="its translation or continuation")] = None,
    address: Address = "127.0.0.1:50051",
    model: ModelName = "",
    source_language: SourceLanguage = "",
    target_language: TargetLanguage = "",
    omit_eos: Annotated[bool, typer.Option("--open", help="the target goes on: do not score its end")] = False,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, such as length_penalty=0.6")] = None,
    as_json: AsJson = False,
) -> None:
    """How likely a model finds a target that is given: score, log-probability, perplexity, and those of each token.

    Without arguments: of each line SOURCE<tab>TARGET of standard input, as score<tab>log-probability<tab>perplexity.
    """
    from glossa.client import Client, ClientError

    if (text is None) != (target is None):
        with complaints():
            raise UsageError("give both TEXT and TARGET, or neither")
    with complaints(ClientError, ValueError), Client(address) as client:
        languages = {"source_language": source_language, "target_language": target_language}
        options = {"model": model, **languages, "omit_eos": omit_eos, **decoding_options({"option": option})}
        if text is not None and target is not None:
            result = client.score(text, target, **options)
            if as_json:
                typer.echo(json.dumps(dataclasses.asdict(result), ensure_ascii=False))
                return
            figures = {name: getattr(result, name) for name in ("score", "cumulative_logprob", "perplexity")}
            show({name: f"{value:.4f}" for name, value in figures.items()}, as_json=False)
            show_tokens(result.tokens)
            show_alignment(result.alignment, text, target)
            return
        for number, line in enumerate(sys.stdin, start=1):
            fields = line.rstrip("\n").split("\t")
            if len(fields) != 2:
                raise UsageError(f"line {number}: expected 2 tab-separated fields, got {len(fields)}")
            try:
                result = client.score(*fields, **options)
            except ClientError as error:
                raise UsageError(f"line {number}: {error}") from error
            if as_json:
                typer.echo(json.dumps(dataclasses.asdict(result), ensure_ascii=False))
            else:
                typer.echo(f"{result.score:.4f}\t{result.cumulative_logprob:.4f}\t{result.perplexity:.4f}")


@app.command()
def embed(
    text: Annotated[str | None, typer.Argument(help="a text; without one, every line of standard input")] = None,
    address: Address = "127.0.0.1:50051",
    model: ModelName = "",
    pooling: Annotated[
        Literal["mean", "cls", "pooler"], typer.Option(help="of the states of all tokens, or of the first one's")
    ] = "mean",
    source_language: SourceLanguage = "",
    target_language: TargetLanguage = "",
    normalize: Annotated[bool, typer.Option(help="vectors of length 1, whose dot products are cosines")] = False,
) -> None:
    """One vector for a text, or for each line of standard input, as one JSON array a line."""
    from glossa.client import Client, ClientError

    languages: Any = {"source_language": source_language, "target_language": target_language}
    with complaints(ClientError), Client(address) as client:
        for line in [text] if text is not None else sys.stdin:
            vector = client.embed(line.rstrip("\n"), model=model, pooling=pooling, normalize=normalize, **languages)
            typer.echo(json.dumps(vector))


@app.command("fill-mask")
def fill_mask(
    text: Annotated[str | None, typer.Argument(help="with masks; without one, every line of standard input")] = None,
    address: Address = "127.0.0.1:50051",
    model: ModelName = "",
    top_k: Annotated[int, typer.Option(help="tokens told of each mask")] = 5,
    as_json: AsJson = False,
) -> None:
    """What the masks of a text stand for, likeliest first. A text
    without any is refused with the way in which the model's mask is written."""
    from glossa.client import Client, ClientError

    with complaints(ClientError), Client(address) as client:
        for line in [text] if text is not None else sys.stdin:
            masks = client.fill_mask(line.rstrip("\n"), model=model, top_k=top_k)
            if as_json:
                told = [[dataclasses.asdict(filling) for filling in fillings] for fillings in masks]
                typer.echo(json.dumps(told, ensure_ascii=False))
                continue
            for number, fillings in enumerate(masks, start=1):
                for filling in fillings:
                    typer.echo(f"{number:2}  {filling.probability:.4f}  {filling.text.strip()}")


@app.command()
def classify(
    text: Annotated[str | None, typer.Argument(help="a text; without one, every line of standard input")] = None,
    address: Address = "127.0.0.1:50051",
    model: ModelName = "",
    weights: Annotated[bool, typer.Option("--weights", help="also how much each token had to say")] = False,
    as_json: AsJson = False,
) -> None:
    """What a text is: all labels, likeliest first; of several lines the likeliest label of each."""
    from glossa.client import Client, ClientError

    with complaints(ClientError), Client(address) as client:
        for line in [text] if text is not None else sys.stdin:
            told = client.classify(line.rstrip("\n"), model=model, token_weights=weights)
            if as_json:
                typer.echo(json.dumps(dataclasses.asdict(told), ensure_ascii=False))
            elif text is None:
                typer.echo(f"{told.labels[0].label}\t{told.labels[0].probability:.4f}")
            else:
                for label in told.labels:
                    typer.echo(f"{label.probability:.4f}  {label.label}")
                for token in told.token_weights:
                    typer.echo(f"      {token.weight:.4f}  {text[token.start : token.end].strip() or '(frame)'}")


@app.command()
def attend(
    text: Annotated[str, typer.Argument(help="a text")],
    address: Address = "127.0.0.1:50051",
    model: ModelName = "",
    target: Annotated[str, typer.Option(help="the answer to look at; without one the model answers first")] = "",
    text_only: Annotated[bool, typer.Option(help="look at the text alone, without an answer")] = False,
    max_tokens: Annotated[int, typer.Option(help="most tokens of an answer; 0: the model's own limit")] = 0,
    source_language: SourceLanguage = "",
    target_language: TargetLanguage = "",
    kind: Annotated[
        list[str] | None, typer.Option(help="cross, encoder or decoder; may be repeated [the one about both texts]")
    ] = None,
    layer: Annotated[list[int] | None, typer.Option(help="a layer, from 1; may be repeated")] = None,
    head: Annotated[list[int] | None, typer.Option(help="a head, from 1; may be repeated")] = None,
    png: Annotated[Path | None, typer.Option(help="draw all that was chosen into this picture")] = None,
    html: Annotated[
        Path | None, typer.Option(help="write a page with all that was chosen, to be opened anywhere")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What each token of a text, and of its answer, attends to: a heat map, a picture, a page, or the numbers.

    The terminal shows means over the layers and heads that are not chosen; the others show each of them.
    """
    from cli.heatmap import DrawingError, draw
    from glossa.client import Client, ClientError

    with complaints(ClientError, DrawingError, ValueError), Client(address) as client:
        asked: dict[str, Any] = {"model": model, "target": target, "text_only": text_only, "max_tokens": max_tokens}
        asked |= {"source_language": source_language, "target_language": target_language}
        asked |= {"kinds": kind or [], "layers": layer or [], "heads": head or []}
        if not (png or html or as_json):
            if not kind:
                asked["kinds"] = attention_kinds(client, model, text_only=text_only)[-1:]
            asked |= {"mean_layers": not layer, "mean_heads": not head}
        seen = client.attend(text, **asked)
        if png:
            draw(seen, png)
        if html:
            from cli.attention_page import page

            html.write_text(page(seen, text=text, model=model), encoding="utf-8")
        if as_json:
            typer.echo(json.dumps(dataclasses.asdict(seen), ensure_ascii=False))
        if not (png or html or as_json):
            show_attention(seen)


def attention_kinds(client: Client, model: str, *, text_only: bool) -> list[str]:
    """The kinds of attention that a model tells, the one about both texts last."""
    from glossa.client.types import attention_kind

    kinds = [attention_kind(one.kind) for one in client.get_model(model).attention]
    return kinds[:1] if text_only else kinds


def show_attention(seen: Attended) -> None:
    """Heat maps one below the other, in colours where the terminal has some."""
    from rich.console import Console

    from cli.heatmap import lines

    console = Console(highlight=False)
    if seen.target_text:
        console.print(seen.target_text, markup=False)
    for matrix in seen.matrices:
        console.print()
        for line in lines(seen, matrix, width=console.width):
            console.print(line, no_wrap=True, crop=False)


@app.command()
@with_decoding_flags
def bench(
    texts: Annotated[
        Path, typer.Option("--input", help="texts to ask, one a line; of TSV the first column; may be .gz")
    ],
    address: Address = "127.0.0.1:50051",
    model: ModelName = "",
    rate: Annotated[str, typer.Option(help="requests/s to send, such as 5,10,20: one load after another")] = "",
    find_max: Annotated[
        bool, typer.Option("--find-max", help="search the highest rate that meets the objectives, from --rate or 1")
    ] = False,
    concurrency: Annotated[
        str,
        typer.Option(help="instead: so many clients that each wait for their answers (a closed loop), such as 1,64"),
    ] = "",
    duration_s: Annotated[float, typer.Option(help="seconds of each load that count")] = 30.0,
    warm_up_s: Annotated[float, typer.Option(help="seconds before, which do not")] = 5.0,
    wait_s: Annotated[float, typer.Option(help="seconds to wait for answers afterwards; then they have failed")] = 30.0,
    timeout_s: Annotated[float, typer.Option(help="deadline of each request")] = 60.0,
    stream: Annotated[bool, typer.Option("--stream/--unary", help="unary calls tell no times of tokens")] = True,
    slo_e2e_ms: Annotated[float, typer.Option(help="objective: a whole answer within so many milliseconds")] = 1000.0,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="objective: the first token")] = None,
    slo_itl_ms: Annotated[float | None, typer.Option(help="objective: the wait for each further token")] = None,
    percentile: Annotated[float, typer.Option(help="percentage of requests that must meet the objectives")] = 99.0,
    burstiness: Annotated[float, typer.Option(help="1: Poisson arrivals; below 1 in bursts, above 1 even")] = 1.0,
    within_s: Annotated[float, typer.Option(help="most seconds of --find-max")] = 600.0,
    precision: Annotated[float, typer.Option(help="--find-max ends when the answer is known so well")] = 0.05,
    connections: Annotated[int, typer.Option(help="connections that take turns; each carries some 256 calls")] = 4,
    seed: Annotated[int, typer.Option(help="of arrivals and texts; of sampling: --option seed=N")] = 0,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="latency over load, as .png or .svg")] = None,
    *,
    options: dict[str, Any],
) -> None:
    """Load a server as independent users would, and tell latencies, goodput and the highest rate it sustains.

    Requests are sent at random moments that do not depend on the answers; every time counts from the moment at which a
    request was to be sent.
    """
    from cli.bench import Bench, BenchError, read_texts
    from cli.bench import run as measure
    from cli.load_generator import Window
    from cli.load_report import Objectives, ReportError, check_plot, draw
    from glossa.client import ClientError

    def seconds(milliseconds: float | None) -> float | None:
        return None if milliseconds is None else milliseconds / 1000

    with complaints(BenchError, ClientError, ReportError, ValueError):
        if plot is not None:
            check_plot(plot)
        asked = Bench(
            address=address,
            texts=read_texts(texts),
            model=model,
            rates=numbers("--rate", rate, float),
            concurrencies=numbers("--concurrency", concurrency, int),
            is_search=find_max,
            precision=precision,
            within_s=within_s,
            window=Window(warm_up_s=warm_up_s, duration_s=duration_s),
            wait_s=wait_s,
            timeout_s=timeout_s,
            is_streamed=stream,
            objectives=Objectives(
                end_to_end_s=slo_e2e_ms / 1000,
                first_token_s=seconds(slo_ttft_ms),
                inter_token_s=seconds(slo_itl_ms),
                percentile=percentile,
            ),
            burstiness=burstiness,
            connections=connections,
            seed=seed,
            options=options,
        )
        measured = measure(asked, functools.partial(typer.echo, err=as_json))
        if plot is not None:
            draw(plot, f"{measured.model.name} at {address}", measured.loads, asked.objectives)
    if as_json:
        typer.echo(json.dumps(measured.as_json(), ensure_ascii=False))


def numbers(flag: str, text: str, kind: type[Number]) -> list[Number]:
    """5,10,20 as numbers. Raises UsageError."""
    try:
        return [kind(part) for part in text.split(",")] if text else []
    except ValueError:
        raise UsageError(f"{flag}: must be numbers separated by commas, got {text!r}") from None


@app.command()
def doctor(
    bundles: Annotated[list[Path] | None, typer.Argument(help="bundles to check as well")] = None,
    as_json: AsJson = False,
) -> None:
    """What this machine has, what is missing, and how to fix it. Exit code 1 if serving would not work."""
    from cli.doctor import examine

    checks = examine(bundles or [])
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(check) for check in checks]))
    else:
        width = max(len(check.name) for check in checks) + 2
        for check in checks:
            typer.echo(f"{check.status:6}{check.name:{width}}{check.value}")
            if check.fix:
                typer.echo(f"{'':{6 + width}}fix: {check.fix}")
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


@app.command()
def healthcheck(http_port: Annotated[int, typer.Option(envvar="GLOSSA_HTTP_PORT")] = 9464) -> None:
    """Exit code 0 if the server on this machine is ready: for container health checks."""
    if not is_ready(f"http://127.0.0.1:{http_port}"):
        typer.echo(f"error: no ready server behind port {http_port}", err=True)
        raise typer.Exit(1)


DEMO_SENTENCES = 500
DEMO_BAR = 0.97  # share of unseen sentences that the demo model must translate exactly


@app.command()
def demo(out: Annotated[Path, typer.Option(help="where the checkpoint and the bundle go")] = Path("runs/demo")) -> None:
    """Train on the embedded corpus, export, serve, translate sentences with unseen combinations: the whole path."""
    from glossa.client import Client, ClientError
    from model.corpus.corpus import pairs

    started = time.monotonic()
    checkpoint, bundle = out / "checkpoint", out / "bundle"
    for old in (checkpoint, bundle):
        shutil.rmtree(old, ignore_errors=True)
    train("demo", out=checkpoint)
    trained = time.monotonic()
    typer.echo(f"\ntrained in {trained - started:.0f} s; exporting")
    export(checkpoint, bundle)
    unseen = pairs(seed=1, count=DEMO_SENTENCES, split="test")
    with complaints(ClientError), serving(bundle) as (address, ops), Client(address) as client:
        before = counters(fetch(f"{ops}/metrics"))
        english, german = max(unseen[:50], key=lambda pair: len(pair[0]))
        typer.echo(f"\nserving on {address}\n  {english}\n  ", nl=False)
        for piece in client.stream_translate(english):
            typer.echo(piece.text, nl=False)
            if (answer := piece.answer) is not None:
                typer.echo(
                    f"\n  expected: {german}\n  first token {1e3 * answer.first_token_s:.1f} ms, "
                    f"{answer.generated_tokens} tokens in {1e3 * answer.total_s:.1f} ms"
                )
        asked = time.monotonic()
        answers = list(client.translate_batch(source for source, _ in unseen))
        seconds = time.monotonic() - asked
        exact = sum(answer.text == target for answer, (_, target) in zip(answers, unseen, strict=True)) / len(unseen)
        typer.echo(f"\n{len(unseen)} sentences with unseen combinations in {seconds:.1f} s: {exact:.1%} exactly right")
        wrong = [(pair, answer.text) for pair, answer in zip(unseen, answers, strict=True) if answer.text != pair[1]]
        for (source, target), text in wrong[:3]:
            typer.echo(f"  wrong: {source}\n    expected {target}\n    got      {text}")
        after = counters(fetch(f"{ops}/metrics"))
    typer.echo("\nmetrics that moved")
    for name, value in after.items():
        if value != before.get(name, 0.0):
            typer.echo(f"  {name} {value:g}")
    typer.echo(f"\ndone in {time.monotonic() - started:.0f} s; serve it yourself: glossa serve demo={bundle}")
    if exact < DEMO_BAR:
        typer.echo(f"error: {exact:.1%} exactly right, must be at least {DEMO_BAR:.0%}", err=True)
        raise typer.Exit(1)


def counters(exposition: str) -> dict[str, float]:
    """Every counter of a Prometheus exposition, and the counts of its histograms, summed over labels."""
    totals: dict[str, float] = {}
    for line in exposition.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name.startswith("glossa_") and name.endswith(("_total", "_count")):
            totals[name] = totals.get(name, 0.0) + float(line.rpartition(" ")[2])
    return totals


def main() -> None:
    app()


if __name__ == "__main__":
    main()
