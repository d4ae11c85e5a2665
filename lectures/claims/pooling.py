"""The attention-pooling classifier of the lectures: no encoder layer, one label, a sigmoid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from glossa.client.types import Classification
from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.lab import Training
from lectures.served import client_of
from model.checkpoints.checkpoint import Checkpoint
from model.corpus.entities import animals, spans
from model.corpus.lexicon import ANIMALS
from model.presets import PRESETS
from model.training.data.examples import Examples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

GOOD, ROUNDING = 0.95, 1e-5  # accuracy; largest difference of a probability, float32 against float64
TIMES = 2.0  # the mean weight of the other words, and the even share: what even weights never reach
SHOWN = 14  # words at most of the text that is plotted


def measure(lab: Lab) -> Measured:
    """Answers of the server on unseen scenes, compared with the formula in float64."""
    preset, steps = PRESETS["scene-animals"], lab.pick(300, 20)
    train = preset.train.replace(steps=steps, average_checkpoints=1, save_every_steps=steps, validate_every_steps=steps)
    data = Examples(animals(1, lab.pick(20_000, 600), "train"), "scenes with and without animals")
    training = Training(model=preset.model, train=train, data=data)
    checkpoint = lab.train({"pooling": training})["pooling"].model_checkpoint
    unseen = animals(2, lab.pick(500, 20), "test")
    with client_of(checkpoint, [text for text, _ in unseen[:20]]) as client:
        answers = [client.classify(text, token_weights=True) for text, _ in unseen]
    found = [compared(checkpoint, text, answer) for (text, _), answer in zip(unseen, answers, strict=True)]
    probabilities = np.array([answer.labels[0].probability for answer in answers])
    labels = np.array([label == "animal" for _, label in unseen])
    with_animal = [row for row, label in zip(found, labels, strict=True) if label]
    shown = min((place for place, label in enumerate(labels) if label), key=lambda place: len(unseen[place][0]))
    return {
        "texts": len(unseen),
        "accuracy": float(np.mean((probabilities > 0.5) == labels)),
        "majority": float(max(labels.mean(), 1 - labels.mean())),
        "uniform": float(np.mean([row["uniform"] > 0.5 for row in found] == labels)),
        "difference": max(row["difference"] for row in found),
        "above": float(np.mean([row["is_above"] for row in with_animal])),
        "ratio": max(row["ratio"] for row in found),
        "weight": {name: float(np.mean([row[name] for row in with_animal])) for name in ("on_animals", "even_share")},
        "emphasized": emphasized(checkpoint),
        "parameters": sum(parameter.numel() for parameter in checkpoint.model.parameters()),
        "example": {
            "words": [unseen[shown][0][slice(*token.span)].strip() for token in answers[shown].token_weights][:SHOWN],
            "weights": [token.weight for token in answers[shown].token_weights][:SHOWN],
        },
    }


def compared(checkpoint: Checkpoint, text: str, answer: Classification) -> dict[str, Any]:
    """An answer beside sigmoid(W_y a + b), a = softmax(tanh(x W_s)) x, in float64; and where its weight is."""
    values = {name: tensor.double().numpy() for name, tensor in checkpoint.model.state_dict().items()}
    label_1M, bias_1 = values["attention.label.weight"], values["attention.label.bias"]
    x_SM = values["encoder.embedding.tokens.weight"][checkpoint.tokenizer.encode(text)]
    powers_S = np.exp(np.tanh(x_SM @ values["attention.score.weight"][0]))
    weights_S = powers_S / powers_S.sum()
    expected, uniform = (sigmoid(float(label_1M[0] @ mixed + bias_1[0])) for mixed in (weights_S @ x_SM, x_SM.mean(0)))
    served_S = np.array([token.weight for token in answer.token_weights])
    in_animal = [
        start <= token.span[1] - 1 < end for token in answer.token_weights for start, end in animal_spans(text)
    ]
    places = np.array(in_animal, bool).reshape(len(served_S), -1).any(1)
    others = served_S[~places].mean()
    return {
        "difference": max(abs(answer.labels[0].probability - expected), float(np.abs(served_S - weights_S).max())),
        "uniform": uniform,
        "is_above": bool((served_S[places] > TIMES * others).all()),
        "ratio": float(served_S.max() / served_S.min()),
        "on_animals": float(served_S[places].sum()),
        "even_share": float(places.mean()),
    }


def emphasized(checkpoint: Checkpoint) -> list[str]:
    """The words of the vocabulary with a positive score, in descending order: those that get the large weights."""
    values = checkpoint.model.state_dict()
    scores_V = (values["encoder.embedding.tokens.weight"] @ values["attention.score.weight"][0]).tolist()
    best = sorted(range(len(scores_V)), key=lambda token: -scores_V[token])
    words = [(checkpoint.tokenizer.pieces[token].decode().strip(), scores_V[token]) for token in best]
    return [word for word, score in words if score > 0 and word.isalpha()]


def animal_spans(text: str) -> list[tuple[int, int]]:
    """The nouns alone: the span of an animal also covers an adjective before it."""
    found = [(start, end) for start, end, label in spans(text) if label == "animal"]
    return [(text.rfind(" ", start, end) + 1 or start, end) for start, end in found]


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def judge(measured: Measured) -> Finding:
    accuracy, uniform, weight = measured["accuracy"], measured["uniform"], measured["weight"]
    nouns = {form.lower() for noun in ANIMALS for form in (noun.en, noun.en_plural)}
    others = [word for word in measured["emphasized"] if word.lower() not in nouns]
    found = len(measured["emphasized"]) - len(others)
    held = [
        accuracy > GOOD,
        measured["difference"] < ROUNDING,
        measured["above"] > GOOD,
        weight["on_animals"] > TIMES * weight["even_share"],
    ]
    return Finding(
        verdict=verdict_of(held),
        explanation=f"The served model finds the animals of {accuracy:.1%} of {measured['texts']} unseen scenes, "
        f"with {measured['parameters']:,} parameters and without a layer. Its probabilities and weights are those of "
        f"the formula in float64 to {measured['difference']:.0e}. In {measured['above']:.1%} of the scenes with "
        f"animals each of them has more than {TIMES:g} times the mean weight of the other words. The score is positive "
        f"for {len(measured['emphasized'])} words: {found} of {len(nouns)} forms of animals, and {len(others)} others.",
        header=("classifier", "scenes right"),
        rows=[
            ("attention pooling, served", f"{accuracy:.1%}"),
            ("the same vectors, even weights", f"{uniform:.1%}"),
            ("the more frequent answer", f"{measured['majority']:.1%}"),
        ],
    )


def draw(measured: Measured, figure: Figure) -> None:
    axes = figure.subplots()
    words, weights = measured["example"]["words"], measured["example"]["weights"]
    axes.bar(range(len(words)), weights, color="tab:blue", label="weight of the word")
    axes.axhline(1 / len(words), linestyle="--", color="grey", label="even share")
    axes.set_xticks(range(len(words)), words, rotation=45, ha="right")
    axes.set_ylabel("attention weight")
    axes.legend()


CLAIM = Claim(
    name="pooling",
    title="A weighted sum of word vectors classifies",
    statement="Attention classifies: a word's score is tanh(x W), a softmax of the scores makes weights, a "
    "sigmoid of the weighted sum is the probability of the label. The weights show which words mattered "
    "(compare Yang et al. 2016).",
    experiment="The preset `scene-animals`: does an animal occur in a scene? Word vectors of 64 dimensions, "
    "no positions, norm or layer, 300 steps; `Classify` about 500 scenes with unseen combinations of words.",
    measure=measure,
    judge=judge,
    draw=draw,
)
