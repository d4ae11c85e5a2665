"""Which of several checkouts of this repository is faster? Single-stream, batch, beams and streams, in one run.

All checkouts serve a bundle concurrently, each with its own code and from two processes: the order in which
processes start moves throughput by 5 %, so they start in one order and then in the reverse of it. One client measures
all of them interleaved and in random order, so a difference of 2 % shows on a machine whose figures vary by 30 %.
Ratios are of neighbouring measurements. The client writes HTTP/2 frames itself, so it takes hardly any processor time.

    single       one request at a time, ms per answer
    batch        throughput of all sentences, sentences per second
    beams        one request at a time with beams of --beam
    beams-batch  throughput with beams of --beam
    streams      one stream at a time; also gaps between its messages

CHECKOUT: a directory with its stubs generated, such as one that `git worktree add` made. --bundle: one for all, or
one for each, so that each serves graphs it exported itself. Answers are not compared: `compare-answers` does that.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.load.calls import calls_of
from bench.load.lean_client import LeanConnection
from bench.load.peer_server import glossa_server
from bench.measure import Spread, Verdict, report, seconds
from bench.sentences import sentence_pairs
from cli.load.load_report import percentile
from glossa.client import Client
from glossa.v1 import glossa_pb2 as pb

MODES = ("single", "batch", "beams", "beams-batch", "streams")
WARM_UP = 2  # rounds; the first answers open what a single busy engine needs
REST_S = 0.01  # threads of the server that answered last look for work for a while


class Served(NamedTuple):
    """A checkout that serves the bundle, and what asks it."""

    checkout: Path
    connection: LeanConnection
    client: Client


def serve(stack: ExitStack, checkouts: list[Path], bundles: list[Path], precision: str) -> list[Served]:
    """Two servers for each checkout, started in mirrored order; the stack ends them. bundles: one, or one for each."""
    if len(bundles) not in (1, len(checkouts)):
        raise SystemExit(f"--bundle: {len(bundles)} bundles for {len(checkouts)} checkouts; name one, or one for each")
    pairs = list(zip(checkouts, bundles * len(checkouts) if len(bundles) == 1 else bundles, strict=True))
    served = []
    # Pings of a connection stay unanswered while another one is measured.
    flags = ["--precision", precision, "--keepalive-timeout-s", "600"]
    for checkout, bundle in [*pairs, *reversed(pairs)]:
        server = glossa_server(bundle.resolve(), checkout=checkout.resolve(), flags=flags)
        address, _ = stack.enter_context(server)
        served.append(
            Served(checkout, stack.enter_context(LeanConnection(address)), stack.enter_context(Client(address)))
        )
    return served


@case(
    checkouts=Flag([], "the first one is what the others are compared with", type=Path, positional=True),
    bundle=Flag([], type=Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    modes=Flag(["single", "batch", "beams"], choices=MODES),
    count=64,
    rounds=12,
    precision="auto",
    beam=4,
    max_tokens=60,
    bar=Flag(0.98, "what each checkout must reach, as a multiple of the first one's speed"),
)
def compare_checkouts(options: argparse.Namespace) -> None:
    texts = [source for source, _ in sentence_pairs(options.data, options.count)]
    calls, draw = calls_of(options.bundle[0]), random.Random(1)
    gaps: dict[Path, list[float]] = {checkout: [] for checkout in options.checkouts}

    def messages(beam: int) -> list[bytes]:
        decoding = pb.DecodingOptions(max_tokens=options.max_tokens, beam_size=beam)
        return [calls.request(text=text, options=decoding).SerializeToString() for text in texts]

    def stream(one: Served, text: str) -> None:
        times = []
        for _ in getattr(one.client, calls.stream)(text, max_tokens=options.max_tokens):
            times.append(time.perf_counter())
        gaps[one.checkout] += [(after - before) * 1000 for before, after in itertools.pairwise(times)]

    def measured(mode: str, one: Served, work: list[Any]) -> float:
        time.sleep(REST_S)
        if mode == "streams":
            for other in served:
                other.connection.answer_pings()
            return seconds(lambda: stream(one, work[0]))
        return seconds(lambda: one.connection.call(calls.path, work))

    spent: dict[str, list[list[float]]] = {mode: [] for mode in options.modes}
    with ExitStack() as stack:
        served = serve(stack, options.checkouts, options.bundle, options.precision)
        for number, mode in itertools.product(range(-WARM_UP, options.rounds), options.modes):
            if number == 0:
                gaps |= {checkout: [] for checkout in gaps}
            work: list[Any] = texts if mode == "streams" else messages(options.beam if "beams" in mode else 1)
            took = [0.0] * len(options.checkouts)
            for piece in [work] if mode.endswith("batch") else [[one] for one in work]:
                for place in draw.sample(range(len(served)), len(served)):
                    mirrored = len(served) - 1 - place
                    took[min(place, mirrored)] += measured(mode, served[place], piece) / 2
            if number >= 0:
                spent[mode].append(took)
    result: dict[str, Any] = {"sentences": len(texts), "rounds": options.rounds, "beams of": options.beam}
    verdicts = []
    for mode, rounds in spent.items():
        for place, checkout in enumerate(options.checkouts):
            times = [took[place] for took in rounds]
            if mode.endswith("batch"):
                result[f"{mode}, sentences/s, {checkout}"] = Spread.of([len(texts) / took_s for took_s in times])
            else:
                result[f"{mode}, ms per answer, {checkout}"] = Spread.of(
                    [1e3 * took_s / len(texts) for took_s in times]
                )
            if place:
                ratio = Spread.of([took[0] / took[place] for took in rounds])
                result[f"{mode}, speed over the first, {checkout}"] = ratio
                verdicts.append(Verdict(f"{mode}, {checkout} over {options.checkouts[0]}", ratio.median, options.bar))
    for checkout, found in gaps.items():
        if found:
            p50, p90, p99 = (percentile(found, share) for share in (50, 90, 99))
            result[f"gaps of a stream, ms, {checkout}"] = f"p50 {p50:.2f}, p90 {p90:.2f}, p99 {p99:.2f}"
    report(result, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
