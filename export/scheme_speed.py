"""Measures the speed of quantization schemes: of decode steps, or of encoder passes over texts, in turns.

The figures are told with the loss of each scheme (`export.select_scheme`). They depend on the machine and on what else
it does, and decide nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from export.bundle.manifest import PAD_MULTIPLE
from export.verification.golden import encode_for_decode
from export.verification.inputs import Ids
from export.verification.ort_graphs import OrtGraphs, round_up
from model.config import ModelConfig

ROWS = 32  # batch size of responses, and of the decode steps whose speed is told
TIMED_ROUNDS, TIMED_STEPS, TIMED_CAPACITY = 15, 4, 32
TIMED_LEAST, TIMED_S = 3, 10.0  # minimum number of rounds; after it, no round starts later than this


def measure_speeds(
    graphs: Mapping[str, OrtGraphs], sources: Sequence[Ids], config: ModelConfig, clock: Callable[[], float]
) -> dict[str, dict[str, Any]]:
    """Return the median speeds of all schemes, measured in turns: with many rows or the whole batch, and with one row.

    Decode steps are timed after `sources`; for encoder-only models, encoding the sources is timed. The result holds
    fields of a `SchemeMeasurement` by scheme.
    """
    if config.has_decoder:
        many, single = (_decode_rates(graphs, sources, rows, config, clock) for rows in (ROWS, 1))
    else:
        many, single = (
            _rates(
                {name: partial(scheme.encode, some) for name, scheme in graphs.items()}, sum(map(len, some)), 1, clock
            )
            for some in (sources, sources[:1])
        )
    return {
        name: {"tokens_per_s": round(many[name], 1), "single_stream_tokens_per_s": round(single[name], 1)}
        for name in graphs
    }


def _decode_rates(
    graphs: Mapping[str, OrtGraphs], given: Sequence[Ids], rows: int, config: ModelConfig, clock: Callable[[], float]
) -> dict[str, float]:
    sources = [given[row % len(given)] for row in range(rows)]
    position = min(TIMED_CAPACITY // 2, config.max_target_len - 1)
    runs = dict[str, Callable[[], None]]()
    for name, scheme in graphs.items():
        cross = encode_for_decode(scheme, sources) if config.has_encoder else {}
        buffers = scheme.buffers(rows, round_up(position + 1, PAD_MULTIPLE))
        runs[name], _ = scheme.step([[config.eos_id]] * rows, [position] * rows, buffers, cross, top_k=0)
        runs[name]()
    return _rates(runs, rows * TIMED_STEPS, TIMED_STEPS, clock)


def _rates(
    runs: Mapping[str, Callable[[], object]], tokens: int, steps: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Return tokens per second by the median of rounds; each round has `steps` runs and `tokens` tokens altogether."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    started_s = clock()
    for done in range(TIMED_ROUNDS):
        if done >= TIMED_LEAST and clock() - started_s > TIMED_S:
            break
        for name, run in runs.items():
            before_s = clock()
            for _ in range(steps):
                run()
            seconds[name].append(clock() - before_s)
    return {name: tokens / max(statistics.median(seconds[name]), 1e-9) for name in runs}
