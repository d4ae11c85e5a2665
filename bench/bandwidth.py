"""Memory bandwidth, and the share of it that a single-row decode step reaches.

A step of one row reads every weight of the decoder once and does little else, so weight bytes divided by bandwidth is a
lower bound of its time. Bandwidth and steps are measured in interleaved rounds. The reader is a loop compiled by gcc;
without a compiler it is numpy's sum, which is a little slower.

"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import Flag, case
from bench.measure import interleaved, machine, report, seconds
from bench.speed_models import MODEL_OPTIONS, chosen_model
from bench.steps import Rows
from export.bundle.directory import load_bundle
from export.passes.quantization_scheme import SCHEMES, QuantizationScheme
from model.architecture_config import TransformerConfig
from service.runtime.runner import OnnxModel

SOURCE = """
#include <stddef.h>
#include <stdint.h>
uint64_t total(const uint64_t *words, size_t count) {
    uint64_t sums[32] = {0};
    for (size_t at = 0; at + 32 <= count; at += 32)
        for (int lane = 0; lane < 32; lane++) sums[lane] += words[at + lane];
    uint64_t sum = 0;
    for (int lane = 0; lane < 32; lane++) sum += sums[lane];
    return sum;
}
"""
BLOCK_MB = 40  # read again and again: about the int8 weights of a step; more than the caches of most machines
READ_MB = 2000  # of one measurement
STEPS = 30  # of one measurement
SCALE_BYTES = 4  # of a block's scale


def reader() -> tuple[Callable[[np.ndarray], object], str]:
    """What reads an array of uint64 from end to end, and how it was made."""
    if shutil.which("gcc") is None:
        return np.sum, "numpy"
    with tempfile.TemporaryDirectory() as directory:
        source, library = Path(directory, "read.c"), Path(directory, "read.so")
        source.write_text(SOURCE)
        subprocess.run(["gcc", "-O3", "-march=native", "-shared", "-fPIC", source, "-o", library], check=True)
        total = ctypes.CDLL(str(library)).total
    total.restype, total.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t]
    return lambda words: total(words.ctypes.data, words.size), "gcc"


def read_job(read: Callable[[np.ndarray], object], threads: int) -> Callable[[], float]:
    """GB/s of so many threads, each with a block of its own share."""
    blocks = [np.ones(BLOCK_MB * 1_000_000 // 8 // threads, np.uint64) for _ in range(threads)]
    passes = READ_MB // BLOCK_MB

    def again(block: np.ndarray) -> None:
        for _ in range(passes):
            read(block)

    def job() -> float:
        team = [threading.Thread(target=again, args=(block,)) for block in blocks]

        def run() -> None:
            for thread in team:
                thread.start()
            for thread in team:
                thread.join()

        return passes * sum(block.nbytes for block in blocks) / seconds(run) / 1e9

    return job


def step_job(rows: Rows) -> Callable[[], float]:
    """ms of a step, the median of some."""
    return lambda: 1e3 * float(np.median([rows.step() for _ in range(STEPS)]))


def step_bytes(config: TransformerConfig, scheme: QuantizationScheme) -> float:
    """Bytes of the weights that a decode step reads, without the key and value projections of cross-attention (their
    results are cached) and the embeddings (one row is looked up)."""
    width = config.d_model
    layer = 4 * width * width + 2 * width * width + 2 * width * config.d_ff
    weights = config.num_decoder_layers * layer + width * config.vocab_size
    return weights * (scheme.weight_bits / 8 + (SCALE_BYTES / scheme.block_size if scheme.block_size else 0))


@case(
    **MODEL_OPTIONS,
    schemes=Flag(["w8a8-static-kv8", "w4-block32", "w4-block128", "fp32"], choices=list(SCHEMES)),
    repetitions=7,
    quick=Flag(False, help="only int8, fewer repetitions"),
)
def bandwidth(options: argparse.Namespace) -> None:
    model = chosen_model(options)
    schemes = options.schemes[:1] if options.quick else options.schemes
    read, how = reader()
    processors = machine()["processors"]
    jobs: dict[str, Callable[[], float]] = {}
    for threads in sorted({1, processors}):
        jobs[f"GB/s read, {threads} threads"] = read_job(read, threads)
        for scheme in schemes:
            bundle = model.bundle(scheme)
            opened = OnnxModel.open(bundle, load_bundle(bundle), device="cpu", single_engine_threads=threads)
            jobs[f"ms per step, {scheme}, {threads} threads"] = step_job(Rows(opened, 1))
    measured = interleaved(jobs, 3 if options.quick else options.repetitions)
    figures: dict[str, Any] = {"reader": how, "block_mb": BLOCK_MB, **measured}
    for name in jobs:
        if name.startswith("ms per step"):
            _, scheme, threads = name.split(", ")
            needed_ms = step_bytes(model.model.config, SCHEMES[scheme]) / measured[f"GB/s read, {threads}"].median / 1e6
            figures[f"limit, {scheme}, {threads}, ms"] = round(needed_ms, 3)
            figures[f"share of the limit, {scheme}, {threads}"] = round(needed_ms / measured[name].median, 3)
    report(figures, [], as_json=options.json)
