"""The settings of an engine process (`EngineSettings`): plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from service.memory.engine_limits import EngineLimits

VISIBLE, NO_DEVICE = "CUDA_VISIBLE_DEVICES", "-1"
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "int8", "int4", "fp16", "w4a16"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How one process opens a model.

    cuda_device: the one that the process may use; empty: as CUDA chooses.
    engines: of this process, on CPU; a GPU has one. model_engines: of all processes of the model.
    niceness: of the process, as of nice(2). processors: the only ones the process may run on; empty: all.
    memory_bytes: limit of what it may allocate; 0: none. opening_bytes: the same, until its bundle is open.
    limits: of the whole model, of which each engine gets its share. single_engine_threads, cuda_memory_bytes: see
    `service.settings.config.ServerSettings`.
    """

    device: Device = "auto"
    precision: Precision = "auto"
    cuda_device: str = ""
    engines: int = 1
    model_engines: int = 1
    single_engine_threads: int = 0
    cuda_memory_bytes: int = 0
    limits: EngineLimits = field(default_factory=EngineLimits)
    niceness: int = 0
    processors: tuple[int, ...] = ()
    memory_bytes: int = 0
    opening_bytes: int = 0
