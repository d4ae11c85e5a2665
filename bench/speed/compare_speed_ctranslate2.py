"""Speed against CTranslate2 with the same weights, each with its fastest settings.

Each environment in which CTranslate2 might be fastest (instruction set, oneDNN or MKL, huge pages) runs in a separate
process, which tries every division of the cores once. The best two settings of each precision then run interleaved with
Glossa, whose engines have a process each where a server would give them one. Ratios refer to the faster setting. Both
receive token ids; over gRPC both receive texts, in the same service, of which `peer_server` replaces the engines.

    alone     single stream: one request after another, greedy
    offline   throughput: all sentences together, greedy
    beam      the same with beams of 4
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.load.peer_server import ctranslate2_server, glossa_server
from bench.measure import PART_LABELS, Spread, Verdict, interleaved, machine, report, widest_isa
from bench.speed.speed_models import MODEL_OPTIONS, SpeedModel, chosen_model
from bench.speed.speed_worker import HUGE_PAGES, Worker, Workers
from export.bundle.directory import load_manifest
from export.passes.quantization_scheme import SCHEMES
from service.edge.models.process_plan import plan_processes
from service.machine.processors import processors as found_processors
from service.settings.loading import load_settings

ISA = widest_isa()
FORCED = {"CT2_FORCE_CPU_ISA": ISA}
ROOMY = f"{ISA}, huge pages"
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "default": {},
    ISA: FORCED,
    ROOMY: {**FORCED, **HUGE_PAGES},
    f"oneDNN, {ISA}": {"CT2_USE_MKL": "0", **FORCED},
    f"MKL, {ISA}": {"CT2_USE_MKL": "1", **FORCED},
}
INTEL_ONLY = "MKL, AVX512"  # on AMD never the default, and a tenth as fast as the others with int8
QUICK = ("default", ROOMY)
KINDS = {"fp32": "float32", "int8": "int8", "int4": "int8"}  # precision that CTranslate2 is compared in
SCHEMES_OF = {
    "alone": ["w8-block64", "w8a8-static-kv8", "w4-block32", "w4-block128", "fp32"],
    "offline": ["w8a8-static-kv8", "fp32"],
    "beam": ["w8a8-static-kv8"],
}
ROWS = (64, 128, 192)
COUNTS = {"alone": 10, "offline": 512, "beam": 512}
TRIED = {"alone": 4, "offline": 128, "beam": 64}  # sentences of a trial
OURS_TRIED = 256  # enough to fill all rows
KEPT = 2


class Shape(NamedTuple):
    """CTranslate2's threads and batch size."""

    inter_threads: int
    intra_threads: int
    batch: int

    def __str__(self) -> str:
        return f"{self.inter_threads} x {self.intra_threads} threads, batch {self.batch}"


def shapes(part: str, processors: int) -> list[Shape]:
    if part == "alone":
        return [Shape(1, threads, 1) for threads in sorted({1, processors})]
    divisions = [(processors, 1), (1, processors)] if processors > 1 else [(1, 1)]
    batches = (32, 64) if part == "beam" else (64, 128)
    return [Shape(*division, batch) for division, batch in itertools.product(divisions, batches)]


def bar(part: str, scheme: str, *, has_amx: bool) -> tuple[float, str] | None:
    """Required ratio to CTranslate2, and the goal."""
    name = "w4-block128" if scheme == "w4-block128" else SCHEMES[scheme].precision
    bars = {
        ("alone", "int8"): (2.4, "90 % of the bandwidth limit"),
        ("alone", "int4"): (2.8, ""),
        ("alone", "w4-block128"): (3.5, ""),
        ("alone", "fp32"): (1.15, "the limit"),
        ("offline", "int8"): (1.6 if has_amx else 1.5, "2×"),
        ("offline", "fp32"): (1.1, "the limit"),
        ("beam", "int8"): (1.3, "1.6×"),
    }
    return bars.get((part, name))


SERVED_BARS = {("alone", "int8"): 2.2}  # over gRPC
SMALL_BARS = {"alone": 1.0, "offline": 1.2, "beam": 0.9}  # of a small model over gRPC, int8, real sentences


class Comparison:
    """The processes of one run."""

    def __init__(self, model: SpeedModel, part: str, count: int, environments: Iterable[str], stack: Any) -> None:
        self._model, self._part, self._count, self._stack = model, part, count, stack
        self._sentences = model.sentences(max(count, TRIED[part]))
        self.work = self._sentences.save(model.path / f"{part}.work.json")
        self._order: dict[str, Any] = {"beam": 4 if part == "beam" else 1, "alone": part == "alone"}
        self._environments = environments
        self._peers: dict[tuple[str, str], Worker] = {}
        self.tried: dict[str, float] = {}

    def peers(self, kind: str, processors: int) -> dict[str, Callable[[], float]]:
        """Jobs for CTranslate2's best settings of a precision, after one trial of each."""
        jobs = {}
        for environment, shape in itertools.product(self._environments, shapes(self._part, processors)):
            name = f"CTranslate2 {kind}, {environment}, {shape}"
            order = {"kind": kind, **shape._asdict(), **self._order}
            worker = self._peer(kind, environment)
            jobs[name] = (worker, order)
            worker.rate(count=2, **order)  # loads the model
            self.tried[name] = worker.rate(count=min(self._count, TRIED[self._part]), **order)
        best = sorted(jobs, key=lambda name: self.tried[name], reverse=True)[:KEPT]
        return {name: self._job(*jobs[name]) for name in best}

    def ours(self, scheme: str, processors: int) -> dict[str, Callable[[], float]]:
        """The job for Glossa's best number of rows, or of threads for one row, after one trial of each."""
        bundle = self._model.bundle(scheme)
        plan = plan_processes(load_settings({"models": {"model": bundle}}), load_manifest(bundle), found_processors())
        several = plan.processes if self._part != "alone" else 1
        started = [self._stack.enter_context(Worker("glossa", bundle, self.work, HUGE_PAGES)) for _ in range(several)]
        worker = started[0] if several == 1 else Workers(started, plan.engines_per_process)
        settings = [{"single_engine_threads": threads} for threads in sorted({1, processors})]
        if self._part != "alone":
            settings = [{"rows": rows} for rows in ROWS]
        tried = []
        for setting in settings:
            worker.rate(count=2, **setting, **self._order)
            tried.append(worker.rate(count=min(self._count, OURS_TRIED), **setting, **self._order))
            self.tried[f"Glossa {scheme}, {', '.join(f'{name} {value}' for name, value in setting.items())}"] = tried[
                -1
            ]
        best = settings[tried.index(max(tried))]
        return {f"Glossa {scheme}": self._job(worker, {**best, **self._order})}

    def served(self, scheme: str, processors: int) -> dict[str, Callable[[], float]]:
        """The jobs for our server, and for the same with CTranslate2, each with a client in a process of its own."""
        texts = self.work.with_suffix(".texts.json")
        texts.write_text(json.dumps(self._model.texts(self._sentences)))
        bundle, kind = self._model.bundle(scheme), KINDS[SCHEMES[scheme].precision]
        is_alone = self._part == "alone"
        servers = {
            f"Glossa {scheme}, gRPC": glossa_server(bundle),
            f"CTranslate2 {kind} in the same service, gRPC": ctranslate2_server(
                bundle,
                self._model.ctranslate2(kind),
                kind=kind,
                workers=1 if is_alone else processors,
                window_ms=0.0 if is_alone else 5.0,
                environment=ENVIRONMENTS[ROOMY],
            ),
        }
        jobs = {}
        for name, server in servers.items():
            address, _ = self._stack.enter_context(server)
            worker = self._stack.enter_context(Worker("client" if is_alone else "lean", address, self.work))
            jobs[name] = self._job(worker, {"texts": str(texts), **self._order})
        return jobs

    def _peer(self, kind: str, environment: str) -> Worker:
        key = kind, environment
        if key not in self._peers:
            self._peers[key] = self._stack.enter_context(
                Worker("ctranslate2", self._model.ctranslate2(kind), self.work, ENVIRONMENTS[environment])
            )
        return self._peers[key]

    def _job(self, worker: Worker | Workers, order: dict[str, Any]) -> Callable[[], float]:
        return lambda: worker.rate(count=self._count, **order)


def environments(*, is_quick: bool) -> list[str]:
    """Those that are worth trying on this machine."""
    known = QUICK if is_quick else ENVIRONMENTS
    return [name for name in known if name != INTEL_ONLY or machine()["family"].startswith("GenuineIntel")]


def judge(part: str, schemes: list[str], figures: dict[str, Spread], *, is_random: bool) -> list[Verdict]:
    """The ratios that have a bar: of engines, and over gRPC, where the peer is the faster of both its forms for a model
    of random weights, and the one in the same service for real sentences."""
    has_amx, suffix = "amx_int8" in machine()["flags"], "" if is_random else ", real sentences"
    verdicts = []
    for scheme in schemes:
        precision = SCHEMES[scheme].precision
        kind = KINDS[precision]
        alone = max(
            (spread.median, name) for name, spread in figures.items() if name.startswith(f"CTranslate2 {kind},")
        )
        served_bar = SERVED_BARS.get((part, precision)) if is_random else SMALL_BARS[part]
        served_name = f"CTranslate2 {kind} in the same service, gRPC"
        served = (figures[served_name].median, served_name) if served_name in figures and not is_random else alone
        wanted = bar(part, scheme, has_amx=has_amx)
        limits = {
            f"Glossa {scheme}": (alone, wanted),
            f"Glossa {scheme}, gRPC": (served, served_bar and (served_bar, "")),
        }
        for name, (theirs, limit) in limits.items():
            if name in figures and limit:
                ratio = figures[name].median / theirs[0]
                measure = f"{PART_LABELS[part]}, {name.removeprefix('Glossa ')} against CTranslate2 {kind}{suffix}"
                verdicts.append(Verdict(measure, round(ratio, 3), limit[0], aim=limit[1], note=theirs[1]))
    return verdicts


@case(
    part=Flag(choices=list(COUNTS), positional=True),
    **MODEL_OPTIONS,
    schemes=Flag([], choices=list(SCHEMES)),
    count=Flag(0, "sentences of one repetition"),
    repetitions=5,
    processors=Flag(0, "that may be used; all of the machine if not given"),
    quick=Flag(False, "fewer settings and sentences"),
)
def compare_speed_ctranslate2(options: argparse.Namespace) -> None:
    model, part = chosen_model(options), options.part
    schemes = options.schemes or SCHEMES_OF[part]
    count = options.count or (COUNTS[part] // 4 if options.quick else COUNTS[part])
    processors = options.processors or machine()["processors"]
    with contextlib.ExitStack() as stack:
        run = Comparison(model, part, count, environments(is_quick=options.quick), stack)
        jobs: dict[str, Callable[[], float]] = {}
        for kind in sorted({KINDS[SCHEMES[scheme].precision] for scheme in schemes}):
            jobs |= run.peers(kind, processors)
        for scheme in schemes:
            jobs |= run.ours(scheme, processors)
        if part == "alone" or not model.is_random:
            served = next((scheme for scheme in schemes if SCHEMES[scheme].precision == "int8"), None)
            jobs |= run.served(served, processors) if served else {}
        figures = interleaved(jobs, options.repetitions)
    unit = "sentences/s" if not model.is_random else "sentences/s of 20 source and 30 target tokens"
    result: dict[str, Any] = {"part": part, "unit": unit, "sentences": count, **figures}
    result["single trials"] = {name: round(rate, 2) for name, rate in run.tried.items()}
    report(result, judge(part, schemes, figures, is_random=model.is_random), as_json=options.json)
