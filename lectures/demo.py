"""The two small models whose attention is looked at, and the sentences with which that is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lectures.corpora import reversals, schedule, small, translations, unseen_translations
from lectures.lab import Training
from lectures.watching import Weights, watch
from lectures.words import links
from model.checkpoint import Checkpoint
from model.presets import PRESETS
from model.transformer import EncoderDecoder

if TYPE_CHECKING:
    from lectures.lab import Lab

LETTERS = 12


class Sentence(NamedTuple):
    """What a model does with a source and its right answer. true_links: (target place, source place)."""

    source: list[str]
    target: list[str]
    weights: Weights
    true_links: list[tuple[int, int]]


class Models(NamedTuple):
    """Neither ever sees an alignment."""

    translator: Checkpoint  # that of `glossa demo`
    reverser: Checkpoint  # writes letters backwards: which letter is which is known


def trained(lab: Lab) -> Models:
    """Both, trained side by side for fixed numbers of steps, the longer one for two minutes on one core."""
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
    """Sentences of the grammar with a combination of words that was never trained."""
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
    assert isinstance(model, EncoderDecoder)
    source_ids, target_ids = tokenizer.encode(source), tokenizer.encode(target)
    template = model.config.template
    weights = watch(model, template.wrap_source(source_ids), template.wrap_prompt(target_ids))
    return Sentence(_words(checkpoint, source), _words(checkpoint, target), weights, true_links)
