"""Examples → token ids → batches. `text_files` reads examples.

`Examples` are text: pairs of source and target, or only targets for a language model. `PairBatches` and
`StreamBatches` turn them into tensors. The order of batches depends only on (seed, epoch), so a position in it can be
saved as two numbers.

    DataError (ValueError)    file:line: the fault
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model.checkpoints.training_rows import TrainingRows
from model.config import DEFAULT_LANGUAGES, LanguagePair, ModelConfig, TrainConfig
from model.tokenizer import Tokenizer
from model.training.data.context import context_sizes, joined

POOL_BATCHES = 512  # sentences are sorted by length within this many batches of shuffled text
IGNORED = -100  # the target of a position where nothing is predicted; no token has this id
MAX_SOURCE_SHARE = 4  # a batch holds at most this many source tokens per target token of the budget


class DataError(ValueError):
    """The training or validation text cannot be used."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Sources and targets; for a language model every source is "". `name` states their origin.

    sizes: the number of pairs of each document, in order; (): the pairs are sentences without a document.
    languages: of each pair; (): the data names none.
    """

    pairs: Sequence[tuple[str, str]]
    name: str
    sizes: Sequence[int] = ()
    languages: Sequence[LanguagePair] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text as one TSV, with the languages in further columns and an empty line between documents,
        independent of its files and their compression."""
        sha256, ends = hashlib.sha256(), set(accumulate(self.sizes[:-1]))
        for index, pair in enumerate(self.pairs):
            columns = "\t".join((*pair, *self.languages[index])) if self.languages else "\t".join(pair)
            sha256.update(b"\n" * (index in ends) + f"{columns}\n".encode())
        return sha256.hexdigest()

    @cached_property
    def rows(self) -> TrainingRows:
        """Digests of every row."""
        return TrainingRows.of(self.pairs, self.sizes)

    def languages_of(self, index: int) -> LanguagePair:
        """The languages of a pair."""
        return self.languages[index] if self.languages else DEFAULT_LANGUAGES


def split(examples: Examples, *, size: int, seed: int) -> tuple[Examples, Examples]:
    """Training and validation parts. All documents with the same sources go to the same part, as do all pairs with one
    source, so no validation source is seen. In data of several pairs of languages, where one's target is another's
    source, so do all that share a text on either side.

    At most a tenth is held out; a single text is cut at a line break before its last tenth.
    """
    if len(examples.pairs) == 1:
        return _split_text(examples)
    documents = list(pairwise(accumulate(examples.sizes or [1] * len(examples.pairs), initial=0)))
    groups = _groups(examples, documents)
    random.Random(f"split {seed}").shuffle(groups)
    left, held = min(size, len(examples.pairs) // 10), set[int]()
    for group in groups:
        if (pairs := sum(documents[number][1] - documents[number][0] for number in group)) <= left:
            held.update(group)
            left -= pairs
    if not held:
        what = f"{len(documents)} documents" if examples.sizes else f"{len(examples.pairs)} examples"
        raise DataError(f"{examples.name}: {what} are too few to hold out a validation set")
    parts = [
        _chosen(examples, [span for number, span in enumerate(documents) if (number in held) == is_held])
        for is_held in (False, True)
    ]
    return parts[0], replace(parts[1], name=f"{len(parts[1].pairs)} held out of {examples.name}")


def _groups(examples: Examples, documents: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The numbers of documents that go to the same part, in the order of their first ones."""
    parents = list(range(len(documents)))

    def first_of(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    holders: dict[str, int] = {}  # a document with the text
    sides = (0, 1) if len(set(examples.languages)) > 1 else (0,)
    for number, (start, end) in enumerate(documents):
        pairs = examples.pairs[start:end]
        for text in {"\n".join(pair[side] or pair[1] for pair in pairs).casefold() for side in sides}:
            low, high = sorted((first_of(holders.setdefault(text, number)), first_of(number)))
            parents[high] = low
    groups: dict[int, list[int]] = {}
    for number in range(len(documents)):
        groups.setdefault(first_of(number), []).append(number)
    return list(groups.values())


def _chosen(examples: Examples, documents: Sequence[tuple[int, int]]) -> Examples:
    """The examples of some documents, from the start to the end of each."""
    pairs = [pair for start, end in documents for pair in examples.pairs[start:end]]
    languages = [pair for start, end in documents for pair in examples.languages[start:end]]
    sizes = [end - start for start, end in documents] if examples.sizes else ()
    return replace(examples, pairs=pairs, sizes=sizes, languages=languages)


def _split_text(examples: Examples) -> tuple[Examples, Examples]:
    text = examples.pairs[0][1]
    cut = text.rfind("\n", 0, len(text) - len(text) // 10) + 1
    if not 0 < cut < len(text):
        raise DataError(f"{examples.name}: one text without a line break cannot be split; give a validation file")
    return (
        Examples([("", text[:cut])], examples.name),
        Examples([("", text[cut:])], f"last {len(text) - cut} characters of {examples.name}"),
    )


class Batch(NamedTuple):
    """Right-padded int64 ids: source with special tokens (B, S) and its lengths (B,), decoder input (B, T) including
    the target prefix, target (B, T) to eos, IGNORED after the end, so that a model whose padding is its eos token, such
    as GPT-2, learns to end. `tokens` counts predicted tokens. A language model's source is (B, 0)."""

    source_BS: Tensor
    lengths_B: Tensor
    input_BT: Tensor
    target_BT: Tensor
    tokens: int

    def to(self, device: torch.device) -> Batch:
        source_BS, lengths_B, input_BT, target_BT = (tensor.to(device) for tensor in self[:4])
        return Batch(source_BS, lengths_B, input_BT, target_BT, self.tokens)


class Batches(Protocol):
    """A data set in token ids."""

    dropped: int  # examples longer than the model allows
    tokens: int  # target tokens per epoch

    def plan(self, epoch: int) -> list[list[int]]:
        """The batches of one epoch, in order: keys for `load`. Depends only on the seed and the epoch."""

    def load(self, keys: Sequence[int]) -> Batch: ...


def bucketed(lengths: Sequence[tuple[int, int]], *, budget: int, seed: int, epoch: int) -> list[list[int]]:
    """The examples of each batch, all of similar length, in the order of an epoch.

    lengths: tokens of each target and source. budget: target tokens of a batch with padding.
    Sorting by the longer side keeps padding low on both: 1 % of targets and 2 % of sources on English-German sentence
    pairs, against 1 % and 14 % by the target's length.
    """
    rng = random.Random(f"{seed} {epoch}")
    order = list(range(len(lengths)))
    rng.shuffle(order)
    pool = max(1, POOL_BATCHES * budget * len(order) // max(1, sum(target for target, _ in lengths)))
    batches: list[list[int]] = []
    for start in range(0, len(order), pool):
        keys = sorted(order[start : start + pool], key=lambda key: (max(lengths[key]), *lengths[key]))
        batches.extend(_cut(keys, lengths, budget))
    rng.shuffle(batches)
    return batches


def _cut(keys: Sequence[int], lengths: Sequence[tuple[int, int]], budget: int) -> Iterator[list[int]]:
    batch: list[int] = []
    longest_target = longest_source = 0
    for key in keys:
        target, source = lengths[key]
        longest_target, longest_source = max(longest_target, target), max(longest_source, source)
        rows = len(batch) + 1
        if batch and max(longest_target, longest_source / MAX_SOURCE_SHARE) * rows > budget:
            yield batch
            batch, longest_target, longest_source = [], target, source
        batch.append(key)
    yield batch


Pair = tuple[list[int], list[int]]  # the token ids of a source and of a target, with their special tokens


def lengths_of(pairs: Iterable[Pair]) -> list[tuple[int, int]]:
    """The predicted tokens of each target and the tokens of each source."""
    return [(len(target) - 1, len(source)) for source, target in pairs]


class PairBatches:
    """Batches of sentences of similar length, each at most `batch_tokens` target tokens with padding.

    Of a target with its special tokens all are predicted but the first, as in transformers: a language or another token
    that decoding forces, too.
    """

    def __init__(self, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig) -> None:
        self._model, self._seed, self._budget = model, train.seed, train.batch_tokens
        self._room = min(model.max_target_len, train.batch_tokens)
        self._template, self._languages_of = model.template, examples.languages_of  # a template is built at each access
        self._windows: list[slice] = []  # of each example, its sentence and those before it
        self._pairs: list[Pair] = []
        targets = tokenizer.target.encode_batch([target for _, target in examples.pairs])
        sources = tokenizer.encode_batch([source for source, _ in examples.pairs]) if model.has_encoder else targets
        context = context_sizes(examples.sizes, model.context_sentences, train.seed) or [0] * len(targets)
        for index, size in enumerate(context):
            for first in range(index - size, index + 1):  # without the sentences that make it too long
                window = slice(first, index + 1)
                if (pair := self._pair(window, sources, targets)) is not None:
                    self._windows.append(window)
                    self._pairs.append(pair)
                    break
        self._lengths = lengths_of(self._pairs)
        self.dropped = len(targets) - len(self._pairs)
        self.tokens = sum(target for target, _ in self._lengths)
        if not self._pairs:
            raise DataError(
                f"{examples.name}: no example fits max_source_len {model.max_source_len}, max_target_len "
                f"{model.max_target_len} and batch_tokens {train.batch_tokens}"
            )

    def _pair(self, window: slice, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Pair | None:
        """The example of the last sentence of a window, after those before it; None if it does not fit.

        sources, targets: the ids of all sentences.
        """
        model, languages = self._model, self._languages_of(window.stop - 1)
        source = joined(sources[window], model.separator_id) if model.has_encoder else []
        framed = self._template.wrap_source(source, languages) if model.has_encoder else []
        target = joined(targets[window], model.separator_id)
        target = self._template.wrap_target(target, model.eos_id, languages)
        fits = len(framed) <= model.max_source_len and 1 < len(target) <= self._room + 1
        return (framed, target) if fits else None

    def plan(self, epoch: int) -> list[list[int]]:
        return bucketed(self._lengths, budget=self._budget, seed=self._seed, epoch=epoch)

    def load(self, keys: Sequence[int]) -> Batch:
        return self._batch([self._pairs[key] for key in keys])

    def _batch(self, pairs: Sequence[Pair]) -> Batch:
        sources, targets = zip(*pairs, strict=True)
        return Batch(
            pad(sources, self._model.pad_id),
            torch.tensor([len(source) for source in sources]),
            pad([target[:-1] for target in targets], self._model.pad_id),
            pad([target[1:] for target in targets], IGNORED),
            sum(len(target) - 1 for target in targets),
        )


class StreamBatches:
    """Windows of long texts that fill `max_target_len` positions after the target prefix; an epoch starts at a random
    offset."""

    dropped = 0

    def __init__(self, examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig) -> None:
        self._start, self._seed = model.template.wrap_prompt(), train.seed
        self._window = model.max_target_len + 1 - len(self._start)
        self._rows = max(1, train.batch_tokens // model.max_target_len)
        self._ids = torch.tensor([token for _, text in examples.pairs for token in tokenizer.encode(text)])
        self.tokens = len(self._ids)
        if self.tokens < self._window:
            raise DataError(
                f"{examples.name}: must have at least max_target_len {model.max_target_len} tokens, got {self.tokens}"
            )

    def plan(self, epoch: int) -> list[list[int]]:
        return self._plan(epoch, self.tokens)

    def _plan(self, epoch: int, tokens: int) -> list[list[int]]:
        """The starts of the windows of each batch in a text of this many tokens."""
        rng = random.Random(f"{self._seed} {epoch}")
        offset = rng.randrange(min(self._window, tokens - self._window + 1)) if epoch else 0
        starts = list(range(offset, tokens - self._window + 1, self._window))
        rng.shuffle(starts)
        return [starts[index : index + self._rows] for index in range(0, len(starts), self._rows)]

    def load(self, keys: Sequence[int]) -> Batch:
        return self._batch(torch.stack([self._ids[start : start + self._window] for start in keys]))

    def _batch(self, target_BT: Tensor) -> Batch:
        rows = len(target_BT)
        start_BN = torch.tensor(self._start, dtype=torch.int64).expand(rows, -1)
        no_source = torch.zeros(rows, 0, dtype=torch.int64)
        input_BT = torch.cat((start_BN, target_BT[:, :-1]), dim=1)
        predicted_BT = target_BT if self._start else target_BT[:, 1:]  # without a prefix, the first token is given
        wanted_BT = torch.cat((torch.full_like(start_BN[:, 1:], IGNORED), predicted_BT), dim=1)
        return Batch(no_source, torch.zeros(rows, dtype=torch.int64), input_BT, wanted_BT, predicted_BT.numel())


def batches_of(examples: Examples, tokenizer: Tokenizer, model: ModelConfig, train: TrainConfig) -> Batches:
    make: Callable[..., Batches] = StreamBatches if train.documents == "stream" else PairBatches
    return make(examples, tokenizer, model, train)


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Token ids, right-padded with pad_id: int64 (rows, longest)."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], dtype=torch.int64)
