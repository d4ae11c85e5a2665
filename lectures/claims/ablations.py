"""One part of a Transformer changed or removed at a time, on one task and an equal budget.

Some variants are no configuration of the product, such as a block without residual connections, so this module trains
with a loop of its own; loss, optimizer and learning rate are the trainer's.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.corpora import schedule, small, translations
from model.architectures import build
from model.config import ModelConfig, TrainConfig
from model.layers import Block, Residual
from model.tokenizer import Tokenizer
from model.training.data.examples import PairBatches, split
from model.training.objective.loss import batch_loss, drop_padding
from model.training.objective.optimiser import learning_rate, make_optimiser
from model.transformer import EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab


class Nothing(nn.Module):
    """In the place of a feed-forward: adds nothing to the residual stream."""

    def forward(self, x_BTM: Tensor) -> Tensor:
        """Zeros of x's shape."""
        return torch.zeros_like(x_BTM)


def without_residual(model: nn.Module) -> None:
    """Each sublayer's output replaces its input."""
    for module in model.modules():
        if isinstance(module, Residual):
            module.forward = module.branch  # type: ignore[method-assign]


def without_norm(model: EncoderDecoder) -> None:
    """No norm in any residual connection, and none at the end."""
    without_inner_norm(model)
    without_last_norm(model)


def without_inner_norm(model: nn.Module) -> None:
    """No norm in any residual connection."""
    for module in model.modules():
        if isinstance(module, Residual):
            module.norm = nn.Identity()


def without_last_norm(model: EncoderDecoder) -> None:
    """No norm at the end of the encoder and of the decoder."""
    model.encoder.norm = model.decoder.norm = nn.Identity()


def without_feed_forward(model: nn.Module) -> None:
    """Attention alone."""
    for module in model.modules():
        if isinstance(module, Block):
            module.feed_forward = Nothing()


class Variant(NamedTuple):
    """A change of the baseline: of its configuration, or of the built model. seed: of the weights and of dropout; the
    batches of all variants are the same."""

    part: str
    name: str
    changes: Mapping[str, object] = {}
    operate: Callable[[EncoderDecoder], None] | None = None
    seed: int = 1


VARIANTS = (
    Variant("baseline", "pre-norm, ReLU, sinusoidal, 4 heads"),
    *(Variant("baseline", f"the same, weights of seed {seed}", seed=seed) for seed in (2, 3, 4)),
    Variant("activation", "GELU", {"activation": "gelu"}),
    Variant("gating", "gated SiLU, as many parameters", {"activation": "silu", "gated": True, "d_ff": 171}),
    Variant("positions", "none", {"positions": "none"}),
    Variant("positions", "learned", {"positions": "learned"}),
    Variant("positions", "rotary", {"positions": "rotary"}),
    Variant("norm", "post", {"norm_position": "post"}),
    Variant("norm", "RMS", {"norm": "rms"}),
    Variant("norm", "none", operate=without_norm),
    Variant("norm", "none, weights of seed 2", operate=without_norm, seed=2),
    Variant("norm", "none in the blocks", operate=without_inner_norm),
    Variant("norm", "none at the ends", operate=without_last_norm),
    Variant("residual", "none", operate=without_residual),
    Variant("scale", "1 instead of 1/sqrt(d)", {"attention_scale": 1.0}),
    Variant("feed-forward", "none", operate=without_feed_forward),
    Variant("heads", "one", {"num_heads": 1}),
)
LOSSES = ("positions: none", "residual: none", "feed-forward: none")  # which the lectures call necessary
KINDS = (
    "activation: GELU",
    "gating: gated SiLU, as many parameters",
    "positions: learned",
    "positions: rotary",
    "norm: post",
    "norm: RMS",
    "heads: one",
)  # another kind of a part instead of none, of which most are to make little difference
DEVIATIONS = 3


def measure(lab: Lab) -> Measured:
    """Validation loss, accuracy of the next token, seconds of processor time and parameters, by variant."""
    torch.set_num_threads(1)
    data, steps = translations(lab.pick(8000, 300)), lab.pick(250, 2)
    tokenizer = Tokenizer.train([text for pair in data.pairs for text in pair], kind="words", vocab_size=4000)
    train = schedule(steps, batch_tokens=1024, learning_rate=5e-3, warmup_steps=min(30, steps))
    training, validation = split(data, size=300, seed=1)
    found: dict[str, dict[str, float]] = {}
    for variant in VARIANTS if not lab.is_fast else VARIANTS[:2] + VARIANTS[-4:]:
        config = small(vocab_size=tokenizer.vocab_size, **variant.changes)
        model = built(variant, config)
        batches = PairBatches(training, tokenizer, config, train)
        began_s = time.thread_time()
        fit(model, batches, train, steps)
        seconds = time.thread_time() - began_s
        loss, right = scores(model, PairBatches(validation, tokenizer, config, train))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        found[f"{variant.part}: {variant.name}"] = {
            "loss": loss,
            "accuracy": right,
            "seconds": seconds,
            "parameters": parameters,
        }
    return {"variants": found, "steps": steps}


def built(variant: Variant, config: ModelConfig) -> EncoderDecoder:
    torch.manual_seed(variant.seed)
    model = build(config)
    assert isinstance(model, EncoderDecoder)
    if variant.operate is not None:
        variant.operate(model)
    return model


def fit(model: EncoderDecoder, batches: PairBatches, train: TrainConfig, steps: int) -> None:
    """Trains for `steps` batches."""
    optimiser, step, epoch = make_optimiser(model, train), 0, 0
    model.train()
    while step < steps:
        for keys in batches.plan(epoch)[: steps - step]:
            batch = batches.load(keys)
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(train, step, step / steps)
            (batch_loss(model, batch).smoothed / batch.tokens).backward()
            nn.utils.clip_grad_norm_(model.parameters(), train.clip_norm)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            step += 1
        epoch += 1
    model.eval()


@torch.no_grad()
def scores(model: EncoderDecoder, batches: PairBatches) -> tuple[float, float]:
    """Nats per target token, and the share of tokens that the model ranks first given those before."""
    nats, right, tokens = 0.0, 0, 0
    for keys in batches.plan(0):
        batch = batches.load(keys)
        states = model(batch.source_BS, batch.lengths_B, batch.input_BT)
        hidden_NM, target_N = drop_padding(states, batch.target_BT)
        logits_NV = model.decoder.unembedding(hidden_NM)
        nats += float(nn.functional.cross_entropy(logits_NV, target_N, reduction="sum"))
        right += int((logits_NV.argmax(-1) == target_N).sum())
        tokens += len(target_N)
    return nats / tokens, right / tokens


def judge(measured: Measured) -> Finding:
    found = measured["variants"]
    mean, deviation, bar = baseline(found)
    gaps = {name: row["loss"] - mean for name, row in found.items()}
    others = [name for name in sorted(gaps, key=lambda name: -gaps[name]) if not name.startswith("baseline: ")]
    worse, better = [name for name in others if gaps[name] > bar], [name for name in others if gaps[name] < -bar]
    needed, doubtful = ([name for name in LOSSES if (name in worse) is is_worse] for is_worse in (True, False))
    alike = [name for name in KINDS if abs(gaps.get(name, math.inf)) <= bar]
    held = [*(gaps.get(name, math.inf) > bar for name in LOSSES), 2 * len(alike) > len(KINDS)]
    return Finding(
        verdict=verdict_of(held),
        explanation=f"{len(found) - len(others)} baselines end at {mean:.2f} nats with a standard "
        f"deviation of {deviation:.2f}. A difference counts from {bar:.2f}. "
        f"Shown to be necessary: {listed(needed, gaps)}; not shown: {listed(doubtful, gaps)}. Worse by more: "
        f"{listed(worse, gaps)}. Better by more: {listed(better, gaps)}. {len(alike)} of {len(KINDS)} other kinds of a "
        f"part make no difference. {unexplained(gaps, bar)}{measured['steps']} steps are far from convergence.",
        header=("part", "variant", "parameters", "processor seconds", "validation loss", "difference", "tokens right"),
        rows=[
            (
                *name.split(": "),
                f"{row['parameters']:,}",
                f"{row['seconds']:.1f}",
                f"{row['loss']:.3f}",
                f"{gaps[name]:+.3f}",
                f"{row['accuracy']:.1%}",
            )
            for name, row in found.items()
        ],
    )


def baseline(found: Mapping[str, Mapping[str, float]]) -> tuple[float, float, float]:
    """Mean and standard deviation of the losses of the baselines, two at least, and the smallest difference of one run
    from that mean that counts."""
    losses = [row["loss"] for name, row in found.items() if name.startswith("baseline: ")]
    deviation = statistics.stdev(losses)
    return statistics.mean(losses), deviation, DEVIATIONS * deviation * math.sqrt(1 + 1 / len(losses))


def unexplained(gaps: Mapping[str, float], bar: float) -> str:
    """What the runs without norms show, and what they do not."""
    if gaps.get("norm: none", 0.0) >= -bar:
        return ""
    return "Why a model without norms learns faster here is unexplained. "


def listed(names: list[str], gaps: Mapping[str, float]) -> str:
    """The variants with their differences; those that were not trained are left out."""
    return ", ".join(f"{name} ({gaps[name]:+.2f})" for name in names if name in gaps) or "none"


def draw(measured: Measured, figure: Figure) -> None:
    axes, found = figure.subplots(), measured["variants"]
    bars = axes.barh(range(len(found)), [row["loss"] for row in found.values()], color="tab:blue")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("validation loss, nats per token (lower is better)")


CLAIM = Claim(
    name="ablations",
    title="Positions, residuals and feed-forwards are needed",
    statement="Most variants of a Transformer's parts make little difference (Narang et al. 2021), but "
    "without positions order is lost, without residuals deep models do not train, and without feed-forwards "
    "there is no nonlinearity but the softmax.",
    experiment="English to German on the embedded grammar, 2 + 2 layers of d_model 64, one part changed at a "
    "time: 250 steps of 1,024 tokens in the same batches. Four baselines from different weights, two models "
    "without norms, one of each other kind; differences are from the baselines' mean.",
    measure=measure,
    judge=judge,
    draw=draw,
    size=(9.0, 5.0),
)
