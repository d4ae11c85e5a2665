"""Training throughput of parallel and sequential models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.measure import interleaved
from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.claims.bottleneck import recurrent
from lectures.corpora import schedule, small, translations
from lectures.lab import Trained, Training
from lectures.steps import random_batch, step_job
from model.config import ModelConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

NAMES = {"transformer": "Transformer", "recurrent": "LSTM with attention"}
LENGTHS = (8, 32, 128, 512)
TOKENS, WORDS = 4096, 600
GROWTH = 1.5  # minimum factor by which the lead grows from the shortest sentences to the longest


def measure(lab: Lab) -> Measured:
    """Training tokens/s by sentence length, and the losses of two runs against time."""
    lengths = lab.pick(LENGTHS, LENGTHS[:2])
    shapes = {name: shape(name, lengths[-1]) for name in NAMES}
    train = schedule(lab.pick(600, 4), batch_tokens=2048, learning_rate=5e-3, warmup_steps=50)
    jobs = {
        f"{name} {length}": step_job(
            config.replace(vocab_size=WORDS), train, random_batch(TOKENS // length, length, WORDS)
        )
        for name, config in shapes.items()
        for length in lengths
    }
    spreads = interleaved(jobs, lab.pick(5, 2))
    data = translations(lab.pick(60_000, 400))
    trained = lab.train({name: Training(model=shape(name, 64), train=train, data=data) for name in NAMES})
    return {
        "lengths": lengths,
        "tokens_per_s": {name: [TOKENS / spreads[f"{name} {length}"].low for length in lengths] for name in NAMES},
        "losses": {name: against_time(result) for name, result in trained.items()},
        "parameters": {
            name: sum(p.numel() for p in result.model_checkpoint.model.parameters()) for name, result in trained.items()
        },
    }


def shape(name: str, longest: int) -> ModelConfig:
    lengths = {"max_source_len": max(64, longest), "max_target_len": max(64, longest)}
    return recurrent(input_feeding=True, **lengths) if name == "recurrent" else small(d_model=96, d_ff=384, **lengths)


def against_time(trained: Trained) -> list[list[float]]:
    """(seconds, steps, validation loss)"""
    return [
        [row["seconds"], row["step"], row["validation_loss"]] for row in trained.history if "validation_loss" in row
    ]


def seconds_to(curve: list[list[float]], loss: float) -> float:
    """Seconds at which a curve first reaches `loss`, interpolated linearly between validations."""
    for before, after in zip([curve[0], *curve], curve, strict=False):
        if after[2] <= loss:
            share = (before[2] - loss) / (before[2] - after[2]) if before[2] > after[2] else 1.0
            return before[0] + share * (after[0] - before[0])
    return float("inf")


def judge(measured: Measured) -> Finding:
    lengths, speeds = measured["lengths"], measured["tokens_per_s"]
    leads = [ours / theirs for ours, theirs in zip(speeds["transformer"], speeds["recurrent"], strict=True)]
    goal = max(curve[-1][2] for curve in measured["losses"].values())
    times = {name: seconds_to(curve, goal) for name, curve in measured["losses"].items()}
    return Finding(
        verdict=verdict_of([leads[-1] > 1, leads[-1] > GROWTH * leads[0], times["transformer"] < times["recurrent"]]),
        explanation=f"At {lengths[0]} tokens per sentence the Transformer trains {leads[0]:.1f} times as many "
        f"tokens/s, at {lengths[-1]} {leads[-1]:.1f} times. The Transformer reaches a validation loss of {goal:.2f}, "
        f"the final loss of the slower learner, in {times['transformer']:.0f} s and the LSTM in "
        f"{times['recurrent']:.0f} s. On one thread the lead is that of few large matrix products over many "
        "small ones.",
        header=("tokens per sentence", *(f"{name}, tokens/s" for name in NAMES.values()), "ratio"),
        rows=[
            (
                str(length),
                f"{speeds['transformer'][place]:,.0f}",
                f"{speeds['recurrent'][place]:,.0f}",
                f"{leads[place]:.1f}",
            )
            for place, length in enumerate(lengths)
        ],
    )


def draw(measured: Measured, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    for name, label in NAMES.items():
        thousands = [rate / 1000 for rate in measured["tokens_per_s"][name]]
        left.plot(measured["lengths"], thousands, marker="o", label=label)
        curve = measured["losses"][name]
        right.plot([row[0] for row in curve], [row[2] for row in curve], marker=".", label=label)
    left.set(xscale="log", xlabel="tokens per sentence", ylabel="target tokens/s in training, thousands")
    left.set_xticks(measured["lengths"], [str(length) for length in measured["lengths"]])
    left.minorticks_off()
    left.set_ylim(bottom=0)
    right.set(xlabel="training time, seconds", ylabel="validation loss, nats per token", yscale="log")
    for place in (left, right):
        place.legend()


CLAIM = Claim(
    name="recurrence",
    title="Training is parallel, recurrence is not",
    statement="An LSTM needs n sequential steps for n words; attention computes all positions of a training "
    "sentence in parallel (Vaswani et al. 2017, table 1).",
    experiment="A Transformer of 2 + 2 layers and an LSTM with attention and input feeding, with about as "
    f"many parameters: steps on {TOKENS:,} target tokens in sentences of one length, one thread, fastest of "
    "five; and training runs of 600 steps on English to German.",
    measure=measure,
    judge=judge,
    draw=draw,
)
