"""What the turns of an engine ask of CUDA, counted by the fake.

Usage: python -m tests.cuda.loop BUNDLE. Prints the calls of opening a runner, which captures all steps; the most of a
turn that only steps; those of all turns together; and whether answers without captured steps are the same.
"""

import gc
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from export.bundle.directory import load_bundle
from service.options import DecodingOptions
from service.runtime.onnx_model import OnnxModel
from service.runtime.runner import OnnxRunner
from tests.cuda.fake import FakeCuda
from tests.runner_requests import decode, requests_for

MAX_ROWS, KV_CACHE_BYTES = 12, 1 << 24
KINDS = (
    "launches",
    "products",
    "blocking",
    "captures",
    "graph launches",
    "allocations",
    "illegal in capture",
    "copies",
)


def calls(cuda: FakeCuda) -> Counter[str]:
    return Counter({kind: cuda.total(kind) for kind in KINDS})


def opened(path: Path, *, captures: bool) -> OnnxRunner:
    model = OnnxModel.open(path, load_bundle(path), device="cuda")
    model.choice = replace(model.choice, captures=captures)
    return model.runner(max_rows=MAX_ROWS, kv_cache_bytes=KV_CACHE_BYTES)


def main(path: Path) -> dict[str, Any]:
    cuda = FakeCuda()
    runner = opened(path, captures=True)
    at_start = calls(cuda)
    found: dict[str, Any] = {"start": at_start}
    for search, options in {"greedy": DecodingOptions(), "beams": DecodingOptions(beam_size=4)}.items():
        requests = [replace(request, options=options) for request in requests_for(runner.model, 10, seed=3)]
        turns = [calls(cuda)]
        steps: list[Counter[str]] = []  # turns that neither begin nor end a row

        def count(plan, output, turns=turns, steps=steps):
            turns.append(calls(cuda))
            step = plan.step
            if (
                not (step.new_rows or step.prompts.chunks or step.moves.parked or step.moves.resumed)
                and step.shape.rows == step.rows_before
            ):
                steps.append(turns[-1] - turns[-2])

        sequences = decode(runner, requests, on_run=count, max_rows=MAX_ROWS, kv_cache_bytes=KV_CACHE_BYTES)
        answers = [sequence.answers[0].tokens for sequence in sequences]
        most = {kind: max(step[kind] for step in steps) for kind in KINDS}
        found[search] = {"turns": len(turns) - 1, "steps": len(steps), "most": most, "all": turns[-1] - turns[0]}
        eager = decode(opened(path, captures=False), requests, max_rows=MAX_ROWS, kv_cache_bytes=KV_CACHE_BYTES)
        found[search]["same_without_capture"] = [sequence.answers[0].tokens for sequence in eager] == answers
        gc.collect()  # the other runner, not in a turn that is counted
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
