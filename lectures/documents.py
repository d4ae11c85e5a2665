"""Perplexity of texts about long documents, by architecture and context length."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING, Any

import torch

from lectures.bottleneck import recurrent
from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.corpora import schedule, small
from lectures.lab import Training
from model.architecture_config import model_config
from model.checkpoint import Checkpoint
from model.config import ModelConfig
from model.training.data import Examples, PairBatches
from model.training.evaluate import loss_per_token
from model.transformer import Decoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

TOWNS, GOODS, KINGS = 12, 6, 64
LENGTH, FACTS, STATED = 48, 12, 12  # words of a document, facts in it, and facts in the target
TARGET_LEN = 3 * STATED + 1  # tokens, with the end token
STEPS = 5000  # the decoder that reads everything learns to look up facts abruptly, after about 1,000 steps
FILLER = ("and", "so", "it", "is", "said", "by", "all")  # in a fixed cycle, so that only facts have to be learnt
MARK = "="
ROWS = 16  # documents of a batch, the same for all
NAMES = {
    "seq2seq": "LSTM with attention",
    "encoder-decoder": "Transformer, encoder-decoder",
    "decoder": "Transformer, decoder-only",
    "compressed": "the same, every second layer compressed",
    "experts": "the same with 8 experts",
}
"""In the order of the claim, worst first."""
WITH_ENCODER = ("seq2seq", "encoder-decoder")
READS = {"seq2seq": 12, "encoder-decoder": 12, "decoder": 24, "compressed": LENGTH, "experts": LENGTH}
"""Input words, counted from the end of the document: the nearest ones are kept."""
CLEAR = 1.02  # minimum ratio at which a perplexity counts as lower


def measure(lab: Lab) -> Measured:
    """Perplexity of the target, training seconds and parameters, by model."""
    count, steps = lab.pick(ROWS * STEPS, 300), lab.pick(STEPS, 4)
    training, unseen = documents(count, seed=1), documents(lab.pick(400, 20), seed=2)
    runs = {}
    for name in NAMES:
        train = schedule(
            steps, batch_tokens=batch_tokens(name), learning_rate=3e-3, warmup_steps=100, validation_size=50
        )
        data = Examples(framed(name, training), f"documents for {name}")
        runs[name] = Training(model=shape(name), train=train, data=data)
    trained = lab.train(runs)
    found: dict[str, Any] = {"perplexity": {}, "seconds_of_training": {}, "parameters": {}}
    for name, result in trained.items():
        checkpoint = result.model_checkpoint
        found["perplexity"][name] = math.exp(nats(checkpoint, Examples(framed(name, unseen), "unseen")))
        found["seconds_of_training"][name] = checkpoint.metrics["seconds"]
        found["parameters"][name] = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    return found


def documents(count: int, *, seed: int) -> list[tuple[list[str], list[str]]]:
    """(document, target) pairs. A document states what some towns trade in, far apart; the target repeats this for each
    town and adds the king of such towns, which no document states."""
    kings = random.Random("kings")
    king_of = {pair: kings.randrange(KINGS) for pair in itertools.product(range(TOWNS), range(GOODS))}
    rng, found = random.Random(seed), []
    for _ in range(count):
        words = [FILLER[place % len(FILLER)] for place in range(LENGTH)]
        facts = [(town, rng.randrange(GOODS)) for town in rng.sample(range(TOWNS), FACTS)]
        for place, (town, good) in zip(sorted(rng.sample(range(LENGTH), FACTS)), facts, strict=True):
            words[place] = f"t{town}g{good}"
        target = [
            word
            for town, good in rng.sample(facts, STATED)
            for word in (f"town{town}", f"good{good}", f"king{king_of[town, good]}")
        ]
        found.append((words, target))
    return found


def framed(name: str, found: list[tuple[list[str], list[str]]]) -> list[tuple[str, str]]:
    """As source and target, or as one text with a separator between document and target."""
    reads = READS[name]
    if name in WITH_ENCODER:
        return [(" ".join(words[-reads:]), " ".join(target)) for words, target in found]
    return [("", " ".join([*words[-reads:], MARK, *told])) for words, told in found]


def batch_tokens(name: str) -> int:
    """Batches of ROWS documents: batch size counts target tokens."""
    return ROWS * (TARGET_LEN if name in WITH_ENCODER else READS[name] + 1 + TARGET_LEN)


def shape(name: str) -> ModelConfig:
    if name == "seq2seq":
        return recurrent(d_model=96, input_feeding=True)
    if name == "encoder-decoder":
        return small()
    more: dict[str, object] = (
        {"sliding_window": 16, "compression_stride": 4} if name in ("compressed", "experts") else {}
    )
    if name == "experts":
        more |= {"num_experts": 8, "experts_per_token": 1}
    sizes = {"d_model": 64, "num_heads": 4, "d_ff": 256, "num_decoder_layers": 4}
    max_target_len = READS[name] + TARGET_LEN + 7
    return model_config({"architecture": "decoder", **sizes, "max_target_len": max_target_len, **more})


@torch.inference_mode()
def nats(checkpoint: Checkpoint, unseen: Examples) -> float:
    """Per target token, end token included."""
    model = checkpoint.model
    batches = PairBatches(unseen, checkpoint.tokenizer, model.config, schedule(1, batch_tokens=4096))
    if not isinstance(model, Decoder):
        return loss_per_token(model, batches)
    total, count = 0.0, 0
    for keys in batches.plan(0):
        batch = batches.load(keys)
        logits_BTV = model.decoder.unembedding(model(batch.input_BT)[:, -TARGET_LEN:])
        target_BT = batch.target_BT[:, -TARGET_LEN:]  # all texts are of one length
        total += float(torch.nn.functional.cross_entropy(logits_BTV.mT, target_BT, reduction="sum"))
        count += target_BT.numel()
    return total / count


def least_perplexity() -> float:
    """Perplexity of a model that knows everything but the order of the towns: STATED of the FACTS in the document."""
    orders = math.lgamma(FACTS + 1) - math.lgamma(FACTS - STATED + 1)
    return math.exp(orders / TARGET_LEN)


def judge(measured: Measured) -> Finding:
    names, found = list(NAMES), measured["perplexity"]
    pairs = list(itertools.pairwise(names))
    held = [found[worse] > CLEAR * found[better] for worse, better in pairs]
    broken = [
        f"{NAMES[better]} is not better than {NAMES[worse]}"
        for (worse, better), yes in zip(pairs, held, strict=True)
        if not yes
    ]
    return Finding(
        verdict=verdict_of(held),
        explanation=f"{sum(held)} of the {len(held)} steps of the order are reproduced, by more than {CLEAR - 1:.0%}"
        + (f"; {'; '.join(broken)}. " if broken else ". ")
        + "As in the original table, the models differ in input length as well as in architecture, and here input "
        f"length matters most: {READS['decoder']} words contain {FACTS * READS['decoder'] // LENGTH} of {FACTS} facts. "
        f"A model that knows all facts only has to guess the order of the towns: a perplexity of "
        f"{least_perplexity():.2f}.",
        header=("model", "words read", "parameters", "training seconds", "perplexity of the target"),
        rows=[
            (
                NAMES[name],
                str(READS[name]),
                f"{measured['parameters'][name]:,}",
                f"{measured['seconds_of_training'][name]:.0f}",
                f"{found[name]:.2f}",
            )
            for name in names
        ],
    )


def draw(measured: Measured, figure: Figure) -> None:
    axes = figure.subplots()
    names = list(NAMES)
    bars = axes.barh(range(len(names)), [measured["perplexity"][name] for name in names], color="tab:blue")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.margins(x=0.08)
    axes.set_yticks(range(len(names)), [f"{NAMES[name]}, {READS[name]} words" for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("perplexity per token of the text about a document (lower is better)")


CLAIM = Claim(
    name="documents",
    title="Longer reach and more capacity write better documents",
    statement="On generated encyclopedia articles perplexity falls from a recurrent sequence-to-sequence model "
    "with attention to an encoder-decoder Transformer (500 input tokens each), to a decoder-only one (4,000), to "
    "one with memory-compressed attention (11,000), to the same with a mixture of experts (Liu et al. 2018, table "
    "4).",
    experiment=f"Documents of {LENGTH} words contain {FACTS} scattered facts (what a town trades in). The target "
    f"states {STATED} of them in any order, each with something that only the whole corpus reveals (the king of such "
    f"towns: {TOWNS * GOODS} combinations to memorize). As in the original, each model reads as much as its "
    "attention is given: the last 12 words for the two with an encoder, 24 for the decoder-only one, all for the "
    f"compressed ones. Each is trained for {STEPS:,} steps of {ROWS} documents.",
    measure=measure,
    judge=judge,
    draw=draw,
)
