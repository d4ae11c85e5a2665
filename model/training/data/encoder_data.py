"""Texts → batches for encoder-only models: masked-language modelling, or classification of texts or tokens.

Masks are drawn anew in every epoch and depend only on (seed, epoch, text), so that a resumed run draws the same masks;
validation always uses those of epoch 0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from model.config import ModelConfig, TrainConfig
from model.tokenizer import Tokenizer
from model.training.data.examples import IGNORED, Batch, Batches, DataError, Examples, bucketed, pad
from model.training.data.labelled_spans import LabelledSpan, read_spans, word_labels

NEW_LABELS = "correct it, or train a new head with other labels (--head)"
NO_LABEL = "-"  # written for a text that has none of the labels of a multi-label model
UNLABELLED = -1  # its target
MASKED, REPLACED = 0.8, 0.1  # shares of the tokens to predict: hidden by the mask, replaced by a random token


class Masked(NamedTuple):
    """A text with some tokens hidden: the input ids, and the targets by position."""

    ids: list[int]
    targets: dict[int, int]


def mask_tokens(
    ids: Sequence[int], indices: Sequence[int], rng: random.Random, *, share: float, mask_id: int, others: Sequence[int]
) -> Masked:
    """Selects tokens to predict and hides most of them: the rule of Devlin et al. 2019, section 3.1.

    The given share of `indices` is chosen, rounded, and at least one. A chosen token becomes the mask with probability
    MASKED, a random one of `others` with probability REPLACED, and stays unchanged otherwise, so that the model cannot
    rely on its input.
    """
    count = max(1, round(share * len(indices)))
    chosen = sorted(rng.sample(list(indices), count))
    hidden, targets = list(ids), {index: ids[index] for index in chosen}
    for index in chosen:
        drawn = rng.random()
        if drawn < MASKED:
            hidden[index] = mask_id
        elif drawn < MASKED + REPLACED:
            hidden[index] = rng.choice(others)
    return Masked(hidden, targets)


def encoder_batches(examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig) -> Batches:
    """For a masked head, batches of the texts of all examples; otherwise of sources, each with its label or its
    labelled spans as target."""
    kinds: dict[str, Callable[..., Batches]] = {"masked": MaskedBatches, "tokens": TokenLabelBatches}
    return kinds.get(model.head, LabelBatches)(examples, tokenizer, model, train)


class _TextBatches:
    """Batches of texts of similar length, each at most `batch_tokens` tokens with padding. Keys are numbered across
    epochs, so that a key identifies its epoch."""

    def __init__(
        self, name: str, texts: Sequence[str], tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig
    ) -> None:
        before, after = model.template.source_prefix, model.template.source_suffix
        self._pad_id, self._seed, self._budget = model.pad_id, train.seed, train.batch_tokens
        self._inside = slice(len(before), -len(after) or None)
        framed = [[*before, *ids, *after] for ids in tokenizer.encode_batch(texts)]
        most = min(model.max_source_len, train.batch_tokens)
        least = len(before) + len(after) + 1
        self._kept = [index for index, ids in enumerate(framed) if least <= len(ids) <= most]
        self._sources = [framed[index] for index in self._kept]
        self.dropped = len(texts) - len(self._kept)
        if not self._sources:
            raise DataError(
                f"{name}: no text fits max_source_len {model.max_source_len} and batch_tokens {train.batch_tokens} "
                f"with the {least - 1} tokens around it"
            )

    def plan(self, epoch: int) -> list[list[int]]:
        lengths = [(len(source), 0) for source in self._sources]
        batches = bucketed(lengths, budget=self._budget, seed=self._seed, epoch=epoch)
        return [[epoch * len(lengths) + key for key in batch] for batch in batches]

    def _batch(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], tokens: int) -> Batch:
        lengths = torch.tensor([len(source) for source in sources])
        nothing = torch.zeros(len(sources), 0, dtype=torch.int64)
        return Batch(pad(sources, self._pad_id), lengths, nothing, pad(targets, IGNORED), tokens)


class MaskedBatches(_TextBatches):
    """source (B, S) with masked tokens; target (B, S), IGNORED elsewhere. tokens: the number of predicted tokens."""

    def __init__(self, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig) -> None:
        texts = [source or target for source, target in examples.pairs]
        super().__init__(examples.name, texts, tokenizer, model, train)
        assert model.mask_id is not None
        self._mask_id, self._share = model.mask_id, train.mask_share
        special = {model.pad_id, model.bos_id, model.eos_id, model.unk_id, model.mask_id, *model.template.token_ids}
        self._others = [token for token in range(model.vocab_size) if token not in special]
        self.tokens = sum(max(1, round(self._share * len(source[self._inside]))) for source in self._sources)

    def load(self, keys: Sequence[int]) -> Batch:
        masked = [self._masked(*divmod(key, len(self._sources))) for key in keys]
        targets = [[text.targets.get(index, IGNORED) for index in range(len(text.ids))] for text in masked]
        return self._batch([text.ids for text in masked], targets, sum(len(text.targets) for text in masked))

    def _masked(self, epoch: int, index: int) -> Masked:
        source = self._sources[index]
        return mask_tokens(
            source,
            range(len(source))[self._inside],
            random.Random(f"{self._seed} {epoch} {index}"),
            share=self._share,
            mask_id=self._mask_id,
            others=self._others,
        )


class LabelBatches(_TextBatches):
    """source (B, S), target (B, 1): the index of the label; of a multi-label model also UNLABELLED. tokens: one per
    text."""

    def __init__(self, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig) -> None:
        super().__init__(examples.name, [source for source, _ in examples.pairs], tokenizer, model, train)
        numbers = {label: number for number, label in enumerate(model.labels)}
        if model.multi_label:
            numbers.setdefault(NO_LABEL, UNLABELLED)
        labels = [examples.pairs[index][1] for index in self._kept]
        if unknown := sorted({label for label in labels if label not in numbers}):
            raise DataError(
                f"{examples.name}: label {unknown[0]!r:.60} is none of the model's: {', '.join(model.labels):.200}; "
                f"{NEW_LABELS}"
            )
        self._labels = [numbers[label] for label in labels]
        self.tokens = len(self._labels)

    def load(self, keys: Sequence[int]) -> Batch:
        indices = [key % len(self._sources) for key in keys]
        labels = [[self._labels[index]] for index in indices]
        return self._batch([self._sources[index] for index in indices], labels, len(indices))


def spans_by_text(examples: Examples) -> list[list[LabelledSpan]]:
    """The labelled spans of each example. Raises DataError."""
    spans = []
    for number, (text, written) in enumerate(examples.pairs, start=1):
        try:
            spans.append(read_spans(written, text))
        except ValueError as error:
            raise DataError(f"{examples.name}: example {number}: spans {error}") from None
    return spans


class TokenLabelBatches(_TextBatches):
    """source (B, S), target (B, S): the index of the label of each word at its first token, IGNORED elsewhere. tokens:
    one per word."""

    def __init__(self, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig) -> None:
        texts, spans = [text for text, _ in examples.pairs], spans_by_text(examples)
        super().__init__(examples.name, texts, tokenizer, model, train)
        numbers, first = {label: number for number, label in enumerate(model.labels)}, self._inside.start
        self._targets: list[list[int]] = []
        self.tokens = 0
        for index, source in zip(self._kept, self._sources, strict=True):
            targets = [IGNORED] * len(source)
            labels = word_labels(tokenizer, texts[index], spans[index])
            for token, label in labels.items():
                if label not in numbers:
                    known = ", ".join(model.labels)
                    problem = f"label {label!r:.60} is none of the model's: {known:.200}"
                    raise DataError(f"{examples.name}: {problem}; {NEW_LABELS}")
                targets[first + token] = numbers[label]
            self._targets.append(targets)
            self.tokens += len(labels)

    def load(self, keys: Sequence[int]) -> Batch:
        indices = [key % len(self._sources) for key in keys]
        targets = [self._targets[index] for index in indices]
        count = sum(target != IGNORED for row in targets for target in row)
        return self._batch([self._sources[index] for index in indices], targets, count)
