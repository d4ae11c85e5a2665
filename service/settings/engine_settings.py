"""What an engine process needs to know of the server's settings (`EngineSettings`): plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VISIBLE, NO_DEVICE = "CUDA_VISIBLE_DEVICES", "-1"
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "int8", "int4", "fp16", "w4a16"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How one process opens a model. Limits are those of the whole model; each engine gets its share.

    cuda_device: the one that the process may use; empty: as CUDA chooses.
    engines: of this process, on CPU; a GPU has one. model_engines: of all processes of the model.
    niceness: of the process, as of nice(2). processors: the only ones the process may run on; empty: all.
    memory_bytes: limit of what it may allocate; 0: none. opening_bytes: the same, until its bundle is open.
    single_engine_threads and the limits: see `service.settings.config.ServerSettings`.
    """

    device: Device = "auto"
    precision: Precision = "auto"
    cuda_device: str = ""
    engines: int = 1
    model_engines: int = 1
    single_engine_threads: int = 0
    max_rows: int = 64
    kv_cache_bytes: int = 1 << 30
    cuda_memory_bytes: int = 0
    max_prefill_tokens: int = 256
    prefix_cache_bytes: int = 1 << 27
    parking_bytes: int = 1 << 28
    draft_tokens: int = 0
    stream_messages_per_s: int = 0
    niceness: int = 0
    processors: tuple[int, ...] = ()
    memory_bytes: int = 0
    opening_bytes: int = 0
