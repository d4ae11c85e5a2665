"""An answer on the fake CUDA in a row that was left in mid-prompt, full of what is not a number.

Usage: python -m tests.cuda.leftovers BUNDLE. Prints whether the answer is the one that the row gave before.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from service.decoding.search import advance
from service.engine.scheduler import Scheduler
from service.request import Request
from service.runtime.runner import OnnxRunner
from service.sequence import Sequence
from tests.cuda.loop import KV_CACHE_BYTES, MAX_ROWS, opened
from tests.engines import engine_limits
from tests.runner_requests import sequence_for

CHUNK_TOKENS = 16


def turn(scheduler: Scheduler, runner: OnnxRunner) -> None:
    plan = scheduler.plan(0.0)
    output = runner.run(plan.step)
    advance(scheduler.commit(plan), output)


def soil(runner: OnnxRunner, row: int) -> None:
    """Fills a row with NaN, as numbers do that float16 cannot hold."""
    for buffer in runner._caches.buffers:
        size = buffer.size_for(1, buffer.capacity) // len(buffer.specs)
        for _, offset in buffer.offsets(row):
            memory: Any = SimpleNamespace(address=buffer.block.address + offset, size=size)
            runner.memory.write(memory, np.full(size, 0xFF, np.uint8))


def main(path: Path) -> dict[str, bool]:
    runner = opened(path, captures=True)
    config = engine_limits(
        max_rows=MAX_ROWS,
        kv_cache_bytes=KV_CACHE_BYTES,
        chunk_tokens=CHUNK_TOKENS,
        max_prefill_tokens=CHUNK_TOKENS,
        max_idle_prefill_tokens=CHUNK_TOKENS,
    )
    scheduler = Scheduler(config, runner.limits, runner.layout)

    def submitted(prompt: tuple[int, ...]) -> Sequence:
        sequence: Sequence = sequence_for(runner, Request(request_id="r", prompt=prompt, max_tokens=12))
        scheduler.submit(sequence)
        return sequence

    def answer() -> list[int]:
        sequence = submitted((1, 7, 9))
        while not sequence.answers:
            turn(scheduler, runner)
        return sequence.answers[0].tokens

    before = answer()
    left = submitted((1, *range(4, 4 + 2 * CHUNK_TOKENS)))
    turn(scheduler, runner)
    assert left.num_computed == CHUNK_TOKENS
    soil(runner, *left.rows)
    scheduler.waiting.cancel(left)
    return {"same": answer() == before}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
