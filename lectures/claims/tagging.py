"""Token classification: a tagger trained, exported and served, scored by spans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.lab import Training
from lectures.served import client_of
from model.corpus.entities import LABELS, entities
from model.presets import PRESETS
from model.tokenizer import Tokenizer
from model.training.data.examples import Examples
from model.training.data.labelled_spans import (
    LabelledSpan,
    found_spans,
    read_spans,
    span_scores,
    spans_of,
    word_labels,
    word_places,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

GOOD = 0.95  # F1 of exactly found spans


def measure(lab: Lab) -> Measured:
    """Scores of the served tagger on unseen scenes, by label; and of a lookup of words seen in training."""
    preset, steps = PRESETS["scene-entities"], lab.pick(800, 20)
    train = preset.train.replace(
        minutes=0, steps=steps, average_checkpoints=1, save_every_steps=steps, validate_every_steps=steps
    )
    seen = entities(1, lab.pick(20_000, 400), "train")
    training = Training(model=preset.model, train=train, data=Examples(seen, "scenes with entities"))
    checkpoint = lab.train({"tagger": training})["tagger"].model_checkpoint
    unseen = entities(2, lab.pick(300, 10), "test")
    texts = [text for text, _ in unseen]
    expected = [read_spans(written, text) for text, written in unseen]
    with client_of(checkpoint, texts[:20]) as client:
        answers = [client.tag(text).spans for text in texts]
    served = [[LabelledSpan(*answer.span, answer.label) for answer in answer_spans] for answer_spans in answers]
    lookup = looked_up(checkpoint.tokenizer, seen, texts)
    scores = {"all": span_scores(served, expected), "lookup": span_scores(lookup, expected)}
    for label in LABELS:
        mine, theirs = (
            [[span for span in text if span.label == label] for text in found] for found in (served, expected)
        )
        scores[label] = span_scores(mine, theirs)
    example = min(range(len(texts)), key=lambda place: abs(len(texts[place]) - 90))
    return {
        "texts": len(texts),
        "spans": {label: sum(span.label == label for text in expected for span in text) for label in LABELS},
        "scores": {name: found._asdict() for name, found in scores.items()},
        "same_as_checkpoint": served == found_spans(checkpoint.model, checkpoint.tokenizer, texts),
        "probability": float(np.mean([span.probability for text in answers for span in text] or [0.0])),
        "example": {
            "text": texts[example],
            "spans": [[*span.span, span.label, span.probability] for span in answers[example]],
        },
    }


def looked_up(tokenizer: Tokenizer, seen: Sequence[tuple[str, str]], texts: Sequence[str]) -> list[list[LabelledSpan]]:
    """The spans if each word has the label that it has most often in the training data, whatever its neighbours."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text, written in seen:
        places = {token: (start, end) for token, start, end in word_places(tokenizer, text)}
        for token, label in word_labels(tokenizer, text, read_spans(written, text)).items():
            counts[text[slice(*places[token])].lower()][label] += 1
    best = {word: labels.most_common(1)[0][0] for word, labels in counts.items()}
    found = []
    for text in texts:
        words = word_places(tokenizer, text)
        found.append(spans_of([best.get(text[start:end].lower(), "O") for _, start, end in words], words))
    return found


def judge(measured: Measured) -> Finding:
    scores, example = measured["scores"], measured["example"]
    found = ", ".join(f"{example['text'][start:end]} ({label})" for start, end, label, _ in example["spans"])
    names = {"all": "all spans", **{label: label for label in LABELS}, "lookup": "all spans, most frequent label"}
    held = [scores["all"]["f1"] > GOOD, scores["all"]["f1"] > scores["lookup"]["f1"], measured["same_as_checkpoint"]]
    return Finding(
        verdict=verdict_of(held),
        explanation=f"On {measured['texts']} scenes with unseen combinations of words the served model finds spans "
        f"with an F1 of {scores['all']['f1']:.3f}, the most frequent label of each word "
        f"{scores['lookup']['f1']:.3f}: whether an adjective begins a span depends on the noun after it. The "
        f"server's spans are {'exactly' if measured['same_as_checkpoint'] else 'not'} those of the checkpoint in "
        f"PyTorch. In “{example['text']}” it finds {found or 'nothing'}.",
        header=("spans", "in the scenes", "precision", "recall", "F1"),
        rows=[
            (
                label,
                str(measured["spans"].get(name, sum(measured["spans"].values()))),
                *(f"{scores[name][figure]:.3f}" for figure in ("precision", "recall", "f1")),
            )
            for name, label in names.items()
        ],
    )


def draw(measured: Measured, figure: Figure) -> None:
    axes, names = figure.subplots(), ["lookup", *LABELS, "all"]
    bars = axes.barh(range(len(names)), [measured["scores"][name]["f1"] for name in names], color="tab:blue")
    axes.bar_label(bars, fmt="%.3f", padding=3)
    axes.set_yticks(range(len(names)), ["most frequent label, all", *LABELS, "all"])
    axes.set(xlabel="F1 of exactly found spans", xlim=(0, 1.1))


CLAIM = Claim(
    name="tagging",
    title="Every token can have a label",
    statement="An encoder returns a state for each token that depends on the whole text; a linear layer over "
    "each labels the tokens (Devlin et al. 2019, section 5.3).",
    experiment="The preset `scene-entities`, 800 steps: people, animals and places in scenes, each with the "
    "adjective before it. A span of `Tag` counts if its ends and its label are right. Baseline: each word's "
    "most frequent label.",
    measure=measure,
    judge=judge,
    draw=draw,
    size=(9.0, 2.8),
)
