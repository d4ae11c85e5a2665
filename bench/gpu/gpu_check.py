"""The first thing to run on a machine with an NVIDIA GPU: does CUDA compute the right answers here, and how fast?

One command, without a network, with models that are made on the spot; `--bundle` checks a trained one, too. Each part
runs in a process of its own and takes less than ten minutes:

golden      golden decodes on CUDA, with all steps captured
engine      tokens a second of an engine alone, greedy and sampled, and where its turns' time goes
goodput     tokens a second through the server, beside the CPU
steps       microseconds of a step by rows, captured and eager, ONNX Runtime's synchronizations on and off
peers       transformers.generate and PyTorch's captured step, of the same shape
answers     40 ragged requests on CUDA in fp16 beside the CPU in fp32: tokens, largest error of a log-probability
capture     captured steps beside eager ones, bit for bit
copies      what copies of rows take of a beam search
encode      microseconds of encoding 1, 8 and 32 sources together
machine     driver, device, libraries; which nodes of every graph are on CUDA
race        100,000 single steps of one row, each with another token
two-models  two models on one device at once, each in an engine process of its own

The first ones tell most. With --results a part that is done is not run again, so that --sitting-s 360 twice does what
one sitting has no time for; keep --models, too.

--smoke only shows that every part works, in seconds. On the fake CUDA of tests/cuda, figures of a clock mean nothing
and are marked; models with a kernel that it does not emulate are not judged, and the kernel is named. Prints Markdown
for BENCHMARKS.md. The status is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.gpu.findings import has_failed, table
from bench.measure import machine

PART_S = 600.0
MODELS_S = 600.0
PARTS = {
    "golden": "golden decodes on CUDA, all steps captured",
    "engine": "tokens a second of an engine alone, and where its turns' time goes",
    "goodput": "tokens a second through the server, beside the CPU",
    "steps": "microseconds of a decode step",
    "peers": "transformers.generate and PyTorch's captured step, of the same shape",
    "answers": "ragged requests, CUDA in fp16 beside the CPU in fp32",
    "capture": "captured steps beside eager ones",
    "copies": "what the copies of rows take of a beam search",
    "encode": "microseconds of encoding sources that arrive together",
    "machine": "driver, device and libraries; the nodes of every graph",
    "race": "single steps of one row, each with another token",
    "two-models": "two models on one device at once",
}
SMOKE_MODELS = ("translation", "rotary, heads of 32", "rotary, heads of 64", "ALiBi", "T5", "compression")


def run_part(name: str, setting: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """A part's result as JSON; its error where it ended otherwise."""
    began_s = time.monotonic()
    result: dict[str, Any] = {"not_emulated": [], "is_fake": False}
    command = [sys.executable, "-m", "bench.gpu", name, json.dumps(setting)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        last = done.stdout.strip().rpartition("\n")[2]
        if done.returncode == 0 and last:
            result = json.loads(last)
        else:
            result["error"] = f"the process ended with status {done.returncode}: {done.stderr[-1000:].strip()}"
    except subprocess.TimeoutExpired:
        result["error"] = f"not done after {limit_s:g} s"
    return {"title": PARTS[name], **result, "seconds": time.monotonic() - began_s}


def run_parts(
    names: Sequence[str],
    run: Callable[[str, float], dict[str, Any]],
    *,
    results: Path | None,
    part_s: float,
    all_s: float,
) -> dict[str, dict[str, Any]]:
    """The results of the parts that are done, in the order of `names`: those in the file `results`, and of the others
    as many as begin within `all_s` seconds. One that does not end within them is left to the next run.

    run: a part, by its name, within so many seconds.
    """
    parts: dict[str, dict[str, Any]] = json.loads(results.read_text()) if results and results.exists() else {}
    ends_s = time.monotonic() + all_s
    for name in names:
        left_s = ends_s - time.monotonic()
        if name in parts or left_s <= 0:
            continue
        part = run(name, min(part_s, left_s))
        if left_s < part_s and part["seconds"] >= left_s:
            print(f"{name}: not done in this sitting", file=sys.stderr)
            break
        parts[name] = part
        print(f"{name}: {'FAILED' if has_failed(part) else 'done'} ({part['seconds']:.0f} s)", file=sys.stderr)
        if results:
            results.write_text(json.dumps(parts))
    return {name: parts[name] for name in names if name in parts}


def make_models(folder: Path, *, is_smoke: bool) -> None:
    """The bundles, in a process without CUDA."""
    names = SMOKE_MODELS if is_smoke else ()
    subprocess.run([sys.executable, "-m", "bench.gpu.models", str(folder), *names], timeout=MODELS_S, check=True)


@case(
    bundle=Flag(Path, "a trained bundle with fp16 graphs, to check beside random models"),
    parts=Flag(list(PARTS), "some of them", choices=list(PARTS)),
    models=Flag(Path, "folder of the models, made there unless they exist; a temporary one if not given"),
    smoke=Flag(False, "only try that every part works"),
    results=Flag(Path, "file of the results of parts, which are not run again"),
    sitting_s=Flag(3600.0, "seconds after which no part goes on; the others are left to the next run"),
    part_timeout_s=PART_S,
)
def gpu_check(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.models or Path(scratch)
        make_models(folder, is_smoke=options.smoke)
        bundle = str(options.bundle.resolve()) if options.bundle else None
        setting = {"models": str(folder.resolve()), "bundle": bundle, "is_smoke": options.smoke}
        parts = run_parts(
            options.parts,
            lambda name, limit_s: run_part(name, setting, limit_s),
            results=options.results,
            part_s=options.part_timeout_s,
            all_s=options.sitting_s,
        )
    is_fake = any(part["is_fake"] for part in parts.values())
    failed = [name for name, part in parts.items() if has_failed(part)]
    if options.json:
        report = {"machine": machine(), "is_fake": is_fake, "is_smoke": options.smoke, "failed": failed, "parts": parts}
        print(json.dumps(report, ensure_ascii=False))
    else:
        print(f"{machine()['model']}, {machine()['processors']} processors\n\n{table(parts)}")
    sys.exit(bool(failed))
