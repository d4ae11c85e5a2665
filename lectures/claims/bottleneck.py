"""Recurrent translation models without and with attention, by source length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.corpora import schedule, translations
from lectures.lab import Training
from model.architecture_config import model_config
from model.checkpoints.checkpoint import Checkpoint
from model.config import ModelConfig
from model.corpus import corpus
from model.training.evaluate import bleu, translate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

NAMES = {"none": "without attention", "multiplicative": "with attention"}
BUCKETS = ((1, 8), (9, 10), (11, 13), (14, 16), (17, 19), (20, 63))  # source tokens, end token included
WIDER = 5.0  # minimum BLEU by which the gap widens from the shortest sentences to the longest


def measure(lab: Lab) -> Measured:
    """BLEU and exact match by model and source length, and the number of sentences of each length."""
    data, steps, each = translations(lab.pick(60_000, 400)), lab.pick(700, 4), lab.pick(150, 4)
    train = schedule(steps, batch_tokens=2048, learning_rate=5e-3, warmup_steps=50)
    trainings = {score: Training(model=recurrent(score=score), train=train, data=data) for score in NAMES}
    trained = {score: result.model_checkpoint for score, result in lab.train(trainings).items()}
    buckets = by_length(next(iter(trained.values())), each)
    scores = {score: [scored(checkpoint, pairs) for pairs in buckets] for score, checkpoint in trained.items()}
    return {"sentences": [len(pairs) for pairs in buckets], "scores": scores}


def recurrent(**changes: object) -> ModelConfig:
    """One LSTM layer on each side; the encoder is bidirectional."""
    shape = {
        "architecture": "recurrent",
        "d_model": 128,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "max_source_len": 64,
        "max_target_len": 64,
    }
    return model_config({**shape, **changes})


def by_length(checkpoint: Checkpoint, each: int) -> list[list[tuple[str, str]]]:
    """Sentences that are not in the training data, at most `each` per length bucket."""
    pairs = corpus.pairs(3, 60 * each, "train")
    lengths = [len(ids) for ids in checkpoint.tokenizer.encode_batch([source for source, _ in pairs])]
    return [
        [pair for pair, length in zip(pairs, lengths, strict=True) if low <= length <= high][:each]
        for low, high in BUCKETS
    ]


def scored(checkpoint: Checkpoint, pairs: list[tuple[str, str]]) -> dict[str, float]:
    hypotheses = translate(checkpoint.model, checkpoint.tokenizer, [source for source, _ in pairs])
    references = [target for _, target in pairs]
    exact = sum(ours == theirs for ours, theirs in zip(hypotheses, references, strict=True))
    return {"bleu": bleu(hypotheses, references).score, "exact": exact / max(1, len(pairs))}


def judge(measured: Measured) -> Finding:
    without, with_attention = ([found["bleu"] for found in measured["scores"][score]] for score in NAMES)
    gaps = [better - worse for better, worse in zip(with_attention, without, strict=True)]
    return Finding(
        verdict=verdict_of([gaps[-1] > gaps[0] + WIDER, gaps[-1] > 0]),
        explanation=f"From the shortest to the longest sentences BLEU falls by {without[0] - without[-1]:.1f} without "
        f"attention and by {with_attention[0] - with_attention[-1]:.1f} with it; attention adds {gaps[0]:+.1f} BLEU "
        f"for the shortest and {gaps[-1]:+.1f} for the longest.",
        header=(
            "source tokens",
            "sentences",
            *(f"{figure} {name}" for figure in ("BLEU", "exact match") for name in NAMES.values()),
        ),
        rows=[
            (
                label(place),
                str(measured["sentences"][place]),
                f"{without[place]:.1f}",
                f"{with_attention[place]:.1f}",
                *(f"{measured['scores'][score][place]['exact']:.0%}" for score in NAMES),
            )
            for place in range(len(BUCKETS))
        ],
    )


def label(place: int) -> str:
    low, high = BUCKETS[place]
    return f"{low} or more" if place == len(BUCKETS) - 1 else f"{low}–{high}"


def draw(measured: Measured, figure: Figure) -> None:
    labels = [label(place) for place in range(len(BUCKETS))]
    for place, (key, title) in zip(
        figure.subplots(1, 2), (("bleu", "BLEU"), ("exact", "sentences matched exactly, %")), strict=True
    ):
        for score, name in NAMES.items():
            scale = 100 if key == "exact" else 1
            found = [scale * scores[key] for scores in measured["scores"][score]]
            place.plot(labels, found, marker="o", label=name)
        place.set(xlabel="tokens of the source", ylabel=title)
        place.set_ylim(bottom=0)
        place.legend()


CLAIM = Claim(
    name="bottleneck",
    title="One vector is a bottleneck",
    statement="Without attention a recurrent translation model compresses the source into one vector, so long "
    "sentences suffer (Bahdanau et al. 2015, figure 2; Luong et al. 2015).",
    experiment="English to German on the embedded grammar; LSTMs of d_model 128, one layer a side, "
    "bidirectional encoder; the decoder gets the encoder's last state alone, or multiplicative attention. 700 "
    "steps of 2,048 tokens; up to 150 sentences of each length.",
    measure=measure,
    judge=judge,
    draw=draw,
)
