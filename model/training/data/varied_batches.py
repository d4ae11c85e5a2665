"""Batches whose texts are segmented anew in every epoch (`bpe_dropout`). Keys are numbered across epochs, so that a key
identifies its epoch. `dropped` and `tokens` count by the ordinary segmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from model.config import ModelConfig, TrainConfig
from model.tokenizer import Tokenizer
from model.training.data.bpe_dropout import BPEDropout, dropout_of
from model.training.data.encoder_data import encoder_batches
from model.training.data.examples import (
    Batch,
    Batches,
    Examples,
    Pair,
    PairBatches,
    StreamBatches,
    batches_of,
    bucketed,
    lengths_of,
)

T = TypeVar("T")
EPOCH = 1 << 40  # of the keys of windows: more tokens than a text has


class _Epochs(Generic[T]):
    """The draws of an epoch, kept for the newest two: the batches of a step may be of both."""

    def __init__(self, draw: Callable[[int], T]) -> None:
        self._draw, self._drawn = draw, dict[int, T]()

    def __getitem__(self, epoch: int) -> T:
        if epoch not in self._drawn:
            self._drawn = {known: self._drawn[known] for known in sorted(self._drawn)[-1:]}
            self._drawn[epoch] = self._draw(epoch)
        return self._drawn[epoch]


class VariedPairBatches(PairBatches):
    """Batches of sentences. One that its new segmentation makes too long keeps the ordinary one in this epoch."""

    def __init__(
        self, dropout: BPEDropout, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig
    ) -> None:
        super().__init__(examples, tokenizer, model, train)
        self._dropout = dropout
        self._targets = dropout.words([target for _, target in examples.pairs])
        self._sources = dropout.words([source for source, _ in examples.pairs]) if model.has_encoder else None
        self._epochs = _Epochs(self._segmented)

    def plan(self, epoch: int) -> list[list[int]]:
        lengths = lengths_of(self._epochs[epoch])
        batches = bucketed(lengths, budget=self._budget, seed=self._seed, epoch=epoch)
        return [[epoch * len(lengths) + number for number in batch] for batch in batches]

    def load(self, keys: Sequence[int]) -> Batch:
        drawn = [divmod(key, len(self._pairs)) for key in keys]
        return self._batch([self._epochs[epoch][number] for epoch, number in drawn])

    def _segmented(self, epoch: int) -> list[Pair]:
        """The examples of an epoch. A sentence is the same in all those that it is in."""
        ids = self._dropout.ids
        targets = [ids(words, "target", epoch, index) for index, words in enumerate(self._targets)]
        sources = targets
        if self._sources is not None:
            sources = [ids(words, "source", epoch, index) for index, words in enumerate(self._sources)]
        kept = zip(self._windows, self._pairs, strict=True)
        return [self._pair(window, sources, targets) or ordinary for window, ordinary in kept]


class VariedStreamBatches(StreamBatches):
    """Windows of long texts. The ids of two epochs are kept, as the batches of a step may be of both."""

    def __init__(
        self, dropout: BPEDropout, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig
    ) -> None:
        super().__init__(examples, tokenizer, model, train)
        self._dropout, self._texts = dropout, dropout.words([text for _, text in examples.pairs])
        self._epochs = _Epochs(self._segmented)

    def plan(self, epoch: int) -> list[list[int]]:
        return [[epoch * EPOCH + start for start in batch] for batch in self._plan(epoch, len(self._epochs[epoch]))]

    def load(self, keys: Sequence[int]) -> Batch:
        drawn = [divmod(key, EPOCH) for key in keys]
        return self._batch(torch.stack([self._epochs[epoch][start : start + self._window] for epoch, start in drawn]))

    def _segmented(self, epoch: int) -> Tensor:
        """The ids of all texts in an epoch; those of the ordinary segmentation if they do not fill a window."""
        texts = (self._dropout.ids(words, "text", epoch, index) for index, words in enumerate(self._texts))
        ids = torch.tensor([token for text in texts for token in text])
        return ids if len(ids) >= self._window else self._ids


def ordinary_batches(examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig) -> Batches:
    """The batches of any model, in the ordinary segmentation."""
    make = batches_of if model.has_decoder else encoder_batches
    return make(examples, tokenizer, model, train)


def training_batches(examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig) -> Batches:
    """The same for training: with `bpe_dropout` in another segmentation in every epoch. Raises ConfigError for a model
    or a tokenizer that has no BPE-dropout."""
    dropout = dropout_of(train, model, tokenizer)
    if dropout is None:
        return ordinary_batches(examples, tokenizer, model, train)
    return varied_batches(dropout, examples, tokenizer, model, train)


def varied_batches(
    dropout: BPEDropout, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig
) -> Batches:
    """The batches of a model with a decoder: `data.batches_of` with another segmentation in every epoch."""
    make = VariedStreamBatches if train.documents == "stream" else VariedPairBatches
    return make(dropout, examples, tokenizer, model, train)
