"""Which of several checkouts of this repository answers a lone request faster?

All of them serve the same bundle at once, and a client asks them in turn, sentence by sentence in random order: what is
2 % apart shows on a machine whose figures move by 30. Ratios are of neighbouring rounds.

usage: python -m bench.compare_checkouts --bundle BUNDLE [--data TEST.tsv] CHECKOUT CHECKOUT…
           [--count 64] [--rounds 12] [--precision int8] [--beam 1] [--max-tokens 60] [--stream] [--json]

CHECKOUT: a directory, such as one that `git worktree add` made, with its `make protos` run. Answers are not compared.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.measure import Spread, report
from bench.peer_server import glossa_server
from bench.sentences import sentence_pairs
from cli.load_report import percentile
from export.bundle import load_manifest
from glossa.client import Client

Ask = Callable[[str], list[float]]
"""Asks with one text; returns seconds to each message of the answer."""

WARM_UP = 2  # rounds; the first answers open what only lone requests need
REST_S = 0.01  # threads of whoever answered last look for work for a while


def asker(client: Client, task: str, options: argparse.Namespace) -> Ask:
    whole = {"translation": client.translate, "generation": client.generate}[task]
    pieces = {"translation": client.stream_translate, "generation": client.stream_generate}[task]

    def ask(text: str) -> list[float]:
        began_s = time.perf_counter()
        if options.stream:
            told = pieces(text, max_tokens=options.max_tokens, beam_size=options.beam, include_tokens=True)
            return [time.perf_counter() - began_s for _ in told]
        whole(text, max_tokens=options.max_tokens, beam_size=options.beam)
        return [time.perf_counter() - began_s]

    return ask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="TSV of sentence pairs; the embedded corpus if not given")
    parser.add_argument("--precision", default="auto")
    for name, default in (("count", 64), ("rounds", 12), ("beam", 1), ("max-tokens", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--stream", action="store_true", help="streams, whose gaps are told, too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = [source for source, _ in sentence_pairs(options.data, options.count)]
    task, draw = load_manifest(options.bundle).task, random.Random(1)
    with ExitStack() as stack:
        asks: list[Ask] = []
        for checkout in options.checkouts:
            flags = ["--precision", options.precision]
            address, _ = stack.enter_context(glossa_server(options.bundle.resolve(), checkout=checkout, flags=flags))
            asks.append(asker(stack.enter_context(Client(address)), task, options))
        rounds, gaps = [[0.0] * len(asks) for _ in range(options.rounds)], [list[float]() for _ in asks]
        for number in range(-WARM_UP, options.rounds):
            for text in texts:
                for place in draw.sample(range(len(asks)), len(asks)):
                    time.sleep(REST_S)
                    times = asks[place](text)
                    if number >= 0:
                        rounds[number][place] += times[-1] / len(texts) * 1000
                        gaps[place] += [(after - before) * 1000 for before, after in itertools.pairwise(times)]
    told: dict[str, Any] = {"sentences": len(texts), "rounds": options.rounds}
    for place, checkout in enumerate(options.checkouts):
        told[f"ms an answer, {checkout}"] = Spread.of([times[place] for times in rounds])
        told[f"times as fast as the first, {checkout}"] = Spread.of([times[0] / times[place] for times in rounds])
        if gaps[place]:
            p50, p90, p99 = (percentile(gaps[place], share) for share in (50, 90, 99))
            told[f"gaps of a stream, ms, {checkout}"] = f"p50 {p50:.2f}, p90 {p90:.2f}, p99 {p99:.2f}"
    report(told, [], as_json=options.json)


if __name__ == "__main__":
    main()
