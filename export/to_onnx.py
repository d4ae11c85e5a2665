"""From a checkpoint to a bundle: check, trace, optimize, save, verify, rename into place.

`export.variants` creates and saves the graphs; `export.verification.verifier` compares them with PyTorch before the
bundle gets its final name. Raises ExportError (`export.export_errors`).
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from export.bundle.confidence import Calibration
from export.bundle.directory import load_shortlist, write_bundle
from export.bundle.manifest import SHORTLIST, TOKENIZER, Manifest, Variant
from export.bundle.target_shortlist import Shortlist
from export.calibration import CalibrationError, calibrate_variants
from export.export_errors import DiskError, ExportError, FullDiskError, NoGoldenError, ParityError, describe_failure
from export.graphs.tracing import versions
from export.limits import limits_of
from export.manifest_entries import entries_of
from export.options import DEFAULTS, ExportOptions, check_exportable, check_options, scheme_names
from export.passes.quantization_scheme import SCHEMES
from export.shortlist import learn_shortlist
from export.texts import NO_FILES, Development, TextFiles, own_development, read_development, read_pairs
from export.variants import Saved, save_variants
from export.verification.inputs import Samples, sample_inputs
from export.verification.torch_reference import Expectations
from export.verification.verifier import checkpoint_digest, make_report, verify_variants
from model.architectures import Model
from model.checkpoints.checkpoint import Checkpoint, load_checkpoint
from model.config import ModelConfig
from model.prompts.templates import NO_TEMPLATES, Templates
from model.tokenizer import Tokenizer
from model.training.data.languages import read_languages
from model.training.data.text_files import read_tsv


def export_bundle(
    checkpoint: Path,
    out: Path,
    options: ExportOptions = DEFAULTS,
    files: TextFiles = NO_FILES,
    *,
    replace: bool = False,
) -> Manifest:
    """Export a checkpoint directory, with the text in `files` instead of that in `options`. Models trained on an
    embedded corpus provide development text; other models require it for int8 and int4.

    Raises CheckpointError, ConfigError for the languages of a file, DataError for its lines, ExportError, BundleError
    and OSError; `out` is then unchanged.
    """
    options.tell("reading the checkpoint", 0, 0)
    loaded = load_checkpoint(checkpoint, maps_weights=True)
    options = _with_texts(options, files, loaded, _shortlist_of(checkpoint, loaded.config))
    lineage = {**loaded.lineage, "checkpoint_sha256": checkpoint_digest(checkpoint), "metrics": loaded.metrics}
    return export_model(
        loaded.model, loaded.tokenizer, out, options, lineage=lineage, templates=loaded.templates, replace=replace
    )


def _shortlist_of(checkpoint: Path, config: ModelConfig) -> Shortlist | None:
    """The shortlist with which a checkpoint was imported. Raises BundleError."""
    file = checkpoint / SHORTLIST
    sizes = {"vocab_size": config.vocab_size, "source_vocab_size": config.source_vocab_size}
    return load_shortlist(file, **sizes) if file.is_file() else None


def _with_texts(
    options: ExportOptions, files: TextFiles, checkpoint: Checkpoint, known_shortlist: Shortlist | None
) -> ExportOptions:
    quantization, languages = options.quantization, read_languages(checkpoint.config.template, files.languages)
    if any(files.languages):
        options = dataclasses.replace(options, languages=files.languages)
    development = read_development(files.development, languages, checkpoint) or quantization.development
    calibration = read_pairs(files.calibration, checkpoint) or quantization.calibration
    parallel = read_tsv([files.parallel]).pairs if files.parallel else options.parallel
    shortlist = options.shortlist or known_shortlist
    confidence = read_development(files.confidence, languages, checkpoint) or options.confidence
    if options.quantized and development is None:
        development = own_development(checkpoint)
    quantization = dataclasses.replace(quantization, development=development, calibration=calibration)
    return dataclasses.replace(
        options, quantization=quantization, parallel=parallel, shortlist=shortlist, confidence=confidence
    )


def export_model(
    model: Model,
    tokenizer: Tokenizer,
    out: Path,
    options: ExportOptions = DEFAULTS,
    *,
    lineage: Mapping[str, Any] | None = None,
    templates: Templates = NO_TEMPLATES,
    replace: bool = False,
) -> Manifest:
    """Export a model in memory: float32, on the CPU, in evaluation mode; the model is not changed.

    Each precision becomes a variant and is verified on the CPU against the float32 model; CUDA requires fp16. int8 and
    int4 use the first scheme that `options.quantization` allows, measured against fp32 on its development text, or
    else on `options.texts`.
    """
    config = model.config
    if options.texts:
        options = options.with_development(Development(options.texts, (), "the texts given"))
    check_exportable(model, tokenizer)
    check_options(config, options)
    check_room(out, weights_bytes(model, options))

    def build(directory: Path) -> Manifest:
        _save_texts(tokenizer, templates, directory)
        origin = {**(lineage or {}), "model": config.to_json(), "export": versions()}
        if options.has_shortlist:
            origin["shortlist"] = _shortlist_saved(options, tokenizer, config, directory)
        development, plain = options.quantization.development, Expectations(model)
        samples = sample_inputs(config, tokenizer, options.texts or (development.texts if development else ()))
        variants, left_out, loss_errors, passed_over = _save_all(plain, samples, tokenizer, directory, options)
        verified = verify_variants(directory, variants, plain, samples, optional=options.optional, tell=options.tell)
        left_out |= {name: describe_failure(dataclasses.asdict(check)) for name, check in verified.left_out.items()}
        report = {**make_report(verified.checks), "loss_errors": loss_errors, "passed_over": passed_over}
        if not report["passed"]:
            raise ParityError(report)
        if verified.golden is None:
            raise NoGoldenError(options.precisions)
        _leave_out(left_out, directory, report)
        calibrations = _calibrations(directory, verified.variants, tokenizer, config, options)
        options.tell("checking the bundle", 0, 0)
        return Manifest(
            **entries_of(
                config, attention=options.attention, source_unit=options.source_unit, languages=options.languages
            ),
            variants=verified.variants,
            golden=verified.golden,
            lineage=origin,
            parity=report,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            shortlist=SHORTLIST if options.has_shortlist else "",
            calibrations=calibrations,
        )

    try:
        return write_bundle(out, build, replace=replace)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskError(out, error) from error
        needed_bytes = weights_bytes(model, options)
        raise FullDiskError(out, needed_bytes, free_bytes(out)) from error


def _save_texts(tokenizer: Tokenizer, templates: Templates, directory: Path) -> None:
    """Save what turns texts into tokens."""
    tokenizer.save(directory / TOKENIZER)
    for name, content in templates.files().items():
        (directory / name).write_bytes(content)


def _leave_out(reasons: Mapping[str, str], directory: Path, report: dict[str, Any]) -> None:
    """Deletes the variants that have a reason, and reports it."""
    for precision in reasons:
        shutil.rmtree(directory / precision, ignore_errors=True)
    if reasons:
        report["left_out"] = reasons


def _save_all(
    plain: Expectations, samples: Samples, tokenizer: Tokenizer, directory: Path, options: ExportOptions
) -> Saved:
    """Save every variant; those that are optional may be left out."""
    saved = save_variants(plain, samples, tokenizer, directory, options)
    if options.fp16_if_possible:
        try:
            half = dataclasses.replace(options, precisions=("fp16",))
            variants = saved.variants + save_variants(plain, samples, tokenizer, directory, half).variants
            return saved._replace(variants=variants)
        except ExportError as error:
            saved.left_out["fp16"] = str(error)
    return saved


def _calibrations(
    directory: Path, variants: Sequence[Variant], tokenizer: Tokenizer, config: ModelConfig, options: ExportOptions
) -> dict[str, Calibration]:
    """The calibrated confidence of the variants, if there is text for it. Raises ExportError."""
    text, most = options.confidence, options.confidence_samples
    if text is None:
        return {}
    options.tell("calibrating confidence", 0, 0)
    try:
        return calibrate_variants(directory, variants, limits_of(config), text, tokenizer, config, most=most)
    except CalibrationError as error:
        raise ExportError(f"calibrate: {error}") from None


def weights_bytes(model: Model, options: ExportOptions) -> int:
    """Return the least number of bytes that exporting a model writes at one time: every parameter once, in each scheme
    that is saved. Schemes to choose from lie on the disk together."""
    names = {"fp32"} if options.quantized else set[str]()  # the baseline
    names |= {"fp16"} if options.fp16_if_possible else set()
    for precision in options.precisions:
        is_plain = precision not in options.quantized
        scheme = options.quantization.scheme
        names |= {precision} if is_plain else set(scheme_names(precision, scheme, model.config))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return sum(parameters * SCHEMES[name].weight_bits // 8 for name in names)


def check_room(out: Path, needed_bytes: int) -> None:
    """Check, before any work, that the disk of `out` has so many bytes. Raises FullDiskError."""
    if (free := free_bytes(out)) < needed_bytes:
        raise FullDiskError(out, needed_bytes, free)


def free_bytes(path: Path) -> int:
    """Return how many bytes may be written where a path is or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _shortlist_saved(
    options: ExportOptions, tokenizer: Tokenizer, config: ModelConfig, directory: Path
) -> dict[str, Any]:
    """Write the shortlist, learned or known; return its figures for the manifest. Raises ExportError."""
    if options.parallel or options.shortlist is None:
        return save_shortlist(options.parallel, tokenizer, config, directory)
    (directory / SHORTLIST).write_text(options.shortlist.to_json(), encoding="utf-8")
    return {"longest": options.shortlist.longest}


def save_shortlist(
    parallel: Sequence[tuple[str, str]], tokenizer: Tokenizer, config: ModelConfig, directory: Path
) -> dict[str, Any]:
    """Learn and write the shortlist; return its figures for the manifest. Raises ExportError."""
    try:
        shortlist, figures = learn_shortlist(parallel, tokenizer, eos_id=config.eos_id)
    except ValueError as error:
        raise ExportError(f"shortlist: {error}") from None
    (directory / SHORTLIST).write_text(shortlist.to_json(), encoding="utf-8")
    return figures
