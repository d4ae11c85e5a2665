"""The inputs of verification: deliberately ragged, from one token to the model's limit, and deterministic.

Sentences of the caller come first; random ids fill the lengths that sentences do not have. This module knows the
model's limits, but no graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.config import ModelConfig
from model.tokenizer import Tokenizer

SOURCE_LENGTHS = (1, 2, 5, 9, 16, 17, 33, 40)  # alone, a server pads them to 4, 8, 12, 16, 20, 36 and 40
TARGET_LENGTHS = (23, 1, 18, 2, 9, 16, 17, 12)  # around the multiple of 16 to which a server pads prompts
MAX_LENGTH = 512  # of the longest input: longer ones only cost more
MAX_TEXTS, TEXT_LENGTH = 8, 40  # of the texts given, and of their beginnings in tokens
JOINED_TEXTS, JOINED_LENGTH = 100, 20  # of the texts that are joined, and of the shortest sources of them in tokens
JOINED_TOKENS = 160  # of the shorter sources of one length together

Ids = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Token ids with the model's special tokens. Models with an encoder have one of `sources` for each of `targets`,
    others have none. `targets` are fed to the decoder regardless of its predictions; a model without a decoder has
    none. `joined`: sources made of texts joined, or of random ids if there are none, in groups of one length each, from
    some 20 tokens to that of `longest_source`."""

    sources: tuple[Ids, ...]
    targets: tuple[Ids, ...]
    longest_source: Ids
    longest_target: Ids
    joined: tuple[tuple[Ids, ...], ...] = ()

    def describe(self) -> str:
        """The numbers and lengths of sources and targets."""
        kinds = {"sources": self.sources, "targets": self.targets}
        return ", ".join(f"{len(rows)} {name} of {_range(rows)} tokens" for name, rows in kinds.items() if rows)


def sample_inputs(config: ModelConfig, tokenizer: Tokenizer | None = None, texts: Sequence[str] = ()) -> Samples:
    """Inputs for a model; `texts` are used as its sources or, without an encoder, as its targets."""
    random, template = np.random.default_rng(20), config.template
    most_source = config.max_source_len - template.num_source_special
    most_target = config.max_target_len - len(template.wrap_prompt())
    special = (config.pad_id, config.bos_id, config.eos_id, config.unk_id)
    ordinary, of_sources = (
        np.setdiff1d(np.arange(size), special)
        for size in (config.vocab_size, config.source_vocab_size or config.vocab_size)
    )

    def ids(count: int, known: np.ndarray = ordinary) -> Ids:
        return tuple(known[random.integers(len(known), size=max(count, 0))].tolist())

    def source(length: int) -> Ids:
        return tuple(template.wrap_source(ids(min(length - template.num_source_special, most_source), of_sources)))

    def target(length: int) -> Ids:
        return tuple(template.wrap_prompt(ids(min(length - len(template.target_prefix), most_target))))

    whole = tokenizer.encode_batch(list(texts[:JOINED_TEXTS])) if tokenizer is not None else []
    encoded = [text[:TEXT_LENGTH] for text in whole[:MAX_TEXTS]]
    targets = [target(length) for length in TARGET_LENGTHS] if config.has_decoder else []
    if not config.has_encoder:
        targets = [tuple(template.wrap_prompt(text[:most_target])) for text in encoded if text] + targets
        return Samples(sources=(), targets=tuple(targets), longest_source=(), longest_target=target(MAX_LENGTH))
    sources = [tuple(template.wrap_source(text[:most_source])) for text in encoded if text]
    sources += [source(length) for length in SOURCE_LENGTHS]
    targets = [targets[i % len(targets)] for i in range(len(sources))] if targets else []
    return Samples(
        sources=tuple(sources),
        targets=tuple(targets),
        longest_source=source(MAX_LENGTH),
        longest_target=target(MAX_LENGTH) if config.has_decoder else (),
        joined=_joined([*itertools.chain.from_iterable(whole)] or list(ids(MAX_LENGTH)), config),
    )


def _joined(stream: Sequence[int], config: ModelConfig) -> tuple[tuple[Ids, ...], ...]:
    """Sources that are consecutive pieces of a stream of tokens, which is repeated where it is too short: of
    JOINED_LENGTH tokens, of twice as many, and so on."""
    most = min(config.max_source_len, MAX_LENGTH) - config.template.num_source_special
    shorter = itertools.takewhile(lambda size: size < most, (JOINED_LENGTH << power for power in itertools.count()))
    groups = list[tuple[Ids, ...]]()
    for size in (*shorter, max(most, 0)):
        tokens, count = itertools.cycle(stream), max(JOINED_TOKENS // max(size, JOINED_LENGTH), 1)
        pieces = [list(itertools.islice(tokens, size)) for _ in range(count)]
        groups.append(tuple(tuple(config.template.wrap_source(piece)) for piece in pieces))
    return tuple(groups)


def predicted_places(source: Ids) -> tuple[int, ...]:
    """Positions of a text that a masked head predicts: the first, one in the middle, the last."""
    return tuple(sorted({0, len(source) // 2, len(source) - 1}))


def framed_texts(texts: Sequence[str], tokenizer: Tokenizer, config: ModelConfig) -> list[Ids]:
    """Texts as an encoder-only model reads them, truncated to its longest input; blank ones are left out."""
    most = config.max_source_len - config.template.num_source_special
    return [tuple(config.template.wrap_source(ids[:most])) for ids in tokenizer.encode_batch(texts) if ids]


def _range(sequences: Sequence[Ids]) -> str:
    lengths = sorted(map(len, sequences))
    return f"{lengths[0]}..{lengths[-1]}"
