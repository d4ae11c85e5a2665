"""The training texts of the claims, drawn from the embedded grammar or from short rules."""

from __future__ import annotations

import random

from model.architecture_config import model_config
from model.config import ModelConfig, TrainConfig
from model.corpus import corpus
from model.training.data.examples import Examples

PLAIN = {"label_smoothing": 0.0, "average_checkpoints": 1, "tokenizer": "words", "vocab_size": 4000}
"""Fields of a TrainConfig: the training loss is the one that is reported, and the last weights are not averaged."""


def schedule(steps: int, **changes: object) -> TrainConfig:
    """A configuration of `steps` steps with eight validations, saved only at the end."""
    values = {**PLAIN, "steps": steps, "save_every_steps": steps, "validate_every_steps": max(1, steps // 8), **changes}
    return TrainConfig.from_json(values)


def small(**changes: object) -> ModelConfig:
    """An encoder-decoder of 2 + 2 layers, d_model 64."""
    shape = {
        "d_model": 64,
        "num_heads": 4,
        "d_ff": 256,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "max_source_len": 64,
        "max_target_len": 64,
    }
    return model_config({**shape, **changes})


def translations(count: int) -> Examples:
    return Examples(corpus.pairs(1, count, "train"), "embedded scene grammar")


def unseen_translations(count: int) -> Examples:
    """Sentences with one combination of words each that no training sentence has."""
    return Examples(corpus.pairs(2, count, "test"), "embedded scene grammar, unseen")


def scenes(count: int, *, seed: int = 1) -> Examples:
    """Scenes of the grammar, one text each."""
    return Examples([("", text) for text in corpus.scenes(seed, count, "train")], f"embedded scenes, seed {seed}")


def endless_scenes(count: int, *, seed: int = 1) -> Examples:
    """One text of consecutive scenes."""
    return Examples([("", "\n".join(corpus.scenes(seed, count, "train")))], f"embedded scenes in a row, seed {seed}")


def reversals(count: int, *, seed: int, longest: int = 12) -> Examples:
    """Strings of letters and their reversals."""
    rng, pairs = random.Random(seed), []
    for _ in range(count):
        letters = rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, longest))
        pairs.append((" ".join(letters), " ".join(reversed(letters))))
    return Examples(pairs, f"letters backwards, seed {seed}")
