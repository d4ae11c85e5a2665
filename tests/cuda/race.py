"""Answers of an engine whose inputs do not keep to its stream, as cudaMemcpy from ordinary memory does not.

Usage: python -m tests.cuda.race BUNDLE. Prints how many requests there are, and how many get other answers than with
inputs that keep to it.
"""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

from service.runtime.cuda_memory import HOST_TO_DEVICE, CudaMemory
from service.runtime.memory import Block
from service.runtime.runner import OnnxRunner
from tests.cuda.loop import KV_CACHE_BYTES, MAX_ROWS, opened
from tests.runner_requests import decode, requests_for


class RacingMemory(CudaMemory):
    """Copies inputs on the default stream, which the stream of the model does not wait for."""

    def write(self, block: Block, values: np.ndarray) -> None:
        address, source = ctypes.c_void_p(block.address), ctypes.c_void_p(values.ctypes.data)
        size = ctypes.c_size_t(values.nbytes)
        self._runtime.call("cudaMemcpy", address, source, size, ctypes.c_int(HOST_TO_DEVICE))


def answers(runner: OnnxRunner) -> list[list[int]]:
    requests = requests_for(runner.model, 10, seed=3)
    sequences = decode(runner, requests, max_rows=MAX_ROWS, kv_cache_bytes=KV_CACHE_BYTES)
    return [sequence.answers[0].tokens for sequence in sequences]


def main(path: Path) -> dict[str, int]:
    runner = opened(path, captures=True)
    expected = answers(runner)
    assert isinstance(runner.memory, CudaMemory)
    runner.memory.__class__ = RacingMemory
    pairs = list(zip(answers(runner), expected, strict=True))
    return {"requests": len(pairs), "others": sum(one != other for one, other in pairs)}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
