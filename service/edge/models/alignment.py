"""Alignment of an answer with its source by cross-attention.

The graph's attention weights become one matrix, and each token of an answer a span of its text. Spans count Unicode
code points. A character whose bytes are spread over several tokens belongs to each of them.

L decoder layers, H heads, T tokens of the answer, S source positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Span = tuple[int, int]
"""[start, end) in code points."""


def align(attention_LHTS: np.ndarray, layer: int, heads: Sequence[int] = ()) -> np.ndarray:
    """The mean of some heads of one layer, float32 (T, S).

    attention_LHTS: float32 (L, H, T, S); row t holds the weights with which token t of the answer was predicted.
    layer and heads count from 1; () means all heads.
    """
    assert 1 <= layer <= len(attention_LHTS), layer
    weights_HTS = attention_LHTS[layer - 1]
    if heads:
        weights_HTS = weights_HTS[[head - 1 for head in heads]]
    weights_TS: np.ndarray = weights_HTS.mean(axis=0, dtype=np.float32)
    return weights_TS


def composed(
    first_TS: np.ndarray, first_spans: Sequence[Span], second_UM: np.ndarray, second_spans: Sequence[Span]
) -> np.ndarray:
    """The weights of the tokens of a translation over those of a text, by way of a text between: float32 (U, S).

    first_TS: of each token of the text between, over those of the text. first_spans: their places in the text between.
    second_UM: of each token of the translation, over those that the second model reads of the text between.
    second_spans: the places of these. The two models cut that text differently: a token of the second stands for those
    of the first in proportion to the characters that both have; one without text, such as an end, for the last one.
    Rows sum to 1.
    """
    ours, theirs = np.asarray(second_spans).reshape(-1, 2), np.asarray(first_spans).reshape(-1, 2)
    starts = np.maximum(ours[:, None, 0], theirs[None, :, 0])
    shared_MT = np.maximum(0, np.minimum(ours[:, None, 1], theirs[None, :, 1]) - starts).astype(np.float32)
    sums = shared_MT.sum(axis=1, keepdims=True)
    shared_MT[sums[:, 0] == 0, -1] = 1
    weights_US: np.ndarray = second_UM @ (shared_MT / np.maximum(sums, 1)) @ first_TS
    scaled_US: np.ndarray = weights_US / np.maximum(weights_US.sum(axis=1, keepdims=True), np.float32(1e-12))
    return scaled_US


def target_spans(
    tokens: Sequence[int], pieces: Sequence[bytes], text: str, *, strips_leading_space: bool
) -> tuple[Span, ...]:
    """The part of the answer's text that each token stands for.

    pieces: the bytes of each id, none for special tokens, whose spans are empty, at the end of the token before them.
    text: what the tokens decode to, or a beginning of it where a stop string cut it. strips_leading_space: the blank
    before the first word is no part of the text.
    """
    parts = [pieces[token] for token in tokens]
    if strips_leading_space:
        first = next((place for place, part in enumerate(parts) if part), None)
        if first is not None:
            parts[first] = parts[first].removeprefix(b" ")
    owners = _characters(b"".join(parts))
    spans: list[Span] = []
    read = end = 0
    for part in parts:
        start = owners[read] if part else end
        read += len(part)
        end = owners[read - 1] + 1 if part else end
        spans.append((min(start, len(text)), min(end, len(text))))
    return tuple(spans)


def _characters(data: bytes) -> list[int]:
    """For each byte the place of its character in the decoded text, where each broken character is one U+FFFD."""
    owners: list[int] = []
    count = 0
    while len(owners) < len(data):
        rest = data[len(owners) :]
        try:
            whole, broken = rest.decode(), 0
        except UnicodeDecodeError as error:
            whole, broken = rest[: error.start].decode(), error.end - error.start
        for character in whole:
            owners += [count] * len(character.encode())
            count += 1
        if broken:
            owners += [count] * broken
            count += 1
    return owners
