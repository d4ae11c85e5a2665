"""Pre-norm and post-norm training with and without warm-up."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.corpora import scenes, schedule
from lectures.lab import Trained, Training
from model.architecture_config import model_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

ORDERS, RATES, WARM_UPS, SEEDS = ("pre", "post"), (1e-3, 5e-3), (0, 50), (1, 2)
LAYERS = 6
NEAR = 0.1  # nats per token: a run that ends this close to the best one counts as trained


def measure(lab: Lab) -> Measured:
    """Validation losses by run, "ORDER RATE WARM_UP SEED"."""
    layers, steps = lab.pick(LAYERS, 2), lab.pick(150, 4)
    runs = list(itertools.product(ORDERS, RATES, WARM_UPS, lab.pick(SEEDS, SEEDS[:1])))
    data = scenes(lab.pick(5000, 300))
    trainings = {}
    for order, rate, warm_up, seed in runs:
        model = model_config(
            {
                "architecture": "decoder",
                "d_model": 64,
                "d_ff": 256,
                "num_decoder_layers": layers,
                "norm_position": order,
                "max_target_len": 96,
            }
        )
        train = schedule(
            steps,
            batch_tokens=1024,
            learning_rate=rate,
            warmup_steps=warm_up,
            clip_norm=0.0,
            seed=seed,
            validation_size=lab.pick(200, 20),
        )
        trainings[f"{order} {rate:g} {warm_up} {seed}"] = Training(model=model, train=train, data=data)
    return {"losses": {name: losses(trained) for name, trained in lab.train(trainings).items()}}


def losses(trained: Trained) -> list[list[float]]:
    """(step, validation loss) pairs; a diverged run has only those before it diverged."""
    found = [[step, loss] for step, loss in trained.curve("validation_loss")]
    return found if trained.checkpoint is not None else [*found, [found[-1][0] + 1 if found else 0, 99.0]]


def judge(measured: Measured) -> Finding:
    ends: dict[tuple[str, str, str], list[float]] = {}
    for name, curve in measured["losses"].items():
        order, rate, warm_up, _ = name.split()
        ends.setdefault((order, rate, warm_up), []).append(curve[-1][1])
    best = min(loss for found in ends.values() for loss in found)
    worst = {key: max(found) for key, found in ends.items()}
    slow, fast = (f"{rate:g}" for rate in sorted(RATES))
    cold = {order: {rate: worst[(order, rate, "0")] - best for rate in (slow, fast)} for order in ORDERS}
    gain = worst[("post", fast, "0")] - worst[("post", fast, str(WARM_UPS[1]))]
    held = [cold["post"][fast] > cold["pre"][fast] + NEAR, gain > NEAR]
    return Finding(
        verdict=verdict_of(held),
        explanation=f"At a rate of {fast} without warm-up the worse pre-norm run ends {cold['pre'][fast]:.2f} nats "
        f"above the best of all runs, the worse post-norm run {cold['post'][fast]:.2f}; warm-up lowers the latter by "
        f"{gain:.2f}. At {slow} without warm-up the two orders end {abs(cold['post'][slow] - cold['pre'][slow]):.2f} "
        "nats apart: only the high rate needs warm-up.",
        header=("norm", "learning rate", "warm-up steps", "final validation loss per seed"),
        rows=[(*key, ", ".join(_shown(loss) for loss in found)) for key, found in ends.items()],
    )


def _shown(loss: float) -> str:
    return f"{loss:.3f}" if loss < 99 else "diverged"


def draw(measured: Measured, figure: Figure) -> None:
    places = figure.subplots(1, len(RATES) * len(WARM_UPS), sharey=True)
    for place, (rate, warm_up) in zip(places, itertools.product(RATES, WARM_UPS), strict=True):
        for name, curve in measured["losses"].items():
            order, its_rate, its_warm_up, seed = name.split()
            if its_rate == f"{rate:g}" and its_warm_up == str(warm_up):
                shown = [(step, min(loss, 8.0)) for step, loss in curve]
                colour = "tab:blue" if order == "pre" else "tab:red"
                label = f"{order}-norm, each seed" if seed == "1" else None
                place.plot(*zip(*shown, strict=True), marker=".", color=colour, label=label)
        place.set(title=f"rate {rate:g},\n{warm_up} warm-up steps", xlabel="training steps")
    places[0].set_ylabel("validation loss, nats per token")
    places[0].legend()


CLAIM = Claim(
    name="norms",
    title="Pre-norm trains without warm-up, post-norm does not",
    statement="The original Transformer normalizes after each residual connection and needs a learning-rate "
    "warm-up; with the norm inside the residual branch it does not (Xiong et al. 2020).",
    experiment=f"Decoder-only models of {LAYERS} layers, d_model 64, on scenes: both norm orders, two learning "
    "rates that decay to 0 over 150 steps, with 50 warm-up steps and with none, two seeds each, without gradient "
    "clipping.",
    measure=measure,
    judge=judge,
    draw=draw,
)
