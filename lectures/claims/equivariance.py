"""Permutation equivariance of encoders without position information."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.graphs import encode, fresh_model, sessions
from model.architecture_config import EncoderDecoderConfig, Positions
from model.transformer import EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

KINDS: tuple[Positions, ...] = ("none", "sinusoidal", "learned", "rotary", "shaw", "bucketed", "alibi")
ROUNDING = 1e-5  # of states of unit size, float32, after four layers
WORDS = 500


def measure(lab: Lab) -> Measured:
    """The largest |f(Px) - P f(x)| for each kind of position and permutation; states have unit size."""
    kinds = lab.pick(KINDS, ("none", "sinusoidal"))
    return {"differences": {kind: differences(kind, count=lab.pick(20, 3)) for kind in kinds}}


def differences(kind: Positions, *, count: int, length: int = 24) -> list[float]:
    config = EncoderDecoderConfig(
        vocab_size=WORDS,
        d_model=128,
        d_ff=256,
        num_encoder_layers=4,
        num_decoder_layers=1,
        positions=kind,
        max_source_len=64,
        max_target_len=64,
    )
    model = fresh_model(config)
    assert isinstance(model, EncoderDecoder)
    for bias in model.encoder.position_encoding.parameters():
        torch.nn.init.normal_(bias)  # bucketed ones start at 0, as if there were none
    rng, found = np.random.default_rng(1), []
    with tempfile.TemporaryDirectory() as scratch:
        session = sessions(model, Path(scratch))["encode"]
        for _ in range(count):
            source_S, order_S = rng.integers(4, WORDS, length), rng.permutation(length)
            plain_SM, moved_SM = encode(session, np.stack([source_S, source_S[order_S]]))
            found.append(float(np.abs(moved_SM - plain_SM[order_S]).max()))
    return found


def judge(measured: Measured) -> Finding:
    worst = {kind: max(found) for kind, found in measured["differences"].items()}
    least = {kind: min(found) for kind, found in measured["differences"].items()}
    held = [worst["none"] < ROUNDING, all(least[kind] > 1000 * ROUNDING for kind in least if kind != "none")]
    return Finding(
        verdict=verdict_of(held),
        explanation=f"Without positions the exported encoder returns the same state for a word at any position, to "
        f"{worst['none']:.0e}, which is rounding: it treats a sentence as a bag of words. Each kind of position "
        f"encoding breaks this by {min(v for k, v in least.items() if k != 'none'):.2g} or more.",
        header=("positions", "smallest difference", "largest difference"),
        rows=[(kind, f"{least[kind]:.2g}", f"{worst[kind]:.2g}") for kind in worst],
    )


def draw(measured: Measured, figure: Figure) -> None:
    axes = figure.subplots()
    kinds = list(measured["differences"])
    for place, kind in enumerate(kinds):
        found = measured["differences"][kind]
        colour, label = ("tab:red", "without positions") if kind == "none" else ("tab:blue", "with positions")
        seen = axes.get_legend_handles_labels()[1]
        axes.plot(found, [place] * len(found), "o", alpha=0.5, color=colour, label=None if label in seen else label)
    axes.axvline(ROUNDING, linestyle="--", color="grey", label="bound of float32 rounding")
    axes.set(xscale="log", yticks=range(len(kinds)), yticklabels=kinds, ylabel="kind of position")
    axes.set_xlabel("largest difference of an output, |f(Px) − P f(x)|, one point per shuffle")
    axes.invert_yaxis()
    axes.legend(loc="center left")


CLAIM = Claim(
    name="equivariance",
    title="Without positions, order is invisible",
    statement="Self-attention treats its input as a set, so a model needs position information (Vaswani et "
    "al. 2017, section 3.5).",
    experiment="Exported encoders of four layers, d_model 128, random weights, encode a sentence of 24 words "
    "and a permutation of it; states are compared after undoing the permutation. 20 sentences for each kind "
    "of positions.",
    measure=measure,
    judge=judge,
    draw=draw,
)
