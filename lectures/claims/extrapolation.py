"""Loss on texts longer than those in training, by kind of position encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.corpora import endless_scenes, schedule
from lectures.lab import Training
from model.architecture_config import DecoderConfig, Positions
from model.architectures import build
from model.checkpoints.checkpoint import Checkpoint
from model.config import ModelConfig, TrainConfig
from model.transformer import Decoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

KINDS: tuple[Positions, ...] = ("sinusoidal", "learned", "rotary", "shaw", "bucketed", "alibi", "none")
TRAINED, FACTOR = 64, 4  # tokens of a training window; evaluated windows are FACTOR times as long
RISE = 0.1  # nats per token from which a model counts as not extrapolating
BIN = 16  # positions averaged into one figure
WINDOWS = 64


def measure(lab: Lab) -> Measured:
    """Nats per token by kind and position, each the mean of BIN positions."""
    kinds, windows = lab.pick(KINDS, KINDS[:1] + KINDS[5:6]), lab.pick(WINDOWS, 4)
    data = endless_scenes(lab.pick(8000, 400))
    trained = lab.train({kind: Training(model=shape(kind), train=plan(lab), data=data) for kind in kinds})
    held_out = endless_scenes(20 * windows, seed=2).pairs[0][1]
    return {"nats": {kind: nats(trained[kind].model_checkpoint, held_out, windows) for kind in kinds}}


def shape(kind: Positions) -> ModelConfig:
    return DecoderConfig(d_model=64, d_ff=256, num_decoder_layers=2, positions=kind, max_target_len=TRAINED)


def plan(lab: Lab) -> TrainConfig:
    return schedule(lab.pick(600, 6), batch_tokens=2048, documents="stream", learning_rate=5e-3, warmup_steps=50)


@torch.inference_mode()
def nats(checkpoint: Checkpoint, text: str, windows: int) -> list[float]:
    """On windows FACTOR times as long as those in training."""
    longer, ids = lengthened(checkpoint), checkpoint.tokenizer.encode(text)
    length = longer.config.max_target_len
    target_WT = torch.tensor(ids[: windows * length]).unflatten(0, (-1, length))
    first_W1 = torch.full((len(target_WT), 1), longer.config.bos_id)
    states_WTM = longer(torch.cat((first_W1, target_WT[:, :-1]), dim=1))
    logits_WTV = longer.decoder.unembedding(states_WTM)
    nats_WT = torch.nn.functional.cross_entropy(logits_WTV.mT, target_WT, reduction="none")
    means: list[float] = nats_WT.mean(0).unflatten(0, (-1, BIN)).mean(1).tolist()
    return means


def lengthened(checkpoint: Checkpoint) -> Decoder:
    """The same weights for longer texts. A learned table is extended with untrained rows."""
    model = checkpoint.model
    torch.manual_seed(1)
    longer = build(model.config.replace(max_target_len=FACTOR * TRAINED)).eval()
    assert isinstance(longer, Decoder)
    kept: dict[str, Tensor] = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in longer.named_parameters():
            parameter[: len(kept[name])] = kept[name]
    return longer


def judge(measured: Measured) -> Finding:
    inside = TRAINED // BIN
    rows, rises = [], {}
    for kind, found in measured["nats"].items():
        # The first positions have little context, so longer windows are compared with the last ones.
        near, double, far = found[inside // 2 : inside], found[inside : 2 * inside], found[2 * inside :]
        figures = [sum(part) / len(part) for part in (near, double, far)]
        rises[kind] = figures[2] - figures[0]
        rows.append((kind, *(f"{figure:.3f}" for figure in figures), f"{rises[kind]:+.3f}"))
    best = [kind for kind, rise in rises.items() if rise < RISE]
    return Finding(
        verdict=verdict_of([rises["sinusoidal"] > RISE, rises["alibi"] < RISE]),
        explanation=f"Beyond the training length sinusoidal positions lose {rises['sinusoidal']:.2f} nats per token. "
        f"Rise below {RISE} nats: {', '.join(best) or 'none'}. The server rejects texts longer than a learned table; "
        "its row here uses untrained vectors.",
        header=(
            "positions",
            f"{TRAINED // 2}–{TRAINED}",
            f"{TRAINED}–{2 * TRAINED}",
            f"{2 * TRAINED}–{FACTOR * TRAINED}",
            "rise",
        ),
        rows=rows,
    )


def draw(measured: Measured, figure: Figure) -> None:
    axes = figure.subplots()
    for kind, found in measured["nats"].items():
        axes.plot([BIN * (place + 0.5) for place in range(len(found))], found, marker=".", label=kind)
    axes.axvline(TRAINED, linestyle="--", color="grey", label=f"trained up to {TRAINED}")
    axes.set(xlabel="position in the text, tokens", ylabel="validation loss, nats per token", yscale="log")
    axes.set_xticks(range(0, FACTOR * TRAINED + 1, TRAINED // 2))
    nats = [value for found in measured["nats"].values() for value in found]
    axes.set_yticks([tick / 4 for tick in range(1, 33) if min(nats) <= tick / 4 <= max(nats)])
    axes.minorticks_off()
    figure.legend(loc="outside right upper")


CLAIM = Claim(
    name="extrapolation",
    title="Sinusoidal positions do not extrapolate",
    statement="Sine and cosine are defined at every position, so longer texts than in training are possible "
    "(Vaswani et al. 2017, section 3.5), but do not work well. ALiBi was designed for extrapolation (Press et "
    "al. 2022).",
    experiment="Decoder-only models of two layers, d_model 64, one for each kind of positions, trained for "
    "600 steps on windows of 64 tokens of consecutive scenes, evaluated on windows of 256. Scenes are short, "
    "so a model that extrapolates loses nothing.",
    measure=measure,
    judge=judge,
    draw=draw,
)
