"""Verification that the exported graphs, run as they will be served, compute the same as the PyTorch model.

`export.verification.ort_graphs` runs the graphs; the modules of checks define the comparisons, and
`export.verification.measure` the criteria. This module makes the report. It decides nothing about bundles:
`export.to_onnx` refuses to write one whose report has a failed check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from export.bundle import load_bundle, load_shortlist
from export.manifest import SESSION_CONFIG, SESSION_OPTIMIZATION, SESSION_THREADS, Golden, Limits, Variant
from export.sessions import PROVIDER
from export.verification.attention_checks import AttentionVerifier
from export.verification.encoder_checks import EncoderVerifier, golden_vector, mean_state, vector_difference
from export.verification.golden import Verification, answer_greedily, common_golden
from export.verification.graph_verifier import GraphVerifier
from export.verification.inputs import Samples, sample_inputs
from export.verification.measure import Check
from export.verification.ort_graphs import OrtGraphs
from model.architectures import Model
from model.atomic_write import DIGESTS
from model.checkpoint import load_checkpoint
from model.config import ModelConfig
from model.encoder import Encoder


def make_report(checks: Iterable[Check]) -> dict[str, Any]:
    """The report as JSON values."""
    listed = [asdict(check) for check in checks]
    session = {"threads": SESSION_THREADS, "optimization": SESSION_OPTIMIZATION, **SESSION_CONFIG}
    passed = bool(listed) and all(check["passed"] for check in listed)
    return {"passed": passed, "provider": PROVIDER, "session": session, "checks": listed}


def verify_graphs(
    directory: Path, variant: Variant, model: Model, samples: Samples, *, only: Collection[str] = ()
) -> Verification:
    """The checks of one variant, whose files are below `directory`, against the model they were exported from.

    only: names of checks; empty: all checks.
    """
    served = OrtGraphs(directory, variant, limits_of(model.config))
    arguments = variant.precision, model, samples, variant.quantization
    seen = AttentionVerifier(served, *arguments).verify(only) if "attend" in served.roles else ()
    if isinstance(model, Encoder):
        encoder = EncoderVerifier(served, variant.precision, model, samples, variant.quantization)
        return Verification((*encoder.verify(only), *seen))
    found = GraphVerifier(served, variant.precision, model, samples, variant.quantization).run(only)
    return Verification((*found.checks, *seen), found.answers)


def verify_variants(
    directory: Path, variants: Sequence[Variant], model: Model, samples: Samples
) -> tuple[list[Check], Golden | None]:
    """Every check of several variants, and a golden answer that all of them give; None if there is none."""
    verified = [verify_graphs(directory, variant, model, samples) for variant in variants]
    checks = [check for verification in verified for check in verification.checks]
    limits, ends = limits_of(model.config), model.config.eos_ids
    if isinstance(model, Encoder):
        golden = _golden_vectors(directory, variants, limits, samples) if make_report(checks)["passed"] else None
    else:
        golden = common_golden(verified)
    if golden is not None:
        checks += [_check_golden(OrtGraphs(directory, variant, limits), golden, ends) for variant in variants]
    return checks, golden


def _golden_vectors(directory: Path, variants: Sequence[Variant], limits: Limits, samples: Samples) -> Golden:
    """The vectors of each variant for one text: the longest except for extreme inputs."""
    source = max(samples.sources, key=len)
    vectors = {
        variant.precision: golden_vector(OrtGraphs(directory, variant, limits), source, variant.precision)
        for variant in variants
    }
    return Golden(source=source, prompt=(), output=(), vectors=vectors)


def verify_bundle(bundle: Path, checkpoint: Path | None = None) -> dict[str, Any]:
    """The report on a finished bundle: its golden answer and, given its checkpoint, all checks of an export.

    Raises BundleError if a file does not match the manifest, CheckpointError for the checkpoint.
    """
    manifest = load_bundle(bundle)
    size = sum(file.bytes for file in manifest.files.values())
    checks = [_equality("files", "", f"{len(manifest.files)} files, {size} bytes", "")]
    if manifest.shortlist:
        shortlist = load_shortlist(bundle / manifest.shortlist, vocab_size=manifest.limits.vocab_size)
        checks.append(_equality("shortlist", "", f"a shortlist of {len(shortlist.by_source)} source tokens", ""))
    for variant in manifest.variants:
        served = OrtGraphs(bundle, variant, manifest.limits)
        checks.append(_check_golden(served, manifest.golden, manifest.tokens.ends))
    if checkpoint is not None:
        loaded = load_checkpoint(checkpoint)
        theirs, ours = checkpoint_digest(checkpoint), manifest.lineage.get("checkpoint_sha256")
        difference = "" if theirs == ours else f"the bundle was made from {ours}"
        checks.append(_equality("made from this checkpoint", "", f"digests {theirs}", difference))
        samples = sample_inputs(loaded.config, loaded.tokenizer)
        for variant in manifest.variants:
            checks += verify_graphs(bundle, variant, loaded.model, samples).checks
    return make_report(checks)


def checkpoint_digest(checkpoint: Path) -> str:
    """SHA-256 of the digests of all parts of a checkpoint."""
    return hashlib.sha256((checkpoint / DIGESTS).read_bytes()).hexdigest()


def _check_golden(served: OrtGraphs, golden: Golden, ends: Sequence[int]) -> Check:
    precision = served.variant.precision
    if golden.vectors:
        vector = golden.vectors[precision]
        off = vector_difference(vector, mean_state(served, golden.source))
        told = "" if off <= vector.tolerance else f"the vector differs by {off:.2g} of its largest value"
        return _equality("golden answer", precision, f"{len(golden.source)} source tokens", told)
    sources = [golden.source] if golden.source else []
    (answer,) = answer_greedily(served, sources, [golden.prompt], ends, len(golden.output))
    inputs = f"{len(golden.source)} source, {len(golden.prompt)} prompt and {len(golden.output)} new tokens"
    difference = "" if answer.tokens == golden.output else f"expected {golden.output}, got {answer.tokens}"
    return _equality("golden answer", precision, inputs, difference)


def _equality(name: str, precision: str, inputs: str, difference: str) -> Check:
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


def limits_of(config: ModelConfig) -> Limits:
    """The limits of a model's inputs."""
    return Limits(
        vocab_size=config.vocab_size,
        max_source_len=config.max_source_len if config.has_encoder else 0,
        max_target_len=config.max_target_len if config.has_decoder else 0,
        max_block=0 if config.supports_chunked_prefill else 1,
    )
