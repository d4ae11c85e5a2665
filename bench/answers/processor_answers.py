"""Are the answers of a bundle bit-identical on other processors? Run it on each with --bundle and --write, then
--compare the files.

A file has the answers of requests of every strategy, computed singly by one thread, in each precision of the bundle:
tokens, log-probabilities and scores, to the last bit; and the processor with the extensions that this process sees.
Libraries choose their code by these, and other code rounds sums of floats in another order. Counted are answers and
tokens that equal those of the first file. Exits with 1 when any tokens differ.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bench.answers.invariance import CPU, decode, requests_of
from bench.case import Flag, case
from bench.measure import report
from bench.sentences import sentence_pairs
from export.bundle.directory import check_bundle
from service.runtime.onnx_model import OnnxModel


def processor() -> str:
    """The name that the system reports."""
    names = [line.partition(":")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return names[0].strip() if names else "unknown"


def answers_of(bundle: Path, count: int, data: Path | None) -> dict[str, Any]:
    """The content of a file."""
    checked = check_bundle(bundle)
    requests = requests_of(bundle, checked.manifest, sentence_pairs(data, count)[:count], 0)
    answers = {}
    precision: Any
    for precision in CPU:
        if all(variant.precision != precision for variant in checked.manifest.variants):
            continue
        model = OnnxModel.open(bundle, checked.manifest, device="cpu", precision=precision, single_engine_threads=1)
        runner = model.runner(max_rows=8)
        answers[precision] = {
            name: [_exact(*answer) for answer in found]
            for request in requests
            for name, found in decode(runner, [request], None).items()
        }
    return {
        "bundle": checked.sha256,
        "requests": [len(requests), str(data or "embedded corpus")],
        "libraries": {"onnxruntime": onnxruntime.__version__, "numpy": np.__version__},
        "extensions": _extensions(),
        "answers": answers,
    }


def _extensions() -> list[str]:
    """Of the processor beyond what numpy needs, as numpy groups them."""
    known: Any = np.show_config(mode="dicts")
    found: list[str] = known["SIMD Extensions"].get("found", [])
    return found or ["none"]


def _exact(tokens: Any, logprobs: Any, score: float | None) -> list[Any]:
    """The tokens of an answer, and the bits of its log-probabilities and of its score."""
    bits = np.array([*logprobs, np.nan if score is None else score], np.float64).tobytes()
    return [list(map(int, tokens)), bits.hex()]


def compare(first: dict[str, Any], other: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Of each precision, the answers, those that are bit-identical, and those with equal tokens. Raises SystemExit for
    answers of other requests."""
    for name in ("bundle", "requests", "libraries"):
        if first[name] != other[name]:
            raise SystemExit(f"the files must have the same {name}, got {first[name]} and {other[name]}")
    found = {}
    for precision, answers in first["answers"].items():
        counts = collections.Counter(answers=0, identical=0, tokens=0)
        for name, answer in answers.items():
            theirs = other["answers"][precision][name]
            counts["answers"] += 1
            counts["identical"] += answer == theirs
            counts["tokens"] += [one[0] for one in answer] == [one[0] for one in theirs]
        found[precision] = dict(counts)
    return found


@case(
    bundle=Flag(Path, "with --write"),
    write=Flag(Path, "the file for the answers of this processor"),
    compare=Flag([], "files of --write; the first one is what the others are compared with", type=Path),
    name=Flag("", "of the processor, where the system reports another one"),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    requests=120,
)
def processor_answers(options: argparse.Namespace) -> None:
    if options.write is not None:
        if options.bundle is None:
            raise SystemExit("--write needs --bundle, whose answers the file gets")
        found = {"processor": options.name or processor(), **answers_of(options.bundle, options.requests, options.data)}
        options.write.write_text(json.dumps(found))
        return
    if len(options.compare) < 2:
        raise SystemExit(f"give --write, or --compare with two of its files or more, got {len(options.compare)}")
    first, *others = [json.loads(file.read_bytes()) for file in options.compare]
    figures, differing = {first["processor"]: " ".join(first["extensions"])}, 0
    for other in others:
        figures[other["processor"]] = " ".join(other["extensions"])
        for precision, counts in compare(first, other).items():
            same = f"{counts['identical']} of {counts['answers']} bit-identical, {counts['tokens']} with equal tokens"
            figures[f"{other['processor']}, {precision}"] = same
            differing += counts["answers"] - counts["tokens"]
    report(figures, [], as_json=options.json)
    sys.exit(differing > 0)
