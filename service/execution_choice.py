"""Where and in which precision a model runs (`ExecutionChoice`), and which of a bundle's graphs serve: plain data for
runtime, plan, metrics and descriptions."""

from __future__ import annotations

from dataclasses import dataclass

from export.manifest import Manifest

CPU_PRECISIONS = ("int8", "int4", "fp32")  # fastest first
LAZY_ROLES = ("attend",)
"""Opened on first use: `ModelSessions.open_attend`."""


@dataclass(frozen=True)
class ExecutionChoice:
    """Where a model runs.

    provider: the execution provider in use. requested: the device of the settings.
    fallback: the requested device does not work; reason: why, and the fix.
    captures: decode steps may be captured as CUDA graphs; then every run of `decode` has `run_options`.
    """

    provider: str
    requested: str
    fallback: bool
    reason: str
    precision: str
    captures: bool = False


def cpu_precision(manifest: Manifest, wanted: str) -> str | None:
    """The precision of a bundle's graphs that serve on the CPU; None: it has none. `auto` wants the first of
    CPU_PRECISIONS that is there."""
    there = {variant.precision for variant in manifest.variants}
    return next((name for name in (CPU_PRECISIONS if wanted == "auto" else (wanted,)) if name in there), None)
