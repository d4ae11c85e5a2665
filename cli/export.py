"""`glossa export` and `glossa verify`: write a verified bundle from a checkpoint, and check a bundle."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.flags import SourceUnitName
from cli.local_server import measure_serving
from cli.progress import progress
from cli.terminal import AsJson, UsageError, print_json, report_errors

if TYPE_CHECKING:
    from rich.table import Table

    from export.bundle.manifest import Manifest, Variant

PRECISIONS = ("fp32", "fp16", "int8", "int4", "w4a16")
AUTO = "auto"
LEFT_OUT = {"fp16": "so this bundle does not serve on CUDA"}
COLUMNS = {
    "scheme": ("scheme", ""),
    "texts": ("evaluation_samples", ""),
    "BLEU": ("bleu", ".2f"),
    "BLEU lost": ("bleu_loss", "+.2f"),
    "answers equal": ("exact_match", ".1%"),
    "nats per token": ("nats_per_token", ".3f"),
    "nats lost": ("nats_loss", "+.3f"),
    "tokens equal": ("equal_tokens", ".1%"),
    "tokens/s": ("tokens_per_s", ".0f"),
    "single-stream": ("single_stream_tokens_per_s", ".0f"),
}
"""Columns of the table of measured schemes: the field of SchemeMeasurement, and its format."""

Precisions = Annotated[
    list[str] | None,
    typer.Option(
        "--precision",
        help="one or several of fp32, int8, int4 (CPU), fp16, w4a16 (CUDA), such as fp32,fp16,int8, or repeated; auto: "
        "fp32, and fp16 if the model's values fit into it",
        show_default=AUTO,
    ),
]
Scheme = Annotated[
    str,
    typer.Option(
        help="quantization scheme: w8a8-dynamic, w8a8-static, w8a8-dynamic-kv8, w8a8-static-kv8, w8-block64 of int8; "
        "w4-block32, w4-block128 of int4 (with w4-block128 answers may depend on the batch); w4a16-block32 of w4a16; "
        "auto: the first of its precision within --max-loss, in the order of their speed with many rows"
    ),
]
DevelopmentText = Annotated[
    Path | None,
    typer.Option(
        "--development",
        help="text on which int8, int4 and w4a16 are compared with fp32: .tsv of sources and references, or one text a "
        "line; models trained on an embedded corpus have a default",
    ),
]
CalibrationText = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        help="text like --development that sets the ranges of int8 activations; default: the development text",
    ),
]
MaxLoss = Annotated[
    float | None,
    typer.Option(
        help="most that int8, int4 and w4a16 may lose there: BLEU points [0.3]; without references the share of "
        "answers that differ [0.25]; nats per token of a model that continues text [0.03; of 4 bits 0.1]; the share of "
        "texts whose nearest other text differs [0.03], or of labels [0.05]"
    ),
]
Shortlist = Annotated[
    Path | None,
    typer.Option(help="lines source<TAB>target, may be .gz, from which the vocabulary shortlists are learned"),
]

Calibrate = Annotated[
    Path | None,
    typer.Option(help="lines source<TAB>reference, not from training, by which confidence is calibrated"),
]
CalibrateSamples = Annotated[
    int, typer.Option(help="most sentences of --calibrate that are answered; at least 200", min=200)
]

LANGUAGES = (
    "of the texts, by its code: a model of two languages is served by the pair, one with languages needs those of "
    "--development; default: what the checkpoint says"
)


def export(
    checkpoint: Annotated[Path, typer.Argument(help="checkpoint directory")],
    bundle: Annotated[Path, typer.Argument(help="bundle directory to write")],
    precision: Precisions = None,
    scheme: Scheme = "auto",
    development: DevelopmentText = None,
    max_loss: MaxLoss = None,
    calibration: CalibrationText = None,
    source_language: Annotated[str, typer.Option(help=LANGUAGES)] = "",
    target_language: Annotated[str, typer.Option(help="as --source-language, of the answers")] = "",
    attention: Annotated[
        bool, typer.Option("--attention", help="add the graphs for alignments and attention weights")
    ] = False,
    shortlist: Shortlist = None,
    calibrate: Calibrate = None,
    calibrate_samples: CalibrateSamples = 2000,
    source_unit: SourceUnitName = None,
    replace: Annotated[bool, typer.Option("--replace", help="replace an existing bundle")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a checkpoint to a verified bundle: graphs, tokenizer, manifest."""
    with progress():  # torch alone takes seconds
        from export.bundle.directory import BundleError
        from export.export_errors import ExportError
        from export.options import ExportOptions, QuantizationOptions
        from export.texts import TextFiles
        from export.to_onnx import export_bundle
        from model.checkpoints.checkpoint import CheckpointError
        from model.config import ConfigError, LanguagePair
        from model.training.data.examples import DataError

    with report_errors(BundleError, ConfigError, ExportError, CheckpointError, DataError):
        precisions = named_precisions(precision or [AUTO])
        is_auto = precisions == [AUTO]
        options = ExportOptions(
            precisions=["fp32"] if is_auto else precisions,
            fp16_if_possible=is_auto,
            quantization=QuantizationOptions(scheme=scheme, max_loss=max_loss),
            attention=attention,
            confidence_samples=calibrate_samples,
            source_unit=source_unit,
        )
        files = TextFiles(
            development=development,
            calibration=calibration,
            parallel=shortlist,
            confidence=calibrate,
            languages=LanguagePair(source_language, target_language),
        )
        with progress() as tell:
            options = dataclasses.replace(options, tell=tell)
            manifest = export_bundle(checkpoint, bundle, options, files, replace=replace)
    show_parity(manifest.parity, manifest, bundle, as_json)
    missing = {name: cause for name, cause in manifest.parity.get("left_out", {}).items() if name in options.precisions}
    written = " and ".join(variant.precision for variant in manifest.variants)
    for name, cause in missing.items():
        typer.echo(f"error: {bundle} was written with {written} alone, without {name}: {cause}", err=True)
    if missing:
        raise typer.Exit(1)


def named_precisions(flags: list[str]) -> list[Any]:
    """The precisions that the flags name, or AUTO alone. Raises UsageError."""
    named = [name.strip() for flag in flags for name in flag.split(",") if name.strip()]
    if named != [AUTO] and not set(named) <= set(PRECISIONS):
        known = f"{AUTO}, or of {', '.join(PRECISIONS)}, with commas between"
        raise UsageError(f"--precision: must be {known}, got {', '.join(named)}")
    return named


def verify(
    bundle: Annotated[Path, typer.Argument(help="bundle directory")],
    checkpoint: Annotated[Path | None, typer.Option(help="also compare every output with this checkpoint")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a bundle: digests, golden answer and, with its checkpoint, every output."""
    from export.bundle.directory import BundleError, load_manifest
    from export.verification.verifier import verify_bundle
    from model.checkpoints.checkpoint import CheckpointError

    with report_errors(BundleError, CheckpointError):
        report = verify_bundle(bundle, checkpoint)
        manifest = load_manifest(bundle)
    show_parity(report, manifest, bundle, as_json)
    if not report["passed"]:
        raise typer.Exit(1)


def show_parity(report: dict[str, Any], manifest: Manifest, bundle: Path, as_json: bool) -> None:
    """Print the parity report, the measurements of quantized variants, and what serving the bundle takes; on stderr
    which variants were left out."""
    for precision in LEFT_OUT.keys() & report.get("left_out", {}).keys():
        cause = report["left_out"][precision]
        typer.echo(f"warning: no {precision} graphs, {LEFT_OUT[precision]}: {cause}", err=True)
    for precision, schemes in report.get("passed_over", {}).items():
        for scheme, cause in schemes.items():
            typer.echo(f"warning: {precision} does not use {scheme}, although it is within the loss: {cause}", err=True)
    figures: dict[str, float] = {"bundle_bytes": sum(file.bytes for file in manifest.files.values())}
    with contextlib.suppress(UsageError):  # such as fp16 without a GPU
        figures |= measure_serving(bundle)
    if as_json:
        quantized = {
            variant.precision: {
                "quantization": dataclasses.asdict(variant.quantization),
                "comparison": [dataclasses.asdict(figures) for figures in variant.comparison],
            }
            for variant in manifest.variants
            if variant.quantization is not None
        }
        calibrations = {name: dataclasses.asdict(found) for name, found in manifest.calibrations.items()}
        print_json({**report, "quantized": quantized, "calibrations": calibrations, "serving": figures})
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
    if manifest.calibrations:
        console.print(calibration_table(manifest))
    for variant in manifest.variants:
        if variant.quantization is not None:
            console.print(scheme_table(variant, report.get("loss_errors", {}).get(variant.precision, {})))
    summary = f"{bundle}: {figures['bundle_bytes'] / 1e6:,.1f} MB"
    if "ready_s" in figures:
        summary += (
            f"; a server for it is ready in {figures['ready_s']:.1f} s with {figures['resident_bytes'] / 1e6:,.0f} MB"
        )
    typer.echo(summary)


def calibration_table(manifest: Manifest) -> Table:
    """The calibration of each precision, with errors on sentences that the maps had not been fitted to."""
    from rich.table import Table

    data = {f"{found.samples} sentences of {found.data}" for found in manifest.calibrations.values()}
    table = Table("confidence", "", "map", "measured", "ECE raw", "ECE", title=f"calibrated on {'; '.join(data)}")
    for precision, calibration in manifest.calibrations.items():
        for name, found in (("words", calibration.words), ("sentences", calibration.sentences)):
            errors = f"{found.ece_before:.3f}", f"{found.ece_after:.3f}"
            table.add_row(name, precision, found.map.method, f"{found.measured:,}", *errors)
    return table


def scheme_table(variant: Variant, errors: dict[str, float]) -> Table:
    """The quantization schemes that were measured for a quantized variant. errors: the standard error of the loss of
    each."""
    from rich.table import Table

    kind = variant.quantization
    assert kind is not None
    place = f"blocks of {kind.block_size}" if kind.block_size else "scales by output"
    description = f"{kind.scheme}, {kind.weight_bits}-bit weights, {place}, {kind.activations} activations, "
    description += f"{kind.kv_cache} caches"
    if not kind.batch_invariant:
        description += "; answers may depend on the batch"
    cells = {
        title: [
            "" if (value := getattr(figures, name)) is None else format(value, form) for figures in variant.comparison
        ]
        for title, (name, form) in COLUMNS.items()
    }
    cells["±"] = [f"{errors[figures.scheme]:.3f}" if figures.scheme in errors else "" for figures in variant.comparison]
    cells["selected"] = ["yes" if figures.chosen else "" for figures in variant.comparison]
    cells = {title: column for title, column in cells.items() if any(column)}
    table = Table(*cells, title=f"{variant.precision}: {description}")
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    return table
