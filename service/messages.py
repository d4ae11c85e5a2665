"""What the server knows, as the messages of glossa.v1. Pure: values in, messages out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from protos.glossa.v1 import glossa_pb2 as pb
from service.catalog import ServedModel, TextLimits
from service.request import Finished, FinishReason, Timings

FINISH_REASONS = {
    FinishReason.END_OF_SEQUENCE: pb.FINISH_REASON_END_OF_SEQUENCE,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
}
TASKS = {"translation": pb.TASK_TRANSLATION, "generation": pb.TASK_GENERATION}


def completion(finished: Finished) -> dict[str, Any]:
    """The fields that every message at the end of an answer has."""
    return {
        "finish_reason": FINISH_REASONS[finished.reason],
        "usage": pb.Usage(prompt_tokens=finished.prompt_tokens, generated_tokens=finished.generated_tokens),
        "timings": _timings(finished.timings),
    }


def describe(model: ServedModel, limits: TextLimits) -> pb.Model:
    """A model and what a request may ask of it."""
    manifest, provider = model.manifest, model.provider
    lineage = manifest.lineage
    training = lineage.get("metrics") or {}
    return pb.Model(
        name=model.name,
        task=TASKS[manifest.task],
        architecture=manifest.architecture,
        limits=pb.Limits(
            max_prompt_tokens=model.max_prompt_tokens,
            max_tokens=model.room(1),
            max_text_bytes=limits.max_text_bytes,
            max_stop_strings=limits.max_stop_strings,
            max_stop_bytes=limits.max_stop_bytes,
        ),
        vocab_size=manifest.limits.vocab_size,
        precision=model.precision,
        execution_provider=pb.ExecutionProvider(
            provider=provider.name, requested=provider.requested, fallback=provider.fallback, reason=provider.reason
        ),
        parity=_parity(manifest.parity),
        lineage=pb.Lineage(
            steps=training.get("steps") or 0,
            data_sha256=lineage.get("data_sha256") or "",
            git_commit=lineage.get("git_commit") or "",
        ),
        bundle_sha256=model.bundle_sha256,
        format_version=manifest.format_version,
    )


def _timings(timings: Timings) -> pb.Timings:
    return pb.Timings(
        queue=timedelta(seconds=timings.queue_s),
        prefill=timedelta(seconds=timings.prefill_s),
        first_token=timedelta(seconds=timings.first_token_s),
        total=timedelta(seconds=timings.total_s),
    )


def _parity(report: dict[str, Any]) -> pb.Parity:
    names = pb.ParityCheck.DESCRIPTOR.fields_by_name
    checks = [{name: check[name] for name in names if name in check} for check in report.get("checks", ())]
    return pb.Parity(passed=report.get("passed") is True, checks=[pb.ParityCheck(**check) for check in checks])
