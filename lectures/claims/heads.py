"""Loss and step time by number of heads, at equal parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.measure import interleaved
from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.corpora import schedule, small, translations
from lectures.lab import Training
from lectures.steps import random_batch, step_job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

HEADS, SEEDS = (1, 2, 4, 8), (1, 2)
KEYS = [str(heads) for heads in HEADS]
TOKENS, LENGTH = 2048, 16  # of a batch, and of a sentence where steps are timed
SAME_COST = 1.5  # times the fastest: scores and softmax of more heads are the only extra work


def measure(lab: Lab) -> Measured:
    """Validation loss, exact match, milliseconds of a training step and parameters, by heads."""
    data, steps = translations(lab.pick(30000, 400)), lab.pick(500, 4)
    trainings = {
        f"{heads} {seed}": Training(
            model=small(num_heads=heads),
            train=schedule(steps, batch_tokens=2048, learning_rate=5e-3, warmup_steps=50, seed=seed),
            data=data,
        )
        for heads in HEADS
        for seed in lab.pick(SEEDS, SEEDS[:1])
    }
    trained = lab.train(trainings)
    metrics = {name: result.model_checkpoint.metrics for name, result in trained.items()}
    models = {heads: trained[f"{heads} 1"].model_checkpoint.model for heads in HEADS}
    train = trainings["1 1"].train
    batch = random_batch(TOKENS // LENGTH, LENGTH, models[1].config.vocab_size)
    jobs = {str(heads): step_job(model.config, train, batch) for heads, model in models.items()}
    spreads = interleaved(jobs, lab.pick(9, 2))
    return {
        "loss": {name: found["validation_loss"] for name, found in metrics.items()},
        "exact": {name: found["exact_match"] for name, found in metrics.items()},
        "ms": {heads: 1e3 * spread.low for heads, spread in spreads.items()},
        "parameters": {str(heads): sum(p.numel() for p in model.parameters()) for heads, model in models.items()},
    }


def judge(measured: Measured) -> Finding:
    losses = {
        heads: [measured["loss"][name] for name in measured["loss"] if name.split()[0] == heads] for heads in KEYS
    }
    exact = {
        heads: [measured["exact"][name] for name in measured["exact"] if name.split()[0] == heads] for heads in KEYS
    }
    means = {heads: sum(found) / len(found) for heads, found in losses.items()}
    fastest = min(measured["ms"].values())
    best = min(means, key=lambda heads: means[heads])
    gaps = [min(losses["1"]) - max(losses[heads]) for heads in KEYS[1:]]
    cost = measured["ms"][best] / fastest
    return Finding(
        verdict=verdict_of([max(gaps) > 0, cost < SAME_COST]),
        explanation=f"{best} heads reach the lowest loss, {means['1'] - means[best]:+.3f} nats below one head; their "
        f"step takes {cost:.2f} times as long as the fastest. "
        + (
            "The worst seed with several heads beats the best seed with one."
            if max(gaps) > 0
            else "The seeds overlap, so the difference may be chance."
        ),
        header=("heads", "parameters", "ms per step", "validation loss per seed", "exact match per seed"),
        rows=[
            (
                heads,
                f"{measured['parameters'][heads]:,}",
                f"{measured['ms'][heads]:.0f}",
                ", ".join(f"{loss:.3f}" for loss in losses[heads]),
                ", ".join(f"{share:.1%}" for share in exact[heads]),
            )
            for heads in KEYS
        ],
    )


def draw(measured: Measured, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    labels = {"loss": "validation loss, nats per token", "exact": "sentences matched exactly, %"}
    for place, (name, label) in zip((left, right), labels.items(), strict=True):
        scale = 100 if name == "exact" else 1
        for seed in sorted({run.split()[1] for run in measured[name]}):
            found = [(heads, measured[name][f"{heads} {seed}"] * scale) for heads in HEADS]
            place.plot(*zip(*found, strict=True), "o", label=f"seed {seed}")
        place.set(xscale="log", xlabel="heads", ylabel=label)
        place.set_xticks(HEADS, KEYS)
        place.minorticks_off()
        place.legend()


CLAIM = Claim(
    name="heads",
    title="Several heads cost what one does",
    statement="h heads of d_model / h dimensions cost as many operations as one, and attend to several "
    "positions in parallel (Vaswani et al. 2017, section 3.2.2 and table 3).",
    experiment="English to German on the embedded grammar, 2 + 2 layers of d_model 64 with 1, 2, 4 and 8 "
    "heads, 500 steps of 2,048 tokens, two seeds each; training steps on one batch, fastest of nine.",
    measure=measure,
    judge=judge,
    draw=draw,
)
