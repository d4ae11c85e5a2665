"""Where and in which precision a model runs (`ExecutionChoice`), and which of a bundle's graphs serve: plain data for
runtime, plan, metrics and descriptions."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from export.bundle.manifest import Manifest

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"  # as ONNX Runtime names them
CPU_PRECISIONS = ("int8", "int4", "fp32")  # fastest first
CUDA_PRECISIONS = ("fp16", "w4a16")  # nearest to fp32 first, for which GroupQueryAttention has no kernel there
LAZY_ROLES = ("attend",)
"""Opened on first use: `ModelSessions.open_attend`."""
SINGLE_ENGINE_ROLES = ("decode", "encode")
"""The first of these graphs that a model has gets a second session. The encoder of an encoder-decoder gets none: it
runs once, and a second copy costs 35 MB to save 1.4 of a request's 80 ms (20 tokens, 6+6 layers, d512, static int8, two
Zen 4 cores)."""
SINGLE_ENGINE_MIN_BYTES = 1 << 24
"""Smallest decoder weights for which several threads pay, unless threads are configured. A smaller decoder's step waits
longer for its threads than it computes: one sentence at a time, static int8 on two Zen 4 cores, two threads instead of
one make 131 sentences/s of 159 with 7 MB (3+3 layers, d256), but a step of 2.5 ms of 3.9 with 56 MB (6+6, d512)."""


class GraphNodes(NamedTuple):
    """How many nodes of a graph, by its role, a provider computes."""

    graph: str
    provider: str
    nodes: int


@dataclass(frozen=True)
class ExecutionChoice:
    """Where a model runs.

    provider: the execution provider in use. requested: the device of the settings.
    fallback: the requested device does not work; reason: why, and the fix.
    captures: decode steps may be captured as CUDA graphs; then every run of `decode` has `run_options`.
    nodes: of the graphs that are open from the start, where that is known.
    """

    provider: str
    requested: str
    fallback: bool
    reason: str
    precision: str
    captures: bool = False
    nodes: tuple[GraphNodes, ...] = ()

    @property
    def on_device(self) -> bool:
        """Whether weights and caches are in the memory of a device."""
        return self.provider == CUDA


def cpu_precision(manifest: Manifest, wanted: str) -> str | None:
    """The precision of a bundle's graphs that serve on the CPU; None: it has none. `auto` wants the first of
    CPU_PRECISIONS that is there, and so does a precision of CUDA, where CUDA does not work."""
    return _first_of(manifest, (wanted,) if wanted in CPU_PRECISIONS else CPU_PRECISIONS)


def cuda_precision(manifest: Manifest, wanted: str) -> str | None:
    """The precision of a bundle's graphs that serve on CUDA; None: it has none. `auto` wants the first of
    CUDA_PRECISIONS that is there."""
    return _first_of(manifest, CUDA_PRECISIONS if wanted == "auto" else (wanted,))


def _first_of(manifest: Manifest, precisions: Iterable[str]) -> str | None:
    there = {variant.precision for variant in manifest.variants}
    return next((name for name in precisions if name in there), None)


def single_engine_role(graphs: Container[str]) -> str:
    """The role of the graph that gets a second session."""
    return next(role for role in SINGLE_ENGINE_ROLES if role in graphs)
