"""Checks of `decode` with caches that hold no more than a layer's window: rows that are read past it several times, and
whose caches move before each block as far as the window allows. A server moves them less often
(`export.bundle.windows`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from export.bundle.manifest import PAD_MULTIPLE
from export.verification.case import Case, capacity_of
from export.verification.inputs import Ids
from export.verification.measure import Arrays, Comparison
from export.verification.ort_graphs import garbage, round_up
from export.verification.torch_reference import LAST

WINDOWS_READ = 3
MOST_READ = 2048  # tokens of the longest row: of a window that is longer, the structure of the graph alone is checked


class _Row(NamedTuple):
    """A row that was read up to its last token, and the first position that its caches with a window hold."""

    target: Ids
    buffers: Arrays
    first: int


def steps(case: Case) -> Iterator[Comparison]:
    """The last tokens of rows of different lengths, in one step, against the full sequences in PyTorch."""
    for row, target, (logprobs_V, _) in _last_steps(case):
        yield f"logprobs of row {row}", logprobs_V, case.expected.logprobs(case.sources[0], target, LAST)[0]


def steps_alone(case: Case) -> Iterator[Comparison]:
    """The same rows in that step and in steps of their own."""
    for row, _, (together_V, alone_V) in _last_steps(case):
        yield f"logprobs of row {row}", together_V, alone_V


def _last_steps(case: Case) -> Iterator[tuple[int, Ids, tuple[np.ndarray, np.ndarray]]]:
    """Each row, its target, and the log-probabilities after it: in a step with the others, and in one of its own."""
    rows = [_read(case, target) for target in _targets(case)]
    alone = [_step(case, [row]) for row in rows]
    together = _step(case, rows)
    for i, row in enumerate(rows):
        yield i, row.target, (together[i], alone[i][0])


def _targets(case: Case) -> list[Ids]:
    """Targets of different lengths, the longest several times as long as the window where that is not too long."""
    ids = case.samples.longest_target
    length = min(case.config.max_target_len, max(len(ids), min(WINDOWS_READ * _window(case), MOST_READ)))
    longest = (ids * -(-length // len(ids)))[:length]
    return [longest, longest[: -(-length // 2)], longest[: length - 3]]


def _window(case: Case) -> int:
    return max(state.window for state in case.graphs.variant.states)


def _read(case: Case, target: Ids) -> _Row:
    size = PAD_MULTIPLE if case.config.supports_chunked_prefill else 1
    window, last = _window(case), len(target) - 1
    buffers = case.graphs.buffers(1, capacity_of([target]), window_places=round_up(window + size, 8))
    first = 0
    for start in range(0, last, size):
        first = _advance(case, buffers, first, start)
        block = target[start : min(start + size, last)]
        case.graphs.decode([block], [start], buffers, case.cross([0]), firsts=[first])
    return _Row(target, buffers, _advance(case, buffers, first, last))


def _advance(case: Case, buffers: Arrays, first: int, start: int) -> int:
    """Drops what no token from `start` on attends to, with garbage behind the rest. Returns the new first position."""
    new = max(0, start - _window(case) + 1)
    for name in case.graphs.with_window:
        kept = buffers[name][:, :, new - first : start - first].copy()
        buffers[name][:] = garbage((), kept.dtype)
        buffers[name][:, :, : start - new] = kept
    return new


def _step(case: Case, rows: list[_Row]) -> np.ndarray:
    """Log-probabilities after the last token of each row, float32 (rows, V), in copies of their buffers."""
    buffers = {}
    for name in rows[0].buffers:
        arrays = [row.buffers[name] for row in rows]
        if arrays[0].ndim == 2:  # what a compressing layer has not compressed yet, without positions
            buffers[name] = np.concatenate(arrays)
            continue
        heads, places, width = np.max([array.shape[1:] for array in arrays], axis=0)
        buffers[name] = garbage((len(rows), heads, places, width), arrays[0].dtype)
        for i, array in enumerate(arrays):
            buffers[name][i, :, : array.shape[2]] = array[0]
    tokens, starts = [row.target[-1:] for row in rows], [len(row.target) - 1 for row in rows]
    cross = case.cross([0] * len(rows))
    return case.graphs.decode(tokens, starts, buffers, cross, firsts=[row.first for row in rows]).logprobs
