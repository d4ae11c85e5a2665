"""Overhead of gRPC and Python with all rows busy, and memory against CTranslate2.

overhead   all sentences through a real server and a client in another process, unary and streaming every token,
           against the engines without gRPC, which prefill as much per step as a server's. The client shares the
           machine: one is grpc for Python and takes as much time as the server, the other one (`lean_client`)
           hardly any. The processor time of both is reported.
memory     memory of the server with its engine processes, and of the same server with CTranslate2 instead of the
           engines, when ready and after both have answered the same load; PSS, where each of several processes counts
           its part of what they share
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.measure import Spread, Verdict, interleaved, machine, report
from bench.peer_server import ctranslate2_server, glossa_server
from bench.process_tree import memory_mb
from bench.speed_models import MODEL_OPTIONS, SpeedModel, chosen_model
from bench.speed_worker import HUGE_PAGES, Worker
from export.passes.quantization_scheme import SCHEMES
from service.engine.scheduler import SchedulerConfig

BARS = {"unary": 0.08, "streaming": 0.20}  # of the time
CLIENTS = {"lean client": "lean", "client in Python": "client"}
SERVED = SchedulerConfig()
ROWS = SERVED.max_rows
SETTLE_S = 1.0  # until a server that has answered everything is read


def _load(model: SpeedModel, count: int) -> tuple[Path, Path]:
    """Files of the sentences, as ids and as texts."""
    sentences = model.sentences(count)
    work = sentences.save(model.path / "overhead.work.json")
    texts = work.with_suffix(".texts.json")
    texts.write_text(json.dumps(model.texts(sentences)))
    return work, texts


def overhead(model: SpeedModel, scheme: str, count: int, repetitions: int) -> tuple[dict[str, Any], list[Verdict]]:
    work, texts = _load(model, count)
    kinds = {f"{name}, {client}": (name, engine) for name in BARS for client, engine in CLIENTS.items()}
    client_s: dict[str, list[float]] = {name: [] for name in kinds}
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(Worker("glossa", model.bundle(scheme), work, HUGE_PAGES))
        address, _ = stack.enter_context(glossa_server(model.bundle(scheme), HUGE_PAGES))
        clients = {kind: stack.enter_context(Worker(kind, address, work)) for kind in CLIENTS.values()}

        def ask(name: str) -> float:
            how, client = kinds[name]
            answer = clients[client](count=count, texts=str(texts), streams=how == "streaming")
            client_s[name].append(answer["cpu_s"] / answer["seconds"])
            return float(answer["sentences"] / answer["seconds"])

        reading = {
            "max_prefill_tokens": SERVED.max_prefill_tokens,
            "max_idle_prefill_tokens": SERVED.max_idle_prefill_tokens,
        }
        jobs = {"in-process": lambda: engine.rate(count=count, rows=ROWS, **reading)}
        figures = interleaved({**jobs, **{name: lambda name=name: ask(name) for name in kinds}}, repetitions)  # type: ignore[misc]
    verdicts, result = [], dict[str, Any](figures)
    for name, (how, _) in kinds.items():
        share = 1 - figures[name].median / figures["in-process"].median
        result[f"CPUs used by the client, {name}"] = round(sum(client_s[name]) / len(client_s[name]), 3)
        measure = f"gRPC and Python, {name} on the same cores"
        verdicts.append(Verdict(measure, round(share, 4), BARS[how], "", is_limit=True))
    return {"unit": "sentences/s", "scheme": scheme, "sentences": count, **result}, verdicts


def memory(model: SpeedModel, scheme: str, count: int, repetitions: int) -> tuple[dict[str, Any], list[Verdict]]:
    """Servers restart in each repetition, as processes seldom return memory."""
    work, texts = _load(model, count)
    processors = machine()["processors"]
    servers = {
        "Glossa": lambda: glossa_server(model.bundle(scheme)),  # on whatever pages its command starts it with
        "CTranslate2": lambda: ctranslate2_server(model.bundle(scheme), model.ctranslate2("int8"), workers=processors),
    }
    ready: dict[str, list[float]] = {name: [] for name in servers}
    loaded: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(repetitions):
        for name, server in servers.items():
            with server() as (address, process), Worker("client", address, work) as client:
                ready[name].append(memory_mb(process))
                client(count=count, texts=str(texts))
                time.sleep(SETTLE_S)
                loaded[name].append(memory_mb(process))
    figures = {f"{name}, ready": Spread.of(found) for name, found in ready.items()}
    figures |= {f"{name}, after load": Spread.of(found) for name, found in loaded.items()}
    ratio = figures["Glossa, after load"].median / figures["CTranslate2, after load"].median
    verdict = Verdict(f"memory, {scheme} against CTranslate2 int8", round(ratio, 3), 1.0, is_limit=True)
    return {"unit": "MB", "scheme": scheme, "sentences": count, **figures}, [verdict]


@case(
    part=Flag(choices=["overhead", "memory"], positional=True),
    **MODEL_OPTIONS,
    scheme=Flag("w8a8-static-kv8", choices=list(SCHEMES)),
    count=512,
    repetitions=5,
    quick=Flag(False, help="a quarter of the sentences"),
)
def grpc_overhead(options: argparse.Namespace) -> None:
    model, count = chosen_model(options), options.count // 4 if options.quick else options.count
    if options.part == "memory":
        figures, verdicts = memory(model, options.scheme, count, options.repetitions)
    else:
        figures, verdicts = overhead(model, options.scheme, count, options.repetitions)
    report(figures, verdicts, as_json=options.json)
