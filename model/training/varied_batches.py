"""Batches whose texts are segmented anew in every epoch (`bpe_dropout`). Keys are numbered across epochs, so that a key
identifies its epoch.

A plan needs the lengths of all texts, and `load` draws those of its batch again: drawing is fast, and ids of an epoch
would take as much memory as those of the ordinary segmentation. `dropped` and `tokens` count by the latter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from model.config import ModelConfig, TrainConfig
from model.tokenizer import Tokenizer
from model.training.bpe_dropout import BPEDropout
from model.training.data import Batch, Batches, Examples, Pair, PairBatches, StreamBatches, bucketed

EPOCH = 1 << 40  # of the keys of windows: more tokens than a text has


class VariedPairBatches(PairBatches):
    """Batches of sentences. One that its new segmentation makes too long keeps the ordinary one in this epoch."""

    def __init__(
        self, dropout: BPEDropout, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig
    ) -> None:
        super().__init__(examples, tokenizer, model, train)
        self._dropout = dropout
        self._targets = dropout.words([target for _, target in examples.pairs])
        self._sources = dropout.words([source for source, _ in examples.pairs]) if model.has_encoder else self._targets

    def plan(self, epoch: int) -> list[list[int]]:
        pairs = (self._varied(epoch, number) for number in range(len(self._pairs)))
        lengths = [(len(target), len(source)) for source, target in pairs]
        batches = bucketed(lengths, budget=self._budget, seed=self._seed, epoch=epoch)
        return [[epoch * len(lengths) + number for number in batch] for batch in batches]

    def load(self, keys: Sequence[int]) -> Batch:
        return self._batch([self._varied(*divmod(key, len(self._pairs))) for key in keys])

    def _varied(self, epoch: int, number: int) -> Pair:
        """An example in an epoch. A sentence is the same in all examples of an epoch that it is in."""
        window, ids = self._windows[number], self._dropout.ids
        places = range(window.start, window.stop)
        targets = [ids(self._targets[place], "target", epoch, place) for place in places]
        has_source = self._model.has_encoder
        sources = [ids(self._sources[place], "source", epoch, place) for place in places] if has_source else targets
        return self._pair(sources, targets) or self._pairs[number]


class VariedStreamBatches(StreamBatches):
    """Windows of long texts. The ids of two epochs are kept, as the batches of a step may be of both."""

    def __init__(
        self, dropout: BPEDropout, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig
    ) -> None:
        super().__init__(examples, tokenizer, model, train)
        self._dropout, self._texts = dropout, dropout.words([text for _, text in examples.pairs])
        self._drawn: dict[int, Tensor] = {}

    def plan(self, epoch: int) -> list[list[int]]:
        batches = self._plan(epoch, len(self._varied(epoch)))
        return [[epoch * EPOCH + start for start in batch] for batch in batches]

    def load(self, keys: Sequence[int]) -> Batch:
        places = [divmod(key, EPOCH) for key in keys]
        return self._batch(torch.stack([self._varied(epoch)[start : start + self._window] for epoch, start in places]))

    def _varied(self, epoch: int) -> Tensor:
        """The ids of all texts in an epoch; those of the ordinary segmentation if they do not fill a window."""
        if epoch not in self._drawn:
            texts = (self._dropout.ids(words, "text", epoch, place) for place, words in enumerate(self._texts))
            ids = torch.tensor([token for text in texts for token in text])
            if len(self._drawn) == 2:
                del self._drawn[min(self._drawn)]
            self._drawn[epoch] = ids if len(ids) >= self._window else self._ids
        return self._drawn[epoch]


def varied_batches(
    dropout: BPEDropout, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig
) -> Batches:
    """The batches of a model with a decoder: `data.batches_of` with another segmentation in every epoch."""
    make = VariedStreamBatches if train.documents == "stream" else VariedPairBatches
    return make(dropout, examples, tokenizer, model, train)
