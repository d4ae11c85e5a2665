"""Memory of a server with all its processes, for several checkouts of this repository and the same bundle.

Each checkout serves the bundle with its own code and answers the same requests, concurrently; then its memory is read.
PSS: of what several processes share, such as libraries and files, each counts its part. Servers take turns, one at a
time, and start anew in each round, as processes seldom return memory.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.compare_checkouts import calls_of
from bench.lean_client import LeanConnection
from bench.measure import Spread, report
from bench.peer_server import glossa_server
from bench.process_tree import memory_mb, process_tree
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb

SETTLE_S = 1.0  # until a server that has answered everything is read


@case(
    checkouts=Flag([], "the first one is what the others are compared with", type=Path, positional=True),
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    count=Flag(64, "requests"),
    rounds=3,
    precision="auto",
    max_tokens=60,
)
def serving_memory(options: argparse.Namespace) -> None:
    calls, decoding = calls_of(options.bundle), pb.DecodingOptions(max_tokens=options.max_tokens)
    texts = [source for source, _ in sentence_pairs(options.data, options.count)]
    messages = [calls.request(text=text, options=decoding).SerializeToString() for text in texts]
    ready: dict[Path, list[float]] = {checkout: [] for checkout in options.checkouts}
    loaded: dict[Path, list[float]] = {checkout: [] for checkout in options.checkouts}
    processes: dict[Path, int] = {}
    for _ in range(options.rounds):
        for checkout in options.checkouts:
            server = glossa_server(
                options.bundle.resolve(), checkout=checkout.resolve(), flags=["--precision", options.precision]
            )
            with server as (address, pid), LeanConnection(address) as connection:
                ready[checkout].append(memory_mb(pid))
                connection.call(calls.path, messages)
                time.sleep(SETTLE_S)
                loaded[checkout].append(memory_mb(pid))
                processes[checkout] = len(process_tree(pid))
    figures: dict[str, Any] = {"unit": "MB", "requests": len(messages)}
    for checkout in options.checkouts:
        figures[f"{checkout}, processes"] = processes[checkout]
        figures[f"{checkout}, ready"] = Spread.of(ready[checkout])
        figures[f"{checkout}, after load"] = Spread.of(loaded[checkout])
    first, *others = options.checkouts
    for other in others:
        ratios = [mine / base for mine, base in zip(loaded[other], loaded[first], strict=True)]
        figures[f"{other} over {first}, after load"] = Spread.of(ratios)
    report(figures, [], as_json=options.json)
