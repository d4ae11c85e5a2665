"""Verification that the exported graphs, run as they will be served, compute the same as the PyTorch model.

`export.verification.ort_graphs` runs the graphs, `export.verification.checks` lists the checks. This module makes the
report. It decides nothing about bundles: `export.to_onnx` refuses to write one whose report has a failed check.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from export.bundle.directory import load_bundle, load_shortlist
from export.bundle.manifest import SESSION_CONFIG, SESSION_OPTIMIZATION, SESSION_THREADS, Golden, Limits, Variant
from export.limits import limits_of
from export.sessions import PROVIDER
from export.verification.answer_checks import right_answers
from export.verification.case import Case
from export.verification.checks import Check, run_checks
from export.verification.golden import (
    RightAnswer,
    answer_greedily,
    common_golden,
    golden_vector,
    mean_state,
    vector_difference,
)
from export.verification.inputs import Samples, sample_inputs
from export.verification.ort_graphs import OrtGraphs
from export.verification.torch_reference import Expectations
from model.architectures import Model
from model.checkpoints.atomic_write import DIGESTS
from model.checkpoints.checkpoint import load_checkpoint
from model.encoder import Encoder

Tell = Callable[[str, int, int], object]
"""Called with what is being done, and with how much of how much is done; see `export.options.Tell`."""


class Verification(NamedTuple):
    """The checks of one variant, and its right greedy answers, at most one per input; none unless all checks passed."""

    checks: tuple[Check, ...]
    answers: tuple[RightAnswer, ...]


class Verified(NamedTuple):
    """Variants with their checks, a golden answer that all of them give, None if there is none, and by precision the
    failed check of an optional variant that is not among them."""

    variants: tuple[Variant, ...]
    checks: tuple[Check, ...]
    golden: Golden | None
    left_out: Mapping[str, Check]


def make_report(checks: Iterable[Check]) -> dict[str, Any]:
    """The report as JSON values."""
    listed = [asdict(check) for check in checks]
    session = {"threads": SESSION_THREADS, "optimization": SESSION_OPTIMIZATION, **SESSION_CONFIG}
    passed = bool(listed) and all(check["passed"] for check in listed)
    return {"passed": passed, "provider": PROVIDER, "session": session, "checks": listed}


def verify_graphs(
    directory: Path,
    variant: Variant,
    model: Model,
    samples: Samples,
    *,
    only: Collection[str] = (),
    plain: Expectations | None = None,
    tell: Tell = lambda *_: None,
) -> Verification:
    """The checks of one variant, whose files are below `directory`, against the model they were exported from.

    only: names of checks, and then no answers; empty: all checks. plain: of the model, where its outputs are shared.
    tell: gets how many checks of how many are done.
    """
    case = Case(OrtGraphs(directory, variant, limits_of(model.config)), model, samples, plain)
    told = functools.partial(tell, f"verifying {variant.precision}")
    checks = run_checks(case, only, told)
    has_answers = model.config.has_decoder and not only and all(check.passed for check in checks)
    return Verification(checks, right_answers(case) if has_answers else ())


def verify_variants(
    directory: Path,
    variants: Sequence[Variant],
    plain: Expectations,
    samples: Samples,
    *,
    optional: Collection[str] = (),
    tell: Tell = lambda *_: None,
) -> Verified:
    """Every check of several variants of the model of `plain`. A variant of an `optional` precision that fails one, or
    shares no right answer with the others, is left out."""
    model = plain.own.model
    verified = {
        variant.precision: verify_graphs(directory, variant, model, samples, plain=plain, tell=tell)
        for variant in variants
    }
    failed = {name: _first_failed(verification) for name, verification in verified.items() if name in optional}
    left_out = {name: check for name, check in failed.items() if check is not None}
    kept = [variant for variant in variants if variant.precision not in left_out]
    golden = _common_golden(directory, kept, verified, model, samples)
    spare = [variant.precision for variant in kept if variant.precision in optional]
    if golden is None and spare:
        problem = "no sample input has one that PyTorch and all precisions give"
        left_out |= {name: _equality("golden answer", name, samples.describe(), problem) for name in spare}
        kept = [variant for variant in kept if variant.precision not in left_out]
        golden = _common_golden(directory, kept, verified, model, samples)
    checks = [check for variant in kept for check in verified[variant.precision].checks]
    if golden is not None:
        limits, ends = limits_of(model.config), model.config.eos_ids
        checks += [_check_golden(OrtGraphs(directory, variant, limits), golden, ends) for variant in kept]
    return Verified(tuple(kept), tuple(checks), golden, left_out)


def _first_failed(verification: Verification) -> Check | None:
    return next((check for check in verification.checks if not check.passed), None)


def _common_golden(
    directory: Path,
    variants: Sequence[Variant],
    verified: Mapping[str, Verification],
    model: Model,
    samples: Samples,
) -> Golden | None:
    if not isinstance(model, Encoder):
        return common_golden([verified[variant.precision].answers for variant in variants])
    if any(_first_failed(verified[variant.precision]) for variant in variants):
        return None
    return _golden_vectors(directory, variants, limits_of(model.config), samples)


def _golden_vectors(directory: Path, variants: Sequence[Variant], limits: Limits, samples: Samples) -> Golden:
    """The vectors of each variant for one text: the longest except for extreme inputs."""
    source = max(samples.sources, key=len)
    graphs = [OrtGraphs(directory, variant, limits) for variant in variants]
    vectors = {one.variant.precision: golden_vector(one, source) for one in graphs}
    return Golden(source=source, prompt=(), output=(), vectors=vectors)


def verify_bundle(bundle: Path, checkpoint: Path | None = None) -> dict[str, Any]:
    """The report on a finished bundle: its golden answer and, given its checkpoint, all checks of an export.

    Raises BundleError if a file does not match the manifest, CheckpointError for the checkpoint.
    """
    manifest = load_bundle(bundle)
    size = sum(file.bytes for file in manifest.files.values())
    checks = [_equality("files", "", f"{len(manifest.files)} files, {size} bytes")]
    if manifest.shortlist:
        shortlist = load_shortlist(bundle / manifest.shortlist, **manifest.limits.vocab_sizes)
        checks.append(_equality("shortlist", "", f"a shortlist of {len(shortlist.by_source)} source tokens"))
    for variant in manifest.variants:
        graphs = OrtGraphs(bundle, variant, manifest.limits)
        checks.append(_check_golden(graphs, manifest.golden, manifest.tokens.ends))
    if checkpoint is not None:
        loaded = load_checkpoint(checkpoint)
        actual, recorded = checkpoint_digest(checkpoint), manifest.lineage.get("checkpoint_sha256")
        difference = "" if actual == recorded else f"the bundle was made from {recorded}"
        checks.append(_equality("made from this checkpoint", "", f"digests {actual}", difference))
        samples = sample_inputs(loaded.config, loaded.tokenizer)
        for variant in manifest.variants:
            checks += verify_graphs(bundle, variant, loaded.model, samples).checks
    return make_report(checks)


def checkpoint_digest(checkpoint: Path) -> str:
    """SHA-256 of the digests of all parts of a checkpoint."""
    return hashlib.sha256((checkpoint / DIGESTS).read_bytes()).hexdigest()


def _check_golden(graphs: OrtGraphs, golden: Golden, ends: Sequence[int]) -> Check:
    precision, difference = graphs.variant.precision, ""
    if golden.vectors:
        inputs, vector = f"{len(golden.source)} source tokens", golden.vectors[precision]
        error = vector_difference(vector, mean_state(graphs, golden.source))
        if not error <= vector.tolerance:
            difference = f"the vector differs by {error:.2g} of its largest value, limit {vector.tolerance:.2g}"
    else:
        inputs = f"{len(golden.source)} source, {len(golden.prompt)} prompt and {len(golden.output)} new tokens"
        sources = [golden.source] if golden.source else []
        (answer,) = answer_greedily(graphs, sources, [golden.prompt], ends, len(golden.output))
        if answer.tokens != golden.output:
            difference = f"expected {golden.output}, got {answer.tokens}"
    return _equality("golden answer", precision, inputs, difference)


def _equality(name: str, precision: str, inputs: str, difference: str = "") -> Check:
    """A check that passes if `difference` is empty."""
    return Check(
        name=name,
        precision=precision,
        inputs=inputs,
        max_error=float(bool(difference)),
        tolerance=0.0,
        passed=not difference,
        note=difference,
    )
