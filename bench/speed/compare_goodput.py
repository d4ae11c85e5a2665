"""Highest arrival rate with 99 % of the answers complete within a second, against CTranslate2 in the same service.

Both are our gRPC server; in one of them `bench.load.peer_server` replaces the engines by CTranslate2 with a batching
window of 5 ms. Requests of 5 to 60 tokens with answers about as long arrive at random times (Poisson), and
`glossa bench --find-max` searches the rate. Servers alternate, each round has other arrivals, and medians count.

"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.load.peer_server import ctranslate2_server, glossa_server
from bench.measure import Spread, Verdict, machine, report
from bench.speed.compare_speed_ctranslate2 import ENVIRONMENTS, ROOMY
from bench.speed.speed_models import MODEL_OPTIONS, SpeedModel, chosen_model
from bench.speed.speed_worker import HUGE_PAGES
from export.passes.quantization_scheme import SCHEMES

BAR = 2.0
TEXTS = 2000


def find_max(address: str, texts: Path, options: argparse.Namespace, seed: int, max_tokens: int) -> dict[str, Any]:
    """What `glossa bench` reports of a server."""
    command = [
        *(sys.executable, "-m", "cli.main", "bench", "--find-max", "--unary", "--json"),
        *("--input", str(texts), "--address", address, "--rate", str(options.rate), "--seed", str(seed)),
        *("--duration-s", str(options.duration_s), "--warm-up-s", "2", "--wait-s", "2"),
        *("--within-s", str(options.within_s), "--precision", "0.08", "--max-tokens", str(max_tokens)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(model: SpeedModel, options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    work = model.mixed(TEXTS)
    texts = model.path / "goodput.txt"
    texts.write_text("\n".join(model.texts(work)) + "\n")
    processors = machine()["processors"]
    bundle, theirs = model.bundle(options.scheme), model.ctranslate2("int8")

    def servers() -> dict[str, AbstractContextManager[tuple[str, int]]]:
        made: dict[str, AbstractContextManager[tuple[str, int]]] = {
            "Glossa": glossa_server(bundle, HUGE_PAGES),
            f"CTranslate2, {processors} x 1 threads": ctranslate2_server(
                bundle, theirs, workers=processors, environment=ENVIRONMENTS[ROOMY]
            ),
        }
        if not options.quick:
            made[f"CTranslate2, 1 x {processors} threads"] = ctranslate2_server(
                bundle, theirs, workers=1, threads=processors, environment=ENVIRONMENTS[ROOMY]
            )
        return made

    found: dict[str, list[float]] = {}
    loads: dict[str, Any] = {}
    for seed in range(options.rounds):
        for name, server in servers().items():
            with server as (address, _):
                result = find_max(address, texts, options, seed, work.max_tokens)
            found.setdefault(name, []).append(result["highest_sustained_rate"] or 0.0)
            loads[name] = [
                {key: load.get(key) for key in ("rate", "sustained", "end_to_end", "tokens_per_s")}
                for load in result["loads"]
            ]
    figures = {name: Spread.of(rates) for name, rates in found.items()}
    best = max(spread.median for name, spread in figures.items() if name != "Glossa")
    verdicts = [
        Verdict(
            "goodput, p99 within 1 s, against CTranslate2 int8" + ("" if model.is_random else ", real sentences"),
            round(figures["Glossa"].median / best, 3) if best else 0.0,
            BAR,
            aim="3×",
            note=f"{options.rounds} searches each",
        )
    ]
    return {"unit": "requests/s", "scheme": options.scheme, **figures, "loads": loads}, verdicts


@case(
    **MODEL_OPTIONS,
    scheme=Flag("w8a8-static-kv8", choices=list(SCHEMES)),
    rate=Flag(20.0, help="where searches begin, requests/s"),
    duration_s=Flag(10.0, help="of one rate"),
    within_s=Flag(100.0, help="of one search"),
    rounds=1,
    quick=Flag(False, help="CTranslate2 with one worker a core alone"),
)
def compare_goodput(options: argparse.Namespace) -> None:
    figures, verdicts = measure(chosen_model(options), options)
    report(figures, verdicts, as_json=options.json)
