"""Divides the memory of a device among what a model keeps there: plain numbers, before any of it is allocated.

Caches on a device are allocated once (`service.runtime.fixed_caches`), and admission must know how large they are. So
the requested limits are lowered here to the free memory, after the weights were loaded. Outputs and activations cannot
be lowered. Nothing here measures or allocates.
"""

from __future__ import annotations

from dataclasses import replace

from service.memory.cache_layout import row_capacity_for, shortlist_capacity_for
from service.memory.engine_limits import EngineLimits
from service.memory.memory_prediction import FLOAT, ModelShape, engine_parts

FREE_SHARE = 0.9
"""Of the free memory that a model takes: the rest is lost between allocations, and for what other programs need."""
LIBRARIES_BYTES = 288 << 20
"""Workspaces of cuBLAS, 32 MiB for each of its handles on Hopper ("cublasSetWorkspace"), and captured steps."""


def available_bytes(free: int, *, weights: int, most: int) -> int:
    """Bytes that a model may take beside its weights, which are loaded. free: now; most: in all, 0: no limit."""
    return min(int(FREE_SHARE * free), most - weights) if most else int(FREE_SHARE * free)


def limits_within(available: int, shape: ModelShape, asked: EngineLimits) -> EngineLimits | None:
    """Fits the requested limits into `available` bytes by scaling all caches by one factor. Returns None if not even
    `least_bytes` fit.

    shape: with the tiers of the device in its layout.
    """
    parts = engine_parts(shape, asked)
    others, wanted = parts["prefix_cache"] + parts["parked"], cache_bytes(shape, asked, asked.kv_cache_bytes)
    left = available - _fixed_bytes(shape, asked)
    if left >= wanted + others:
        return asked
    sizes = {step: cache_bytes(shape, asked, step) for step in _steps(shape, asked)}
    least = min(sizes)
    if sizes[least] > left:
        return None
    share = left * wanted / (wanted + others)
    kv_cache = max([step for step in sizes if sizes[step] <= share], default=least)
    factor = (left - sizes[kv_cache]) / others if others else 1.0
    return replace(
        asked,
        kv_cache_bytes=min(kv_cache or asked.kv_cache_bytes, asked.kv_cache_bytes),
        prefix_cache_bytes=int(min(1.0, factor) * asked.prefix_cache_bytes),
        parking_bytes=int(min(1.0, factor) * asked.parking_bytes),
    )


def least_bytes(shape: ModelShape, limits: EngineLimits) -> int:
    """Bytes beside the weights without which an engine cannot serve its largest request: one row of the largest tier,
    and what does not depend on caches."""
    return _fixed_bytes(shape, limits) + cache_bytes(shape, limits, min(_steps(shape, limits)))


def _steps(shape: ModelShape, limits: EngineLimits) -> list[int]:
    return shape.layout.steps_within(max_rows=limits.max_rows, max_bytes=limits.kv_cache_bytes)


def _fixed_bytes(shape: ModelShape, limits: EngineLimits) -> int:
    parts = engine_parts(shape, limits)
    draws = 2 * FLOAT * limits.max_rows * shape.vocab_size if shape.max_target_len else 0  # `runtime.token_draws`
    return parts["outputs"] + parts["activations"] + draws + shape.opened_later + LIBRARIES_BYTES


def cache_bytes(shape: ModelShape, limits: EngineLimits, kv_cache_bytes: int) -> int:
    """Bytes of the caches of all rows that admission lets in under such a limit. Shortlists are not allocated with the
    others: old ones and new ones exist side by side while they grow."""
    layout, rows = shape.layout, limits.max_rows
    shortlists = row_capacity_for(rows, rows) * layout.shortlist_bytes * shortlist_capacity_for(shape.shortlist_len)
    return layout.fixed_bytes(max_rows=rows, max_bytes=kv_cache_bytes) + 2 * min(shortlists, kv_cache_bytes)
