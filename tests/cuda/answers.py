"""Answers of a bundle on the fake CUDA beside those of the CPU, each from an engine that a server would open.

Usage: python -m tests.cuda.answers BUNDLE SEED. SEED: of the requests. Prints, by kind of search, how many requests
there are, how many have answers of the same tokens, the largest difference of a log-probability where they have, and of
a score anywhere; and the kernels that are not emulated.
"""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.engine_pool import EnginePool
from export.bundle.directory import load_bundle
from service.engine_process.open_engines import open_engines
from service.memory.engine_limits import EngineLimits
from service.options import DecodingOptions
from service.request import HypothesisResult, Request
from service.settings.engine_settings import Device, EngineSettings
from tests.cuda.fake import FakeCuda
from tests.fakes import ask
from tests.runner_requests import requests_for

NUM_REQUESTS, MAX_ROWS = 8, 32
BEAMS = DecodingOptions(beam_size=4, token_logprobs=True)


@contextmanager
def pool(path: Path, device: Device) -> Iterator[EnginePool]:
    opened = open_engines(path, EngineSettings(device=device, limits=EngineLimits(max_rows=MAX_ROWS)))
    engines = EnginePool(opened.engines)
    engines.start()
    try:
        yield engines
    finally:
        engines.close()


def answers(engines: EnginePool, requests: Iterable[Request]) -> list[HypothesisResult]:
    """The best of each request. All are decoded in one batch, whose rows start and end at different turns."""
    sinks = asyncio.run(ask(engines, *requests))
    return [sink.finals[0].hypotheses[0] for sink in sinks]


def compared(pools: dict[Device, EnginePool], requests: list[Request]) -> dict[str, Any]:
    pairs = list(zip(answers(pools["cuda"], requests), answers(pools["cpu"], requests), strict=True))
    same = [(one.token_logprobs, other.token_logprobs) for one, other in pairs if one.tokens == other.tokens]
    differences = [abs(a - b) for one, other in same for a, b in zip(one, other, strict=True)]
    lengths = [len(other.tokens) for _, other in pairs]
    scores = max(abs(one.score - other.score) for one, other in pairs)
    largest = max(differences, default=0.0)
    return {"requests": len(pairs), "same": len(same), "difference": largest, "scores": scores, "lengths": lengths}


def main(path: Path, seed: int) -> dict[str, Any]:
    greedy = requests_for(SimpleNamespace(manifest=load_bundle(path)), NUM_REQUESTS, seed)
    with pool(path, "cuda") as cuda, pool(path, "cpu") as cpu:
        pools: dict[Device, EnginePool] = {"cuda": cuda, "cpu": cpu}
        beams = [replace(request, options=BEAMS) for request in greedy]
        found = {"greedy": compared(pools, greedy), "beams": compared(pools, beams)}
    return {"answers": found, "not emulated": sorted(FakeCuda().counts("not emulated"))}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
