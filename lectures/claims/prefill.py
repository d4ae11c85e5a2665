"""Time of encoding and prefill by length, and what a document of 50,000 tokens takes the engine of a server."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.measure import interleaved
from bench.speed.engines import Engines
from bench.speed.unverified_bundle import random_tokenizer, save_unverified
from export.bundle.directory import load_bundle
from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.graphs import CachedRow, encode_ms, fresh_model, sessions
from model.architecture_config import model_config
from service.request import Request
from service.runtime.onnx_model import OnnxModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
WORDS = 500
FAR = 50_000  # tokens: the document of the claim
WINDOW, STRIDE = 512, 4
DOCUMENTS: dict[str, dict[str, object]] = {
    "full attention": {},
    f"windows of {WINDOW}": {"sliding_window": WINDOW},
    f"windows of {WINDOW} and, in every second layer, one key for {STRIDE} tokens": {
        "sliding_window": WINDOW,
        "compression_stride": STRIDE,
    },
}
NAMES = {"encoder": "encoder, one source", "decoder": "decoder-only, one prompt"}


def measure(lab: Lab) -> Measured:
    """Milliseconds by graph and length, fastest of several interleaved rounds: other load only adds time."""
    lengths = lab.pick(LENGTHS, LENGTHS[:4])
    shape = {"vocab_size": WORDS, "d_model": 64, "num_heads": 2, "d_ff": 256, "num_decoder_layers": 2}
    whole = model_config({**shape, "num_encoder_layers": 2, "max_source_len": lengths[-1], "max_target_len": 64})
    decoder_only = model_config({**shape, "architecture": "decoder", "max_target_len": lengths[-1]})
    rng = np.random.default_rng(1)
    jobs = {}
    with tempfile.TemporaryDirectory() as scratch:
        encoder = sessions(fresh_model(whole), Path(scratch) / "whole")["encode"]
        decoder = sessions(fresh_model(decoder_only), Path(scratch) / "decoder")["decode"]
        for length in lengths:
            tokens_T = rng.integers(4, WORDS, length)
            jobs[f"encoder {length}"] = partial(encode_ms, encoder, tokens_T[None])
            jobs[f"decoder {length}"] = partial(CachedRow(decoder, decoder_only, length).ms, tokens_T, 0)
        spreads = interleaved(jobs, lab.pick(7, 2))
    far = lab.pick(FAR, 2 * WINDOW)
    return {
        "lengths": lengths,
        "ms": {name: [spreads[f"{name} {length}"].low for length in lengths] for name in NAMES},
        "far": far,
        "documents": {
            name: document({**shape, "architecture": "decoder", "positions": "none", **kind}, far)
            for name, kind in DOCUMENTS.items()
        },
    }


def document(entries: dict[str, object], length: int) -> dict[str, float]:
    """Seconds in which an engine reads a prompt of `length` tokens and writes one, by its prefill in chunks or, where
    layers compress, token by token, and the megabytes of the row's caches."""
    config = model_config({**entries, "max_target_len": length + 64})
    prompt = tuple(np.random.default_rng(2).integers(4, WORDS, length).tolist())
    with tempfile.TemporaryDirectory() as scratch:
        bundle, tokenizer = Path(scratch) / "bundle", random_tokenizer(WORDS)
        save_unverified(bundle, fresh_model(config), tokenizer)
        runner = OnnxModel.open(bundle, load_bundle(bundle), device="cpu").runner(max_rows=1)
        with Engines([runner], tokenizer, kv_cache_bytes=1 << 33) as engines:
            engines.answer([Request(request_id="document", prompt=prompt, max_tokens=1)])
    return {"seconds": engines.seconds, "cache_mb": runner.memory_bytes()["kv_cache"] / 1e6}


def fit(lengths: Sequence[int], ms: Sequence[float]) -> tuple[float, float, float]:
    """a, b, c of a·n² + b·n + c, none of them negative, with the least squared error relative to the figures."""
    n, t = np.array(lengths, float), np.array(ms)
    terms = np.stack([n**2, n, np.ones_like(n)], axis=1) / t[:, None]
    found = []
    for used in itertools.product((True, False), repeat=3):  # the best of few is the best one without negative terms
        chosen = np.flatnonzero(used)
        factors = np.zeros(3)
        factors[chosen] = np.linalg.lstsq(terms[:, chosen], np.ones_like(t), rcond=None)[0]
        if (factors >= 0).all():
            found.append((float(((terms @ factors - 1) ** 2).sum()), factors))
    a, b, c = min(found, key=lambda item: item[0])[1].tolist()
    return a, b, c


def judge(measured: Measured) -> Finding:
    lengths, held, rows, parts = measured["lengths"], [], [], []
    for name, ms in measured["ms"].items():
        a, b, c = fit(lengths, ms)
        fitted = [a * n * n + b * n + c for n in lengths]
        error = max(abs(f / t - 1) for f, t in zip(fitted, ms, strict=True))
        slopes = [np.log2(after / before) for before, after in itertools.pairwise(ms)]
        held += [a > 0 and error < 0.3, slopes[-1] > slopes[0]]
        parts.append(
            f"{NAMES[name]}: {a * 1e6:.3g}·(n/1000)² + {b * 1e3:.3g}·(n/1000) + {c:.2g} ms, error at most {error:.0%}; "
            f"the two terms are equal at n = {b / max(a, 1e-12):,.0f}, and {FAR:,} tokens would take "
            f"{(a * FAR**2 + b * FAR) / 1e3:,.0f} s, of which the quadratic term "
            f"{a * FAR**2 / (a * FAR**2 + b * FAR):.0%}"
        )
        rows += [
            (NAMES[name], f"{n}", f"{t:.2f}", f"{f:.2f}", f"{a * n * n / f:.0%}")
            for n, t, f in zip(lengths, ms, fitted, strict=True)
        ]
    read = [
        f"{name} {one['seconds']:.1f} s, caches of {one['cache_mb']:.1f} MB"
        for name, one in measured["documents"].items()
    ]
    parts.append(
        f"measured: an engine reads {measured['far']:,} tokens in chunks (where layers compress, token by token): "
        + "; ".join(read)
    )
    return Finding(
        verdict=verdict_of(held),
        explanation="; ".join(parts)
        + ". The quadratic cost of attention is real, but does not matter for a sentence of 30 words.",
        header=("graph", "tokens", "ms", "ms, fitted", "quadratic share"),
        rows=rows,
    )


def draw(measured: Measured, figure: Figure) -> None:
    lengths = measured["lengths"]
    for place, (name, ms) in zip(figure.subplots(1, 2), measured["ms"].items(), strict=True):
        a, b, c = fit(lengths, ms)
        place.plot(lengths, ms, "o", label="measured")
        place.plot(lengths, [a * n * n + b * n + c for n in lengths], label="a n² + b n + c")
        place.plot(lengths, [a * n * n for n in lengths], "--", label="a n²", alpha=0.6)
        place.plot(lengths, [b * n for n in lengths], ":", label="b n", alpha=0.6)
        place.set(
            xscale="log",
            yscale="log",
            title=NAMES[name],
            xlabel="n, tokens",
            ylabel="time, ms",
            ylim=(min(ms) / 2, max(ms) * 2),
        )
        place.set_xticks(lengths, [str(n) for n in lengths], rotation=45)
        place.minorticks_off()
        place.legend()


CLAIM = Claim(
    name="prefill",
    title="Attention costs n²",
    statement="Every token attends to every token: n² scores, O(n² d) operations: negligible for a sentence "
    "of n ≤ 30, infeasible for a document of n ≥ 50,000 (Vaswani et al. 2017, table 1).",
    experiment="Exported graphs of two layers, d_model 64, two heads, one thread: an encoder reads a source, "
    "a decoder-only model a prompt. Fastest of seven rounds, fitted by a n² + b n + c with equal weight on "
    "each relative error. Decoder-only models of this shape read a document as a server does.",
    measure=measure,
    judge=judge,
    draw=draw,
)
