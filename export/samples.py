"""The inputs that verification tries: ragged on purpose, from one token to as many as the model takes, always the same.

Sentences of the caller come first; random ids fill the lengths that sentences do not have. Knows the model's limits and
nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.config import ModelConfig
from model.tokenizer import SPECIAL, Tokenizer

SOURCE_LENGTHS = (1, 2, 5, 9, 16, 17, 33, 40)  # around the multiples of 16 to which a server pads
TARGET_LENGTHS = (23, 1, 18, 2, 9, 16, 17, 12)
MAX_LENGTH = 512  # of the one longest input: beyond, only the cost grows
MAX_TEXTS = 8

Ids = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Token ids. `sources` end with eos and pair up with `targets` for models with an encoder, else there are none;
    `targets` begin with bos: what the decoder is fed, whatever it would have answered. A model without a decoder has
    none, and its sources stand in their frame."""

    sources: tuple[Ids, ...]
    targets: tuple[Ids, ...]
    longest_source: Ids
    longest_target: Ids

    def describe(self) -> str:
        kinds = {"sources": self.sources, "targets": self.targets}
        return ", ".join(f"{len(rows)} {name} of {_range(rows)} tokens" for name, rows in kinds.items() if rows)


def sample_inputs(config: ModelConfig, tokenizer: Tokenizer | None = None, texts: Sequence[str] = ()) -> Samples:
    """Inputs for a model; `texts` are used as its sources or, without an encoder, as its targets."""
    random = np.random.default_rng(20)

    def ids(count: int) -> Ids:
        low = min(len(SPECIAL), config.vocab_size - 1)
        return tuple(random.integers(low, config.vocab_size, max(count, 0)).tolist())

    def source(length: int) -> Ids:
        return (*ids(min(length, config.max_source_len) - 1), config.eos_id)

    def target(length: int) -> Ids:
        return (config.bos_id, *ids(min(length, config.max_target_len) - 1))

    encoded = tokenizer.encode_batch(texts[:MAX_TEXTS]) if tokenizer is not None else []
    if not config.has_decoder:
        sources = [framed(text, config) for text in encoded if text]
        sources += [framed(ids(length), config) for length in SOURCE_LENGTHS]
        return Samples(
            sources=tuple(sources), targets=(), longest_source=framed(ids(MAX_LENGTH), config), longest_target=()
        )
    targets = [target(length) for length in TARGET_LENGTHS]
    if not config.has_encoder:
        targets = [(config.bos_id, *text[: config.max_target_len - 1]) for text in encoded if text] + targets
        return Samples(sources=(), targets=tuple(targets), longest_source=(), longest_target=target(MAX_LENGTH))
    sources = [(*text[: config.max_source_len - 1], config.eos_id) for text in encoded if text]
    sources += [source(length) for length in SOURCE_LENGTHS]
    targets = [targets[i % len(targets)] for i in range(len(sources))]
    return Samples(
        sources=tuple(sources),
        targets=tuple(targets),
        longest_source=source(MAX_LENGTH),
        longest_target=target(MAX_LENGTH),
    )


def framed(tokens: Sequence[int], config: ModelConfig) -> Ids:
    """The tokens of a text as an encoder alone reads them, cut to what it can read."""
    before, after = config.frames.before_source, config.frames.after_source
    room = config.max_source_len - len(before) - len(after)
    return (*before, *tokens[: max(room, 0)], *after)


def framed_texts(texts: Sequence[str], tokenizer: Tokenizer, config: ModelConfig) -> list[Ids]:
    """The same of texts; blank ones are left out."""
    return [framed(ids, config) for ids in tokenizer.encode_batch(texts) if ids]


def _range(sequences: Sequence[Ids]) -> str:
    lengths = sorted(map(len, sequences))
    return f"{lengths[0]}..{lengths[-1]}"
