"""Alignment error rate of cross-attention without training on alignments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.demo import Sentence, reversed_letters, trained, translated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

WHEN = {"writing": 0, "having written": 1}
"""A word is aligned at the step that predicts it, or at the next one, which reads it (Chen et al. 2020)."""
TASKS = {"German": "English to German, nouns and adjectives", "backwards": "reversed letters"}
EXAMPLES = 10  # sentences; the one with the most known partners is plotted
GOOD = 0.2  # alignment error rate; dedicated statistical aligners reach 0.1 to 0.3 on real text


def measure(lab: Lab) -> Measured:
    """Error rates by task, layer, head and step; weights of one example."""
    models, count = trained(lab), lab.pick(300, 10)
    sentences = {
        "German": translated(models.translator, count),
        "backwards": reversed_letters(models.reverser, count),
    }
    example = max(sentences["German"][:EXAMPLES], key=lambda sentence: len(sentence.true_links))
    return {
        "errors": {task: errors(found) for task, found in sentences.items()},
        "links": {task: sum(len(sentence.true_links) for sentence in found) for task, found in sentences.items()},
        "example": {
            "source": [*example.source, "<eos>"],
            "target": example.target,
            "weights": example.weights["cross"][-1].mean(0)[:-1].tolist(),
        },
    }


def errors(sentences: list[Sentence]) -> dict[str, float]:
    """Alignment error rate by "layer 1, mean, writing" and so on, and of the diagonal, which ignores the words."""
    found: dict[str, list[bool]] = {}
    for sentence in sentences:
        length = len(sentence.source)
        for target, source in sentence.true_links:
            slope = (length - 1) / max(1, len(sentence.target) - 1)
            found.setdefault("diagonal", []).append(round(target * slope) != source)
            for layer, weights_HTS in enumerate(sentence.weights["cross"], 1):
                ways = {"mean": weights_HTS.mean(0), **{f"head {h}": w_TS for h, w_TS in enumerate(weights_HTS, 1)}}
                for way, weights_TS in ways.items():
                    for when, shift in WHEN.items():
                        name = f"layer {layer}, {way}, {when}"
                        found.setdefault(name, []).append(not is_right(weights_TS[target + shift, :length], source))
    return {name: float(np.mean(wrong)) for name, wrong in found.items()}


def is_right(weights_S: np.ndarray, source: int) -> bool:
    """Whether the word with the largest weight is the partner. The end token is excluded."""
    return int(weights_S.argmax()) == source


def best(errors: dict[str, float], *, of: str) -> tuple[str, float]:
    return min(((name, rate) for name, rate in errors.items() if of in name), key=lambda item: item[1])


def judge(measured: Measured) -> Finding:
    rows, held = [], []
    for task, found in measured["errors"].items():
        mean, head = best(found, of="mean"), best(found, of="head")
        rows += [
            (TASKS[task], *mean[0].rsplit(", ", 1), f"{mean[1]:.3f}"),
            (TASKS[task], *head[0].rsplit(", ", 1), f"{head[1]:.3f}"),
            (TASKS[task], "the diagonal", "–", f"{found['diagonal']:.3f}"),
        ]
        held.append(mean[1] < GOOD and mean[1] < found["diagonal"])
    german = measured["errors"]["German"]
    return Finding(
        verdict=verdict_of(held),
        explanation=f"The mean of one layer's heads puts {1 - best(german, of='mean')[1]:.0%} of "
        f"{measured['links']['German']:,} German words on their English partner without any training on alignments; "
        f"the best single head {1 - best(german, of='head')[1]:.0%}, the diagonal {1 - german['diagonal']:.0%}. The "
        "best layer, heads and step have to be determined, and differ between the tasks.",
        header=("task", "attention", "decode step", "alignment error rate"),
        rows=rows,
    )


def draw(measured: Measured, figure: Figure) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
    example = measured["example"]
    image = left.imshow(np.array(example["weights"]), cmap="Blues", vmin=0, aspect="auto")
    left.set_xticks(
        range(len(example["source"])), [_plain(word) for word in example["source"]], rotation=60, ha="right"
    )
    left.set_yticks(range(len(example["target"])), example["target"])
    left.set_title("last layer, mean of its heads")
    figure.colorbar(image, ax=left, label="attention weight", location="bottom")
    found = measured["errors"]["German"]
    names = [name for name in found if name.endswith(", writing")]
    labels = [name.removesuffix(", writing") for name in names]
    for offset, when in ((-0.2, "writing"), (0.2, "having written")):
        right.barh(
            [place + offset for place in range(len(names))],
            [found[f"{label}, {when}"] for label in labels],
            height=0.4,
            label=f"step {when} the word",
        )
    right.set_yticks(range(len(names)), labels)
    right.invert_yaxis()
    right.axvline(found["diagonal"], linestyle="--", color="grey", label="diagonal")
    right.set_xlabel("alignment error rate, English to German")
    figure.legend(loc="outside lower right", ncols=3)


def _plain(word: str) -> str:
    return word.replace("$", r"\$")


CLAIM = Claim(
    name="alignment",
    title="Alignment comes for free",
    statement="Attention is a soft alignment of target and source words, learned because translation needs it "
    "(Bahdanau et al. 2015).",
    experiment="The model of the preset `demo` (800 steps; partners of nouns and adjectives by the grammar's "
    "lexicon) and one that reverses letters, neither trained on alignments. A word is aligned to the source "
    "word with the largest cross-attention weight, at the decode step that predicts it or the next one; the "
    "alignment error rate (Och and Ney 2003) is the share of wrong links.",
    measure=measure,
    judge=judge,
    draw=draw,
    size=(9.0, 4.6),
)
