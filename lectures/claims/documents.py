"""Perplexity and ROUGE-L of summaries of articles, by architecture and context length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.lab import Training
from lectures.rouge import rouge_l
from model.architectures import SourceModel
from model.checkpoints.checkpoint import Checkpoint
from model.corpus.articles import (
    GOODS,
    KINGS,
    MARK,
    READ_BY_ENDS,
    READ_BY_HALVES,
    SENTENCE,
    SUMMARY_WORDS,
    TOWNS,
    WORDS,
    YEARS,
)
from model.mixture_of_experts import ExpertFeedForward
from model.presets import PRESETS
from model.training.data.embedded import embedded_examples, unseen_examples
from model.training.data.examples import Examples, PairBatches
from model.training.evaluate import greedy_batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

NAMES = {
    "articles-recurrent": "LSTM with attention",
    "articles-encoder-decoder": "Transformer, encoder-decoder",
    "articles-decoder": "Transformer, decoder-only",
    "articles-compressed": "the same, every second layer compressed",
    "articles-experts": "the same with 8 experts",
}
"""By preset, in the order of the claim, worst first."""
READS = {"article-ends": READ_BY_ENDS, "article-halves": READ_BY_HALVES, "articles": WORDS}
"""Words that a model reads, by the corpus of its preset."""
PUBLISHED = {
    "articles-recurrent": (5.05, 12.7),
    "articles-encoder-decoder": (2.47, 34.2),
    "articles-decoder": (2.22, 33.6),
    "articles-compressed": (2.05, 36.2),
    "articles-experts": (1.93, 37.9),
}
"""Perplexity and ROUGE-L of Liu et al. 2018, table 4; the last with 128 experts."""
KINDS = ("town", "good", "king")
UNSEEN = 400  # articles
FOUND = 0.1  # most nats of a good above the least possible ones of a model that finds what it reads
CLEAR, CLEAR_ROUGE = 1.02, 1.0  # minimum ratio of perplexities, and difference of ROUGE-L, that count


def measure(lab: Lab) -> Measured:
    """Perplexity of the summary, nats by kind of word, ROUGE-L of greedy summaries (0 to 100, mean of the articles),
    training seconds and parameters, by model; the share of tokens by expert, of each layer."""
    runs = {}
    for name in NAMES:
        preset = PRESETS[name]
        train = lab.pick(preset.train, preset.train.replace(steps=4, validation_size=20))
        runs[name] = Training(
            model=preset.model, train=train, data=embedded_examples(preset.embedded, lab.pick(None, 300))
        )
    found: dict[str, Any] = {
        figure: {} for figure in ("perplexity", "rouge", "nats", "seconds_of_training", "parameters")
    }
    for name, result in lab.train(runs).items():
        checkpoint, unseen = result.model_checkpoint, unseen_examples(runs[name].data.name, lab.pick(UNSEEN, 20))
        assert unseen is not None, name
        nats_NT = target_nats(checkpoint, unseen)
        found["perplexity"][name] = float(nats_NT.mean().exp())
        found["nats"][name] = {kind: float(nats_NT[:, place:-1:3].mean()) for place, kind in enumerate(KINDS)}
        found["rouge"][name] = mean_rouge(summaries(checkpoint, unseen), unseen)
        found["seconds_of_training"][name] = checkpoint.metrics["seconds"]
        found["parameters"][name] = sum(parameter.numel() for parameter in checkpoint.model.parameters())
        if checkpoint.model.config.num_experts:
            found["load"] = load_of_experts(checkpoint, unseen)
    return found


@torch.inference_mode()
def target_nats(checkpoint: Checkpoint, unseen: Examples) -> Tensor:
    """Negative log-likelihood of each token of each summary, end token included: float32 (N, T)."""
    model, train = checkpoint.model, PRESETS["articles-compressed"].train
    batches = PairBatches(unseen, checkpoint.tokenizer, model.config, train)
    assert batches.dropped == 0
    found = []
    for keys in batches.plan(0):
        batch = batches.load(keys)
        sources = (batch.source_BS, batch.lengths_B) if isinstance(model, SourceModel) else ()
        states_BTM = model(*sources, batch.input_BT)[:, -SUMMARY_WORDS - 1 :]  # all texts are of one length
        targets_BT = batch.target_BT[:, -SUMMARY_WORDS - 1 :]
        logits_BVT = model.decoder.unembedding(states_BTM).mT
        found.append(torch.nn.functional.cross_entropy(logits_BVT, targets_BT, reduction="none"))
    return torch.cat(found)


def summaries(checkpoint: Checkpoint, unseen: Examples) -> list[str]:
    """Greedy summaries of the articles, as the trainer's own scores decode."""
    model, tokenizer, template = checkpoint.model, checkpoint.tokenizer, checkpoint.model.config.template
    if isinstance(model, SourceModel):
        sources = [template.wrap_source(tokenizer.encode(source)) for source, _ in unseen.pairs]
        prompts = [template.wrap_prompt() for _ in unseen.pairs]
    else:
        sources = []
        prompts = [template.wrap_prompt(tokenizer.encode(article_of(text))) for _, text in unseen.pairs]
    answers = greedy_batch(model, prompts, sources=sources, max_tokens=SUMMARY_WORDS + 1)
    return [tokenizer.decode(answer) for answer in answers]


def article_of(text: str) -> str:
    """The part of a text that is the prompt: an article and the mark."""
    return text[: text.index(f" {MARK} ") + 2]


def mean_rouge(written: Sequence[str], unseen: Examples) -> float:
    """The mean of the articles' ROUGE-L, 0 to 100."""
    references = [text if source else text.removeprefix(article_of(text)) for source, text in unseen.pairs]
    scores = [rouge_l(summary, reference) for summary, reference in zip(written, references, strict=True)]
    return 100 * sum(scores) / len(scores)


@torch.inference_mode()
def load_of_experts(checkpoint: Checkpoint, unseen: Examples) -> list[list[float]]:
    """The share of the tokens of articles and summaries that each expert is sent, of each layer."""
    model = checkpoint.model
    layers = [module for module in model.modules() if isinstance(module, ExpertFeedForward)]
    counts_LX = torch.zeros(len(layers), model.config.num_experts)

    def count(layer: int, logits_NX: Tensor) -> None:
        counts_LX[layer] += torch.bincount(logits_NX.argmax(-1), minlength=counts_LX.shape[1])

    hooks = [
        layer.router.register_forward_hook(lambda _module, _inputs, logits_NX, place=place: count(place, logits_NX))
        for place, layer in enumerate(layers)
    ]
    target_nats(checkpoint, unseen)
    for hook in hooks:
        hook.remove()
    shares: list[list[float]] = (counts_LX / counts_LX.sum(-1, keepdim=True)).tolist()
    return shares


def least_nats(name: str) -> float:
    """Per good, of a model that knows the goods of all facts that it reads and can only guess the others."""
    return (1 - READS[PRESETS[name].embedded] / WORDS) * math.log(GOODS)


def judge(measured: Measured) -> Finding:
    perplexity, rouge, nats = (measured[figure] for figure in ("perplexity", "rouge", "nats"))
    lower, higher, expected, broken = [], [], [], []
    for worse, better in itertools.pairwise(NAMES):
        lower.append(perplexity[worse] > CLEAR * perplexity[better])
        higher.append(rouge[better] > rouge[worse] + CLEAR_ROUGE)
        if not lower[-1]:
            broken.append(f"{NAMES[better]} has no lower perplexity than {NAMES[worse]}")
        if PUBLISHED[better][1] > PUBLISHED[worse][1]:  # in all steps but one
            expected.append(higher[-1])
            if not higher[-1]:
                broken.append(f"{NAMES[better]} has no higher ROUGE-L than {NAMES[worse]}")
    return Finding(
        verdict=verdict_of([*lower, *expected]),
        explanation=f"Of {len(lower)} steps {sum(lower)} lower the perplexity by more than {CLEAR - 1:.0%} and "
        f"{sum(higher)} raise ROUGE-L by more than {CLEAR_ROUGE:.0f} point"
        + (f"; {'; '.join(broken)}. " if broken else ". ")
        + reasons(nats, measured["load"]),
        header=(
            "model",
            "words read",
            "parameters",
            "training seconds",
            "perplexity",
            "ROUGE-L",
            "of Liu et al.",
            "nats of a good",
            "nats of a king",
        ),
        rows=[
            (
                NAMES[name],
                str(READS[PRESETS[name].embedded]),
                f"{measured['parameters'][name]:,}",
                f"{measured['seconds_of_training'][name]:.0f}",
                f"{perplexity[name]:.2f}",
                f"{rouge[name]:.1f}",
                "{:.2f}, {:.1f}".format(*PUBLISHED[name]),
                f"{nats[name]['good']:.2f}",
                f"{nats[name]['king']:.2f}",
            )
            for name in NAMES
        ],
    )


def reasons(nats: Mapping[str, Mapping[str, float]], load: Sequence[Sequence[float]]) -> str:
    """What the nats by kind of word show of reach and capacity."""
    slow = [NAMES[name] for name in NAMES if nats[name]["good"] > least_nats(name) + FOUND]
    return (
        "As in the original table, the models differ in input length, too. Goods measure reach, kings capacity. "
        + (f"Still learning to find the goods that it reads: {', '.join(slow)}. " if slow else "")
        + f"With experts a king takes {nats['articles-experts']['king']:.2f} nats instead of "
        f"{nats['articles-compressed']['king']:.2f}; the busiest of them is sent {max(map(max, load)):.0%} of the "
        "tokens of its layer."
    )


def draw(measured: Measured, figure: Figure) -> None:
    names = [f"{NAMES[name]}, {READS[PRESETS[name].embedded]} words" for name in NAMES]
    panels = (
        ("perplexity", "%.2f", "perplexity of a summary's token"),
        ("rouge", "%.1f", "ROUGE-L of greedy summaries"),
    )
    for axes, (key, digits, label) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
        bars = axes.barh(range(len(NAMES)), [measured[key][name] for name in NAMES], color="tab:blue")
        axes.bar_label(bars, fmt=digits, padding=3)
        axes.margins(x=0.15)
        axes.set_xlabel(label)
    axes.set_yticks(range(len(NAMES)), names)
    axes.invert_yaxis()


CLAIM = Claim(
    name="documents",
    title="Longer reach and more capacity write better documents",
    statement="On generated encyclopedia articles perplexity falls from a recurrent model with attention to "
    "an encoder-decoder Transformer (500 input tokens each), a decoder-only one (4,000), one with "
    "memory-compressed attention (11,000), and the same with experts; ROUGE-L rises with each step but that "
    "to the decoder-only one (Liu et al. 2018, table 4).",
    experiment=f"Articles of {WORDS} words have a sentence of {SENTENCE} for each of {TOWNS} towns, in any "
    f"order, on what it trades in (one of {GOODS} goods), and end with a year. The summary names town by town "
    f"the good and, what only the whole corpus reveals, the king of such a town in this year: one of {KINGS} "
    f"for each of {TOWNS * GOODS * YEARS:,} combinations. The presets `articles-…`, "
    f"{PRESETS['articles-experts'].train.steps:,} steps of 32 articles, read the last {READ_BY_ENDS} words "
    f"(with an encoder), {READ_BY_HALVES} (decoder-only) or all (compressed). ROUGE-L (Lin 2004) of greedy "
    f"summaries of {UNSEEN} unseen articles.",
    measure=measure,
    judge=judge,
    draw=draw,
    size=(9.0, 2.6),
)
