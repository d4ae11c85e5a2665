"""Which positions each attention head prefers, before and after training."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch

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
    """By head, "encoder 1.2" (layer and head, from 1), then by kind of position; kinds out of reach are omitted."""
    found: dict[str, dict[str, list[float]]] = {}
    for sentence in sentences:
        for part, weights_LHTS in sentence.weights.items():
            places = {name: pairs for name, pairs in compared_positions(part, sentence).items() if pairs}
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


def compared_positions(part: str, sentence: Sentence) -> dict[str, list[tuple[int, int]]]:
    """(query, key) positions of each kind, from the third word on, so that no two kinds coincide."""
    queries, keys = sentence.weights[part].shape[-2:]
    inner = range(2, queries - 2)
    if part == "cross":
        # The position that reads a word predicts the next one.
        return {"partner": sentence.true_links, "last": [(place, keys - 1) for place in range(queries)]}
    found = {
        "before": [(place, place - 1) for place in inner],
        "itself": [(place, place) for place in inner],
        "first": [(place, 0) for place in inner],
    }
    if part == "encoder":
        found |= {"after": [(place, place + 1) for place in inner], "last": [(place, keys - 1) for place in inner]}
    return found


def _at(weights_TS: np.ndarray, pairs: list[tuple[int, int]]) -> list[float]:
    queries, keys = zip(*pairs, strict=True)
    values: list[float] = weights_TS[list(queries), list(keys)].tolist()
    return values


def specialists(scored: dict[str, dict[str, float]]) -> dict[str, tuple[str, float]]:
    """Heads with more than SPECIAL of their weight on one kind of position, as (kind, share)."""
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
    neighbours = f"The clearest neighbour head is {neighbour[1]} with {neighbour[0]:.0%}"
    if not neighbour[0]:
        neighbours = "None of them attends to a neighbour"
    return Finding(
        verdict=verdict_of([len(after) > len(before), neighbour[0] > SPECIAL, partner[0] > SPECIAL]),
        explanation=f"{len(after)} of {len(measured['after'])} heads put more than half of their weight on one kind of "
        f"position; before training {len(before)}. {neighbours}; {partner[1]} puts {partner[0]:.0%} on the word about "
        f"to be translated. (BLEU of this model on in-distribution sentences: {measured['bleu']:.1f}.)",
        header=("head (layer.head)", "attends to", "share of weight", "before training"),
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
    statement="Heads of a layer learn to attend to different things: the previous word, the antecedent of a "
    "pronoun (Vaswani et al. 2017, appendix; Voita et al. 2019).",
    experiment="The model of the preset `demo`, 800 steps; each head's share of weight on the previous word, "
    "the word itself, the next word, the first and the last position and, in cross-attention, the partner of "
    "the word about to be generated, over 200 unseen sentences. A specialist gives one of these more than "
    "half of its weight; baseline: the untrained model.",
    measure=measure,
    judge=judge,
    draw=draw,
    size=(9.0, 6.0),
)
