"""Speed against Hugging Face `generate` with the same weights: Glossa in int8, `generate` in fp32 and bf16.

    alone     single stream: one request after another, greedy
    offline   throughput: many requests, greedy; `generate` in batches of 64, sorted by length

`generate` is tried with one thread and with all; the faster one counts.

"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from bench.case import Flag, case
from bench.measure import PART_LABELS, Verdict, interleaved, machine, report
from bench.speed.speed_models import MODEL_OPTIONS, SpeedModel, chosen_model
from bench.speed.speed_worker import HUGE_PAGES, Worker
from export.passes.quantization_scheme import SCHEMES

BARS = {("alone", "float32"): 6.0, ("offline", "float32"): 4.5, ("offline", "bfloat16"): 2.2}
COUNTS = {"alone": (10, 2), "offline": (512, 64)}  # sentences of one repetition, ours and theirs
BATCH = 64


def measure(model: SpeedModel, part: str, scheme: str, repetitions: int, *, quick: bool) -> tuple[dict[str, Any], Any]:
    ours, theirs = COUNTS[part]
    work = model.sentences(ours).save(model.path / f"transformers-{part}.work.json")
    order: dict[str, Any] = {"alone": part == "alone"}
    dtypes = [dtype for wanted, dtype in BARS if wanted == part and not (quick and dtype != "float32")]
    with contextlib.ExitStack() as stack:
        glossa = stack.enter_context(Worker("glossa", model.bundle(scheme), work, HUGE_PAGES))
        hugging_face = stack.enter_context(Worker("transformers", model.checkpoint, work, HUGE_PAGES))
        jobs = {f"Glossa {scheme}": lambda: glossa.rate(count=ours, rows=128, **order)}
        tried = {}
        for dtype in dtypes:
            rates = {}
            for threads in sorted({1, machine()["processors"]}):
                rates[threads] = hugging_face.rate(count=theirs, dtype=dtype, threads=threads, batch=BATCH, **order)
                tried[f"generate {dtype}, {threads} threads"] = round(rates[threads], 2)
            best = {"dtype": dtype, "threads": max(rates, key=lambda threads: rates[threads]), "batch": BATCH, **order}
            jobs[f"generate {dtype}"] = lambda best=best: hugging_face.rate(count=theirs, **best)  # type: ignore[misc]
        figures = interleaved(jobs, repetitions)
    verdicts = [
        Verdict(
            f"{PART_LABELS[part]}, {scheme} against generate {dtype}{'' if model.is_random else ', real sentences'}",
            round(figures[f"Glossa {scheme}"].median / figures[f"generate {dtype}"].median, 3),
            BARS[part, dtype],
        )
        for dtype in dtypes
    ]
    return {"part": part, "unit": "sentences/s", **figures, "single trials": tried}, verdicts


@case(
    part=Flag(choices=list(COUNTS), positional=True),
    **MODEL_OPTIONS,
    scheme=Flag("w8a8-static-kv8", choices=list(SCHEMES)),
    repetitions=5,
    quick=Flag(False, help="only fp32"),
)
def compare_speed_transformers(options: argparse.Namespace) -> None:
    figures, verdicts = measure(
        chosen_model(options), options.part, options.scheme, options.repetitions, quick=options.quick
    )
    report(figures, verdicts, as_json=options.json)
