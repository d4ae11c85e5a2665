"""Vectors of one word in two contexts, from served encoders."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from glossa.client import Client
from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.corpora import schedule, small
from lectures.lab import Training
from lectures.served import client_of
from model.architecture_config import model_config
from model.corpus.senses import CROSSED, SUBJECTS, WORD, Sentence, crossing, sentences
from model.training.data.examples import Examples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

GAP = 0.2  # minimum difference of the mean cosines within a sense and between the senses
ROUNDING = 1e-5  # of a cosine
MODELS = {
    "before": "untrained",
    "translation": "of a translation model",
    "labels": "of a model that labels the word",
}


def measure(lab: Lab) -> Measured:
    """Cosines of the vectors of "bank" after each way to it, by model; largest difference from numpy's."""
    drawn, steps = sentences(1, lab.pick(4000, 400)), lab.pick(250, 10)
    train = schedule(steps, batch_tokens=1024, learning_rate=5e-3, warmup_steps=min(30, steps), validation_size=100)
    translating = Examples([(sentence.en, sentence.de) for sentence in drawn], "two senses of bank, translated")
    labelled = Examples([labelled_word(sentence) for sentence in drawn], "two senses of bank, labelled")
    encoder = {"architecture": "encoder", "head": "tokens", "d_model": 64, "d_ff": 256, "num_encoder_layers": 2}
    trainings = {
        "translation": Training(model=small(num_decoder_layers=1), train=train, data=translating),
        "labels": Training(model=model_config({**encoder, "max_source_len": 32}), train=train, data=labelled),
    }
    few = train.replace(steps=1, warmup_steps=10_000)  # which moves the weights by a ten-thousandth of the rate
    untrained = Training(model=trainings["labels"].model, train=few, data=labelled)
    trainings = lab.pick({"before": untrained, **trainings}, {"labels": trainings["labels"]})
    words = [*CROSSED["shore"], *CROSSED["money"]]
    texts = [crossing(SUBJECTS[0].en, word) for word in words]
    found: Measured = {"words": words, "cosines": {}, "difference": 0.0, "exact": {}}
    for name, result in lab.train(trainings).items():
        with client_of(result.model_checkpoint, texts) as client:
            vectors = [vector_in(client, text, WORD) for text in texts]
            found["cosines"][name] = client.similarity(vectors)
        metrics = result.model_checkpoint.metrics
        found["exact"][name] = metrics.get("exact_match", metrics.get("span_f1", 0.0))
        x_NM = np.array(vectors)
        x_NM /= np.linalg.norm(x_NM, axis=1, keepdims=True)
        difference = float(np.abs(x_NM @ x_NM.T - np.array(found["cosines"][name])).max())
        found["difference"] = max(found["difference"], difference)
    return found


def labelled_word(sentence: Sentence) -> tuple[str, str]:
    """The sentence, and the span of the word with its sense, as training data writes it."""
    start = sentence.en.index(WORD)
    return sentence.en, f"{start}:{start + len(WORD)}:{sentence.sense}"


def vector_in(client: Client, text: str, word: str) -> list[float]:
    """The vector of a word that occurs once in a text."""
    start = text.index(word)
    (token,) = client.embed_tokens(text, spans=[(start, start + len(word))])
    return list(token.values)


def by_sense(cosines: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """The cosines of pairs of contexts within a sense, and between the senses."""
    first = len(CROSSED["shore"])
    pairs = list(itertools.combinations(range(len(cosines)), 2))
    within = [cosines[one][other] for one, other in pairs if (one < first) == (other < first)]
    between = [cosines[one][other] for one, other in pairs if (one < first) != (other < first)]
    return within, between


def judge(measured: Measured) -> Finding:
    rows, gaps, words = [], {}, measured["words"]
    street, river, road = (words.index(word) for word in ("street", "river", "road"))
    for name, cosines in measured["cosines"].items():
        within, between = by_sense(cosines)
        gaps[name] = round(float(np.mean(within) - np.mean(between)), 2) + 0.0  # not -0.0
        pair = cosines[river][street], cosines[road][street]
        means = float(np.mean(within)), float(np.mean(between))
        rows.append((MODELS[name], *(f"{value:.2f}" for value in (*pair, *means))))
    before, translated = (gaps.get(name, 0.0) for name in ("before", "translation"))  # not in a smoke test
    labels, exact = measured["cosines"]["labels"], measured["exact"]
    return Finding(
        verdict=verdict_of([translated > GAP, gaps["labels"] > GAP, measured["difference"] < ROUNDING]),
        explanation="Where the loss asks for the sense at the word, its vectors tell the senses apart: “river” and "
        f"“street” give a cosine of {labels[river][street]:.2f}, “road” and “street” {labels[road][street]:.2f}. "
        f"The translation model translates {exact.get('translation', 0.0):.0%} of its validation sentences exactly, "
        f"“bank” included, with a gap between the senses of {translated:+.2f} (untrained: {before:+.2f}): its "
        "decoder can attend to the word that decides the sense instead. The server's cosines are those of numpy to "
        f"{measured['difference']:.0e}.",
        header=("vectors of “bank”", "river and street", "road and street", "same sense, mean", "other sense, mean"),
        rows=rows,
    )


def draw(measured: Measured, figure: Figure) -> None:
    words = measured["words"]
    found = measured["cosines"]
    for place, (name, cosines) in zip(np.atleast_1d(figure.subplots(1, len(found))), found.items(), strict=True):
        image = place.imshow(np.array(cosines), vmin=-1, vmax=1, cmap="RdBu")
        place.set_xticks(range(len(words)), words, rotation=60, ha="right")
        place.set_yticks(range(len(words)), words)
        place.set_title(MODELS[name])
    figure.colorbar(image, ax=figure.axes, label=f"cosine of the vectors of “{WORD}”")


CLAIM = Claim(
    name="senses",
    title="A word has a vector for each context",
    statement="“I arrived at the bank after crossing the river” and “… the street”: a table of word vectors "
    "has one vector of “bank”; self-attention mixes the context in (Peters et al. 2018, Devlin et al. 2019).",
    experiment="Two models of d_model 64 on generated sentences about both kinds of banks, 250 steps each: an "
    "encoder of two layers that labels the word with its sense, and a translation model, 2 + 1 layers, which "
    "writes “Ufer” or “Bank”. `Similarity` compares the vectors of “bank” for five words of each sense.",
    measure=measure,
    judge=judge,
    draw=draw,
    size=(10.0, 3.6),
)
