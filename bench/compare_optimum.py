"""Generation speed against optimum-onnx with the same float32 weights in a Llama architecture.


PYTHON is an interpreter that has optimum-onnx, which exports the model itself; DIRECTORY keeps the models. Timing and
cases are those of `compare_genai`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.case import Flag, case
from bench.compare_genai import Contestant, Ours, Theirs, asks_of, measure, print_rates
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
    asks = asks_of(options.case, options.prompt, options.tokens, shape.words)
    contestants: list[Contestant] = []
    try:
        for scheme in schemes:
            contestants.append(Ours(scheme, options.directory / BUNDLE.format(scheme=scheme), len(asks)))
        for threads in (1, 2):
            peer = options.directory / PEER
            contestants.append(Theirs("optimum", "optimum", options.peer_python, peer, threads))
        rates = measure(contestants, asks, options.repeats)
    finally:
        for contestant in contestants:
            contestant.close()
    print_rates(rates, options, len(asks))
