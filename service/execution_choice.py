"""Where and in which precision a model runs (`ExecutionChoice`): plain data for runtime, metrics and descriptions."""

from __future__ import annotations

from dataclasses import dataclass


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
