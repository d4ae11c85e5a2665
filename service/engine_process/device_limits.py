"""The limits of an engine on a device, lowered to the memory that is free there."""

from __future__ import annotations

import logging
from dataclasses import replace

from service.errors import StartupError
from service.machine.execution_choice import LAZY_ROLES
from service.memory.device_memory import available_bytes, least_bytes, limits_within
from service.memory.engine_limits import EngineLimits
from service.memory.model_sizes import shape_of
from service.runtime.cuda_device import memory_info
from service.runtime.cuda_memory import CudaStream
from service.runtime.model_sessions import ModelSessions

log = logging.getLogger(__name__)


def limits_on_device(model: ModelSessions, stream: CudaStream, asked: EngineLimits, most_bytes: int) -> EngineLimits:
    """The limits of the only engine of a model whose weights are on the device, and which has nothing else there yet.
    most_bytes: that the model may take in all; 0: no limit. Logs what is lowered. Raises StartupError."""
    free, total = memory_info(stream.runtime.library)
    weights = model.weight_bytes
    available = available_bytes(free, weights=weights, most=most_bytes)
    graphs = model.variant.graphs
    later = sum(model.manifest.graph_bytes(graphs[role]) for role in LAZY_ROLES if role in graphs)
    shape = replace(
        shape_of(model.manifest, model.variant, opened=weights, opened_later=later),
        layout=model.layout,
    )
    room = f"the device has {_mb(free)} free of {_mb(total)} beside the weights, {_mb(weights)}"
    if most_bytes:
        room += f", and --cuda-memory-bytes allows {_mb(most_bytes)} in all"
    found = limits_within(available, shape, asked)
    if found is None:
        raise StartupError(
            f"{room}, but the largest request takes {_mb(least_bytes(shape, asked))}; fix: end other programs on the "
            "device (nvidia-smi lists them), raise --cuda-memory-bytes, lower --max-rows, or name another device with "
            "--cuda-devices"
        )
    if found != asked:
        _tell_lowered(found, asked, room)
    return found


def _tell_lowered(found: EngineLimits, asked: EngineLimits, room: str) -> None:
    log.warning(
        "caches on the device are smaller than asked for: KV cache %s of %s, prefix cache %s of %s, parked rows %s of "
        "%s; %s",
        *map(_mb, (found.kv_cache_bytes, asked.kv_cache_bytes, found.prefix_cache_bytes, asked.prefix_cache_bytes)),
        *map(_mb, (found.parking_bytes, asked.parking_bytes)),
        room,
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
