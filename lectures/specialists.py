"""What single heads look at after training."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.demo import Sentence, trained, translated
from model.architectures import build

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

PLACES = ("before", "itself", "after", "first", "last", "partner")
SPECIAL = 0.5  # of a head's weight, in the mean: more than all other places together


def measure(lab: Lab) -> Measured:
    """For every head the mean weight on each of PLACES, before training and after."""
    checkpoint, count = trained(lab).translator, lab.pick(200, 5)
    torch.manual_seed(checkpoint.lineage["seed"])
    fresh = dataclasses.replace(checkpoint, model=build(checkpoint.config).eval())
    return {
        "after": scores(translated(checkpoint, count)),
        "before": scores(translated(fresh, count)),
        "bleu": checkpoint.metrics["bleu"],
    }


def scores(sentences: list[Sentence]) -> dict[str, dict[str, float]]:
    """By head, "encoder 1.2" (layer and head, from 1), then by place; places a head cannot see are left out."""
    found: dict[str, dict[str, list[float]]] = {}
    for sentence in sentences:
        for part, weights_LHTS in zip(("encoder", "decoder", "cross"), sentence.weights, strict=True):
            places = {name: pairs for name, pairs in looked_at(part, sentence).items() if pairs}
            for layer, weights_HTS in enumerate(weights_LHTS, 1):
                for head, weights_TS in enumerate(weights_HTS, 1):
                    scored = found.setdefault(f"{part} {layer}.{head}", {})
                    for name, pairs in places.items():
                        scored.setdefault(name, []).extend(_at(weights_TS, pairs))
    return {
        head: {name: float(np.mean(values)) for name, values in scored.items()}
        for head, scored in found.items()
        if scored
    }


def looked_at(part: str, sentence: Sentence) -> dict[str, list[tuple[int, int]]]:
    """(query, key) positions of each kind of place. From the third word on, so that no two kinds are one place."""
    queries, keys = next(iter(sentence.weights._asdict()[part][0])).shape
    inner = range(2, queries - 2)
    if part == "cross":
        # The position that predicts a word is the one that reads the word before it.
        return {"partner": sentence.true_links, "last": [(place, keys - 1) for place in range(queries)]}
    found = {
        "before": [(place, place - 1) for place in inner],
        "itself": [(place, place) for place in inner],
        "first": [(place, 0) for place in inner],
    }
    if part == "encoder":
        found |= {"after": [(place, place + 1) for place in inner], "last": [(place, keys - 1) for place in inner]}
    return found


def _at(weights_TS: Tensor, pairs: list[tuple[int, int]]) -> list[float]:
    queries, keys = zip(*pairs, strict=True)
    values: list[float] = weights_TS[list(queries), list(keys)].tolist()
    return values


def specialists(scored: dict[str, dict[str, float]]) -> dict[str, tuple[str, float]]:
    """The heads with more than SPECIAL of their weight at one kind of place: which, and how much."""
    best = {head: max(places.items(), key=lambda item: item[1]) for head, places in scored.items()}
    return {head: (place, share) for head, (place, share) in best.items() if share > SPECIAL}


def judge(measured: Measured) -> Finding:
    after, before = specialists(measured["after"]), specialists(measured["before"])
    neighbour = max(
        ((share, head) for head, (place, share) in after.items() if place in ("before", "after")), default=(0.0, "none")
    )
    partner = max(
        ((places["partner"], head) for head, places in measured["after"].items() if "partner" in places),
        default=(0.0, "none"),
    )
    told = f"The clearest neighbour head is {neighbour[1]} with {neighbour[0]:.0%}"
    if not neighbour[0]:
        told = "None of them looks at a neighbour"
    return Finding(
        verdict=verdict_of([len(after) > len(before), neighbour[0] > SPECIAL, partner[0] > SPECIAL]),
        says=f"{len(after)} of {len(measured['after'])} heads give more than half of their weight to one kind of "
        f"place, before training {len(before)}. {told}; {partner[1]} looks at the word it is about to translate with "
        f"{partner[0]:.0%}. (BLEU of this model on sentences like those of training: {measured['bleu']:.1f}.)",
        header=("head (layer.head)", "looks at", "share of its weight", "before training"),
        rows=[
            (head, place, f"{share:.0%}", f"{measured['before'][head][place]:.0%}")
            for head, (place, share) in after.items()
        ]
        or [("none", "–", "–", "–")],
    )


def draw(measured: Measured, figure: Figure) -> None:
    for place, (when, title) in zip(
        figure.subplots(1, 2, sharey=True),
        (("before", "before training"), ("after", "after training")),
        strict=True,
    ):
        heads = list(measured[when])
        shares = np.array([[measured[when][head].get(name, np.nan) for name in PLACES] for head in heads])
        image = place.imshow(shares, vmin=0, vmax=1, aspect="auto", cmap="viridis")
        place.set_xticks(range(len(PLACES)), PLACES, rotation=45)
        place.set_yticks(range(len(heads)), heads)
        place.set_title(title)
    figure.colorbar(image, ax=figure.axes, label="share of the head's weight")


CLAIM = Claim(
    name="specialists",
    title="Heads specialise",
    said="Heads at the same depth have different parameters and come to look at different things: one at the word "
    "before, one at what a pronoun stands for (Vaswani et al. 2017, appendix; Voita et al. 2019).",
    tried="The translator of `glossa demo`, 800 steps. For every head of encoder, decoder and cross-attention the "
    "mean share of its weight on the word before, itself, the word after, the first and the last position, and, in "
    "cross-attention, on the partner of the word that is about to be written, over 200 sentences with combinations of "
    "words that were never trained. Partners are known from the grammar's lexicon, for nouns and adjectives. A head "
    "is a specialist if one kind of place gets more than half; the same weights before training are the comparison.",
    measure=measure,
    judge=judge,
    draw=draw,
    size=(9.0, 6.0),
)
