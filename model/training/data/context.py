"""Sentences with those before them in their document, as one source and one target (`joined`).

Both sides are concatenated, with a separator between sentences (2-to-2 of Tiedemann and Scherrer 2017, "Neural Machine
Translation with Extended Context"). When the model is served, the translations of the previous sentences are given as
the beginning of the target. A model learns every number of them up to its most, none included, because a document
begins without, and a text may be translated alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, chain

ANSWER_FACTOR, ANSWER_TOKENS = 2, 8  # of a text's tokens, and beside them, that its answer must have room for


def context_sizes(sizes: Sequence[int], most: int, seed: int) -> list[int]:
    """For each sentence of documents of these sizes, how many of those before it go with it: 0..most, all equally
    likely, as far as its document has them. The same seed gives the same numbers."""
    draw = random.Random(f"context {seed}")
    return [min(draw.randint(0, most), index) for size in sizes for index in range(size)]


def contexts(sizes: Sequence[int], most: int) -> list[range]:
    """For each sentence, the indices of the sentences before it in its document, at most `most`."""
    starts = accumulate(sizes, initial=0)
    documents = (range(start, start + size) for start, size in zip(starts, sizes, strict=False))
    return [range(max(whole.start, index - most), index) for whole in documents for index in whole]


def joined(sentences: Sequence[Sequence[int]], separator: int | None) -> list[int]:
    """The token ids of sentences, with a separator between two."""
    if len(sentences) == 1:
        return list(sentences[0])
    assert separator is not None, "a model with context has a separator"
    return [*chain.from_iterable([*sentence, separator] for sentence in sentences[:-1]), *sentences[-1]]


def fitting(sources: Sequence[int], targets: Sequence[int], *, source_room: int, target_room: int) -> int:
    """How many of the last sentences before a text fit in a number of tokens of each side, separators included.

    sources, targets: the tokens of each of these sentences and of its translation, oldest first.
    """
    sizes = list(zip(sources, targets, strict=True))
    for count in range(len(sizes), 0, -1):
        source, target = (sum(side) + count for side in zip(*sizes[-count:], strict=True))
        if source <= source_room and target <= target_room:
            return count
    return 0
