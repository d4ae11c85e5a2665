"""Decides the number of processes and of engines per process: one engine per process for small models, one process for
large ones.

An engine that shares its process waits for the others whenever Python runs. A model's weights are in memory once for
each process. Small models gain much and cost little, large ones the reverse: MAX_SMALL_BYTES is in between.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import NamedTuple

from export.bundle.manifest import Manifest
from service.machine.execution_choice import CPU_PRECISIONS, LAZY_ROLES, cpu_precision
from service.machine.processors import Processors, in_core_order
from service.memory.engine_limits import EngineLimits
from service.settings.config import ServerSettings
from service.settings.engine_settings import NO_DEVICE, VISIBLE, EngineSettings

MAX_SMALL_BYTES = 48 << 20
"""Weights of a model whose engines run in a process each, by default."""


OPENING_BYTES, OPENING_FACTOR = 2 << 30, 8
"""Memory that a process may allocate while it opens a bundle: some, and so many times the bundle's bytes. A small model
takes 0.1 GB (demo, 4 MB of files); sessions hold their weights at most three times, and the rest is for the logits of
the first answers. What needs more is no model that an export writes."""


class ProcessMemory(NamedTuple):
    """Bytes that an engine process may allocate, 0: any. opening: until its bundle is open; serving: at any time."""

    opening: int = 0
    serving: int = 0


NO_LIMIT = ProcessMemory()


class ProcessPlan(NamedTuple):
    """The engine processes of a model. On a GPU each has one engine, whatever is planned."""

    processes: int
    engines_per_process: int

    @property
    def engines(self) -> int:
        """Number of engines of all processes."""
        return self.processes * self.engines_per_process


def plan_processes(settings: ServerSettings, manifest: Manifest, found: Processors) -> ProcessPlan:
    """The plan for one model on these processors."""
    engines = settings.engines or found.usable
    if may_use_gpu(settings):  # a process for each device; those that CUDA fails have engines on the CPU
        devices = len(settings.cuda_devices.split(","))
        return ProcessPlan(devices, -(-engines // devices))
    each = settings.engines_per_process
    if not each:
        each = 1 if weight_bytes(manifest, settings.precision) <= MAX_SMALL_BYTES else engines
    return ProcessPlan(-(-engines // each), min(each, engines))


def opening_bytes(settings: ServerSettings, manifest: Manifest) -> int:
    """The memory of a process until its bundle is open. 0: no limit but that of the settings; the libraries of a GPU
    reserve far more than they use."""
    if settings.process_memory_bytes is not None or may_use_gpu(settings):
        return 0
    return OPENING_BYTES + OPENING_FACTOR * sum(digest.bytes for digest in manifest.files.values())


def may_use_gpu(settings: ServerSettings) -> bool:
    """Whether a GPU may be found by the runtime that is installed. Only an engine process loads that runtime."""
    if settings.device == "cpu" or settings.precision in CPU_PRECISIONS:
        return False
    try:
        metadata.distribution("onnxruntime-gpu")
    except metadata.PackageNotFoundError:
        return settings.device == "cuda"
    return True


def weight_bytes(manifest: Manifest, precision: str) -> int:
    """Bytes of the graphs that serve on the CPU, without those that are opened on demand."""
    chosen = cpu_precision(manifest, precision)
    if chosen is None:
        return 0
    graphs = manifest.variant(chosen).graphs
    return sum(manifest.graph_bytes(graph) for role, graph in graphs.items() if role not in LAZY_ROLES)


def engine_settings(
    settings: ServerSettings, plan: ProcessPlan, place: int, memory: ProcessMemory = NO_LIMIT
) -> EngineSettings:
    """The settings of the process at index `place` of a model."""
    allowed = in_core_order()
    each = plan.engines_per_process
    pinned = [allowed[(place * each + index) % len(allowed)] for index in range(each)]
    return EngineSettings(
        device=settings.device,
        precision=settings.precision,
        single_engine_threads=settings.single_engine_threads,
        cuda_memory_bytes=settings.cuda_memory_bytes,
        limits=EngineLimits.of(settings),
        cuda_device=_device(settings.cuda_devices.split(",")[place]) if may_use_gpu(settings) else "",
        engines=each,
        model_engines=plan.engines,
        niceness=settings.engine_niceness,
        processors=tuple(sorted(set(pinned))) if settings.pin_processes else (),
        memory_bytes=memory.serving,
        opening_bytes=memory.opening,
    )


def _device(number: str) -> str:
    """How CUDA names a device to a new process, which counts from 0 what CUDA_VISIBLE_DEVICES lets this one see."""
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return number
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return names[int(number)] if int(number) < len(names) else NO_DEVICE
