"""Overhead of gRPC, Python and processes with all rows busy, and memory against CTranslate2.

overhead   all sentences through a real server and a client in another process, unary and streaming every token,
           against the engines alone, which prefill as much per step as a server's: all in one process, and one in
           each of several; the faster of both counts. Every answer has the same number of tokens. The client shares
           the machine: one is grpc for Python and takes as much time as the server, the other one (`lean_client`)
           hardly any. The processor time of both is reported. --bundle: real sentences instead of random weights,
           without end tokens (`ignore_eos`), which costs a little in each step of either side.
memory     memory of the server with its engine processes, and of the same server with CTranslate2 instead of the
           engines, when ready and after both have answered the same load; PSS, where each of several processes counts
           its part of what they share
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.measure import Spread, Verdict, interleaved, report
from bench.peer_server import ctranslate2_server, glossa_server
from bench.process_tree import memory_mb
from bench.sentences import sentence_pairs
from bench.speed_models import MODEL_OPTIONS, SpeedModel, Workload, chosen_model
from bench.speed_worker import HUGE_PAGES, Worker, Workers
from export.bundle.directory import load_bundle
from export.bundle.manifest import TOKENIZER
from export.passes.quantization_scheme import SCHEMES
from model.tokenizer import Tokenizer
from service.engine.scheduler import SchedulerConfig
from service.machine.processors import processors

BARS = {"unary": 0.05, "streaming": 0.15}  # of the throughput of the engines alone
ONE_PROCESS, PROCESSES = "engines alone, in one process", "engines alone, in a process each"
CLIENTS = {"lean client": "lean", "client in Python": "client"}
SERVED = SchedulerConfig()
ROWS = SERVED.max_rows
SETTLE_S = 1.0  # until a server that has answered everything is read


class Sentences(NamedTuple):
    """What is asked of a bundle: files of ids and of texts, and more fields of a worker's order."""

    bundle: Path
    work: Path
    texts: Path
    order: dict[str, Any]


def _load(model: SpeedModel, scheme: str, count: int) -> Sentences:
    """Sentences of a model of speed comparisons."""
    sentences = model.sentences(count)
    work = sentences.save(model.path / "overhead.work.json")
    texts = work.with_suffix(".texts.json")
    texts.write_text(json.dumps(model.texts(sentences)))
    return Sentences(model.bundle(scheme), work, texts, {})


def _load_bundle(scratch: Path, options: argparse.Namespace, count: int) -> Sentences:
    """Real sentences for a bundle, repeated if there are too few, with answers of --tokens tokens."""
    manifest, tokenizer = load_bundle(options.bundle), Tokenizer.load(options.bundle / TOKENIZER)
    found = itertools.cycle(source for source, _ in sentence_pairs(options.data, count))
    texts = list(itertools.islice(found, count))
    sources = tuple((*ids, manifest.tokens.eos) for ids in tokenizer.encode_batch(texts))
    work = Workload(sources, options.tokens, is_exact=True).save(scratch / "work.json")
    file = scratch / "texts.json"
    file.write_text(json.dumps(texts))
    return Sentences(options.bundle, work, file, {"ignore_eos": True})


def overhead(asked: Sentences, count: int, repetitions: int) -> tuple[dict[str, Any], list[Verdict]]:
    """Tokens a second of the engines alone, and of a server."""
    kinds = {f"{name}, {client}": (name, engine) for name in BARS for client, engine in CLIENTS.items()}
    client_s: dict[str, list[float]] = {name: [] for name in kinds}
    engines = processors().usable
    order = {
        **asked.order,
        "rows": ROWS,
        "max_prefill_tokens": SERVED.max_prefill_tokens,
        "max_idle_prefill_tokens": SERVED.max_idle_prefill_tokens,
    }
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker("glossa", asked.bundle, asked.work, HUGE_PAGES)) for _ in range(engines)]
        address, _ = stack.enter_context(glossa_server(asked.bundle, HUGE_PAGES))
        clients = {kind: stack.enter_context(Worker(kind, address, asked.work)) for kind in CLIENTS.values()}
        each = Workers(workers)

        def ask(name: str) -> float:
            how, client = kinds[name]
            answer = clients[client](count=count, texts=str(asked.texts), streams=how == "streaming", **asked.order)
            client_s[name].append(answer["cpu_s"] / answer["seconds"])
            return float(answer["tokens"] / answer["seconds"])

        def together() -> float:
            answer = workers[0](count=count, **order)
            return float(answer["tokens"] / answer["seconds"])

        def apart() -> float:
            answer = each(count=count, **order)
            return float(answer["tokens"] / answer["seconds"])

        jobs: dict[str, Callable[[], float]] = {ONE_PROCESS: together, PROCESSES: apart}
        figures = interleaved({**jobs, **{name: partial(ask, name) for name in kinds}}, repetitions)
    alone = max(figures[ONE_PROCESS].median, figures[PROCESSES].median)
    verdicts, result = [], dict[str, Any](figures)
    for name, (how, _) in kinds.items():
        share = 1 - figures[name].median / alone
        result[f"CPUs used by the client, {name}"] = round(sum(client_s[name]) / len(client_s[name]), 3)
        measure = f"gRPC and Python, {name} on the same cores"
        verdicts.append(Verdict(measure, round(share, 4), BARS[how], "", is_limit=True))
    return {"unit": "tokens/s", "bundle": asked.bundle.name, "sentences": count, **result}, verdicts


def memory(model: SpeedModel, scheme: str, count: int, repetitions: int) -> tuple[dict[str, Any], list[Verdict]]:
    """Servers restart in each repetition, as processes seldom return memory."""
    asked = _load(model, scheme, count)
    workers = processors().usable
    servers = {
        "Glossa": lambda: glossa_server(model.bundle(scheme)),  # on whatever pages its command starts it with
        "CTranslate2": lambda: ctranslate2_server(model.bundle(scheme), model.ctranslate2("int8"), workers=workers),
    }
    ready: dict[str, list[float]] = {name: [] for name in servers}
    loaded: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(repetitions):
        for name, server in servers.items():
            with server() as (address, process), Worker("client", address, asked.work) as client:
                ready[name].append(memory_mb(process))
                client(count=count, texts=str(asked.texts))
                time.sleep(SETTLE_S)
                loaded[name].append(memory_mb(process))
    figures = {f"{name}, ready": Spread.of(found) for name, found in ready.items()}
    figures |= {f"{name}, after load": Spread.of(found) for name, found in loaded.items()}
    ratio = figures["Glossa, after load"].median / figures["CTranslate2, after load"].median
    verdict = Verdict(f"memory, {scheme} against CTranslate2 int8", round(ratio, 3), 1.0, is_limit=True)
    return {"unit": "MB", "scheme": scheme, "sentences": count, **figures}, [verdict]


@case(
    part=Flag(choices=["overhead", "memory"], positional=True),
    bundle=Flag(Path, "overhead: serve this bundle instead of the model below, with sentences of --data"),
    tokens=Flag(50, "of each answer, with --bundle"),
    **MODEL_OPTIONS,
    scheme=Flag("w8a8-static-kv8", choices=list(SCHEMES)),
    count=512,
    repetitions=5,
    quick=Flag(False, help="a quarter of the sentences"),
)
def grpc_overhead(options: argparse.Namespace) -> None:
    count = options.count // 4 if options.quick else options.count
    with tempfile.TemporaryDirectory() as scratch:
        if options.part == "memory":
            figures, verdicts = memory(chosen_model(options), options.scheme, count, options.repetitions)
        elif options.bundle:
            figures, verdicts = overhead(_load_bundle(Path(scratch), options, count), count, options.repetitions)
        else:
            figures, verdicts = overhead(
                _load(chosen_model(options), options.scheme, count), count, options.repetitions
            )
    report(figures, verdicts, as_json=options.json)
