"""The two small models whose attention the claims examine, and their sentences with known word alignments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from export.verification.torch_reference import TorchReference
from lectures.corpora import reversals, schedule, small, translations, unseen_translations
from lectures.lab import Training
from lectures.words import links
from model.checkpoints.checkpoint import Checkpoint
from model.presets import PRESETS

if TYPE_CHECKING:
    from lectures.lab import Lab

LETTERS = 12


class Sentence(NamedTuple):
    """A source, its correct translation, and the attention of a model that reads both."""

    source: list[str]
    target: list[str]
    weights: dict[str, np.ndarray[Any, Any]]  # (layers, heads, queries, keys) by "encoder", "decoder" and "cross"
    true_links: list[tuple[int, int]]  # (target place, source place)


class Models(NamedTuple):
    """Neither is trained on alignments."""

    translator: Checkpoint  # the model of the preset `demo`
    reverser: Checkpoint  # reverses strings of letters, so that every alignment is known


def trained(lab: Lab) -> Models:
    """Both models, trained concurrently for fixed numbers of steps, the longer one for two minutes on one core."""
    preset = PRESETS["demo"]
    steps = lab.pick(800, 4)
    changes = {"average_checkpoints": 1, "save_every_steps": steps, "validate_every_steps": max(1, steps // 8)}
    translating = Training(
        model=preset.model,
        train=preset.train.replace(minutes=0, steps=steps, **changes),
        data=translations(lab.pick(60_000, 400)),
    )
    reversing = Training(
        model=small(),
        train=schedule(lab.pick(600, 4), batch_tokens=1024, learning_rate=5e-3, warmup_steps=50, validation_size=200),
        data=reversals(lab.pick(20_000, 300), seed=1, longest=LETTERS),
    )
    both = lab.train({"translator": translating, "reverser": reversing})
    return Models(both["translator"].model_checkpoint, both["reverser"].model_checkpoint)


def translated(checkpoint: Checkpoint, count: int) -> list[Sentence]:
    """Sentences of the grammar with a combination of words that is not in the training data."""
    return [
        _sentence(checkpoint, english, german, links(_words(checkpoint, english), _words(checkpoint, german)))
        for english, german in unseen_translations(count).pairs
    ]


def reversed_letters(checkpoint: Checkpoint, count: int) -> list[Sentence]:
    found = []
    for source, target in reversals(count, seed=2, longest=LETTERS).pairs:
        last = len(source.split()) - 1
        found.append(_sentence(checkpoint, source, target, [(place, last - place) for place in range(last + 1)]))
    return found


def _words(checkpoint: Checkpoint, text: str) -> list[str]:
    tokenizer = checkpoint.tokenizer
    return [tokenizer.pieces[token].decode().strip() for token in tokenizer.encode(text)]


def _sentence(checkpoint: Checkpoint, source: str, target: str, true_links: list[tuple[int, int]]) -> Sentence:
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    source_ids, target_ids = tokenizer.encode(source), tokenizer.encode(target)
    template = model.config.template
    read = tuple(template.wrap_source(source_ids)), tuple(template.wrap_prompt(target_ids))
    weights = TorchReference(model).every_attention(*read)
    by_part = {name.removesuffix("_attention"): array for name, array in weights.items()}
    return Sentence(_words(checkpoint, source), _words(checkpoint, target), by_part, true_links)
