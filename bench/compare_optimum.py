"""Generation speed against optimum-onnx with the same float32 weights in a Llama architecture.


PYTHON is an interpreter that has optimum-onnx, which exports the model itself; DIRECTORY keeps the models. Timing and
cases are those of `compare_genai`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from bench.case import Flag, case
from bench.compare_genai import ROWS, Contestant, Ours, Theirs, contest
from bench.peers_llama import BUNDLE, PEER, Shape, prepare


@case(
    "directory",
    peer_python=Flag(Path, required=True),
    schemes="fp32",
    case=Flag("alone", choices=("alone", "batch")),
    prompt=64,
    tokens=32,
    repeats=5,
)
def compare_optimum(options: argparse.Namespace) -> None:
    shape, schemes = Shape(), options.schemes.split(",")
    prepare(options.directory, shape, schemes)

    def contestants() -> Iterator[Contestant]:
        for scheme in schemes:
            path = options.directory / BUNDLE.format(scheme=scheme)
            yield Ours(scheme, path, 1 if options.case == "alone" else ROWS)
        for threads in (1, 2):
            yield Theirs("optimum", "optimum", options.peer_python, options.directory / PEER, threads)

    contest(contestants(), options, shape)
