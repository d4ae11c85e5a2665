"""Recurrence against attention over distance: gradients, sequential steps, and where the compute goes."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.measure import interleaved
from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.claims.bottleneck import recurrent
from lectures.corpora import small
from lectures.graphs import encode, fresh_model, sessions
from model.architecture_config import EncoderConfig
from model.architectures import build
from model.config import ModelConfig
from model.encoder import Encoder
from model.recurrent import Recurrent
from model.transformer import EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

NAMES = {"recurrent": "LSTM", "transformer": "Transformer"}
WORDS, WIDTH = 500, 64
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)  # of timed sources
WIDTHS = {"d 128 (demo)": (128, 512), "d 512 (base)": (512, 2048), "d 1024 (big)": (1024, 4096)}
TOKENS = (30, 512, 4096, 50_000)
PARTS = ("products", "projections", "feed-forward")
LINEAR, QUADRATIC = (1.7, 2.5), 3.0  # times the time for twice the tokens: about 2, and nearer to 4 than to 2
JUDGED = 3  # of the last doublings: shorter sources take the fixed time of a call
FADED, KEPT = 0.01, 0.1  # of the gradient at distance 1 that is left at the largest distance


def measure(lab: Lab) -> Measured:
    """Gradients by distance, milliseconds of an encoder by length, and shares of the operations by width and length."""
    configs = {name: shape(name, LENGTHS[-1]) for name in NAMES}
    lengths = lab.pick(LENGTHS, LENGTHS[:2])
    rng, jobs = np.random.default_rng(1), {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, config in configs.items():
            graph = sessions(fresh_model(config), Path(scratch) / name)["encode"]
            for length in lengths:
                jobs[f"{name} {length}"] = processor_ms(partial(encode, graph, rng.integers(4, WORDS, length)[None]))
        spreads = interleaved(jobs, lab.pick(9, 2))
    return {
        "gradients": {name: gradients(config, draws=lab.pick(20, 2)) for name, config in configs.items()},
        "lengths": lengths,
        "ms": {name: [spreads[f"{name} {length}"].low for length in lengths] for name in NAMES},
        "shares": {name: [shares(*size, tokens) for tokens in TOKENS] for name, size in WIDTHS.items()},
    }


def shape(name: str, longest: int) -> ModelConfig:
    """Encoders of two layers; the LSTM reads in one direction."""
    sizes = {"vocab_size": WORDS, "max_source_len": longest, "num_encoder_layers": 2, "d_model": WIDTH}
    return recurrent(score="none", bidirectional=False, **sizes) if name == "recurrent" else small(**sizes)


def processor_ms(call: Callable[[], object]) -> Callable[[], float]:
    """A function that calls `call` and returns the milliseconds of processor time that this thread used: those of
    other processes do not count, however long the call takes."""

    def measured() -> float:
        began_s = time.thread_time()
        call()
        return 1e3 * (time.thread_time() - began_s)

    return measured


def gradients(config: ModelConfig, *, draws: int) -> list[float]:
    """Norms of the gradient of the last state, in a random direction, with respect to the token vector at each distance
    before it: the geometric mean over random weights and texts."""
    found = []
    for seed in range(draws):
        model = fresh_model(config, seed=seed + 1)
        assert isinstance(model, Recurrent | EncoderDecoder)
        kept: list[torch.Tensor] = []

        def keep(_module: object, _arguments: object, output: torch.Tensor, kept: list[torch.Tensor] = kept) -> None:
            output.retain_grad()
            kept.append(output)

        model.encoder.embedding.register_forward_hook(keep)
        tokens = torch.randint(4, WORDS, (1, DISTANCES[-1] + 1))
        states = model.encoder(tokens, torch.tensor([tokens.shape[1]]))
        last_M = (states[0] if isinstance(states, tuple) else states)[0, -1]
        (last_M @ torch.randn(len(last_M))).backward()
        assert kept[0].grad is not None
        norms_S = kept[0].grad[0].norm(dim=-1)
        found.append([float(norms_S[-1 - distance]) for distance in DISTANCES])
    means: list[float] = np.exp(np.log(np.maximum(found, 1e-30)).mean(0)).tolist()
    return means


def shares(d_model: int, d_ff: int, tokens: int) -> dict[str, float]:
    """Shares of the multiplications of an encoder layer, counted by PyTorch while it runs without data: the products of
    queries, keys and values; their projections; the feed-forward."""
    config = EncoderConfig(
        vocab_size=WORDS,
        d_model=d_model,
        d_ff=d_ff,
        num_heads=d_model // 64,
        num_encoder_layers=1,
        max_source_len=tokens,
    )
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model = build(config)
        assert isinstance(model, Encoder)
        model(torch.zeros(1, tokens, dtype=torch.int64), torch.full((1,), tokens))
    counts = counter.get_flop_counts()
    total = sum(counts["Global"].values())
    attention = sum(
        count for name, found in counts.items() if name.endswith("self_attention") for count in found.values()
    )
    products = sum(count for operation, count in counts["Global"].items() if "bmm" in str(operation))
    return {
        "products": products / total,
        "projections": (attention - products) / total,
        "feed-forward": (total - attention) / total,
    }


def judge(measured: Measured) -> Finding:
    lengths, ms, shares = measured["lengths"], measured["ms"], measured["shares"]
    left = {name: found[-1] / found[0] for name, found in measured["gradients"].items()}
    slopes = {name: [after / before for before, after in itertools.pairwise(times)] for name, times in ms.items()}
    outside = {tokens: 1 - shares["d 512 (base)"][place]["products"] for place, tokens in enumerate(TOKENS)}
    held = [
        left["recurrent"] < FADED,
        left["transformer"] > KEPT,
        all(LINEAR[0] <= slope <= LINEAR[1] for slope in slopes["recurrent"][-JUDGED:]),
        slopes["transformer"][-1] > QUADRATIC,
        outside[512] > 0.5,
    ]
    return Finding(
        verdict=verdict_of(held),
        explanation=f"At distance {DISTANCES[-1]} the LSTM's gradient is {left['recurrent']:.0e} of that at "
        f"distance 1, the Transformer's {left['transformer']:.2f}, at random weights. "
        f"In the last doublings, up to {lengths[-1]:,} tokens, the LSTM's time grows "
        f"{listed(slopes['recurrent'])}-fold, that of the Transformer {listed(slopes['transformer'])}-fold; "
        f"at {lengths[0]} tokens the LSTM takes "
        f"{ms['recurrent'][0] / ms['transformer'][0]:.1f} times as long, at {lengths[-1]:,} "
        f"{ms['recurrent'][-1] / ms['transformer'][-1]:.1f} times. Of the multiplications of a layer of "
        f"d_model 512 projections and feed-forward are {outside[30]:.1%} for 30 tokens, {outside[512]:.0%} for 512, "
        f"{outside[4096]:.0%} for 4,096 and {outside[50_000]:.0%} for 50,000.",
        header=("layer, tokens", "products of attention", "projections", "feed-forward"),
        rows=[
            (
                f"{name}, {tokens:,}",
                *(f"{found[place][part]:.1%}" for part in ("products", "projections", "feed-forward")),
            )
            for name, found in shares.items()
            for place, tokens in enumerate(TOKENS)
        ],
    )


def listed(slopes: list[float]) -> str:
    return ", ".join(f"{slope:.1f}" for slope in slopes[-JUDGED:])


def draw(measured: Measured, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    for name, label in NAMES.items():
        found = measured["gradients"][name]
        left.plot(DISTANCES, [norm / found[0] for norm in found], marker="o", label=label)
        right.plot(measured["lengths"], measured["ms"][name], marker="o", label=label)
    left.set(xscale="log", yscale="log", xlabel="distance, tokens", ylabel="gradient, of that at distance 1")
    left.set_xticks(DISTANCES, [str(distance) for distance in DISTANCES])
    right.set(xscale="log", yscale="log", xlabel="tokens of the source", ylabel="ms of processor time to encode it")
    for axes in (left, right):
        axes.legend()


CLAIM = Claim(
    name="reach",
    title="Every token is one step away",
    statement="In a recurrent network the path between two words is as long as their distance, so gradients "
    "vanish and time is linear in n; attention connects all pairs in one step, for n² d operations "
    "(Hochreiter et al. 2001; Vaswani et al. 2017, table 1).",
    experiment="Encoders of two layers, d_model 64, random weights: gradient of the last state with respect "
    "to earlier token vectors, geometric mean of 20 draws; one source encoded by the exported graphs on one "
    "thread, fastest of nine; multiplications of one layer counted by PyTorch.",
    measure=measure,
    judge=judge,
    draw=draw,
)
