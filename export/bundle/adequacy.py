"""Adequacy of a translation: the probability that it lacks no part of its source, repeats none, and answers a text of
the model's language. Words' confidence knows nothing of this: the words of an answer that lost a sentence are as
certain as those of a whole one.

`Traits` are what a server sees of an answer at no further cost; an `Adequacy`, fitted at export (`export.adequacy_fit`)
and stored in the manifest, gives their probability. docs/confidence.md has the definitions. Standard library only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from export.bundle.manifest_fields import Range

Weight = Annotated[float, Range(0, 1e4)]


class Traits(NamedTuple):
    """What tells of an answer's adequacy."""

    source_tokens: int  # of the text, without special tokens
    answer_tokens: int  # without the end token
    repetition: float  # share of the answer's pairs of neighbouring tokens that it had before, above the source's share
    open_end: float  # 1 - probability of the end token; 0 if the answer was cut
    tokens_per_character: float  # of the source


class Signs(NamedTuple):
    """What speaks against an answer's adequacy; 0: nothing."""

    missing: float  # tokens below the expected number, in standard deviations
    repetition: float  # as in `Traits`
    open_end: float  # as in `Traits`
    foreign: float  # logarithm of tokens_per_character above its mean, in standard deviations


@dataclass(frozen=True, kw_only=True)
class Adequacy:
    """A logistic regression on `Signs`: adequacy is sigmoid(-(intercept + the sum of weight * sign)).

    An answer to S tokens is expected to have length_base + length_slope * S tokens, with a standard deviation of
    length_deviation * sqrt(S).
    """

    length_base: Annotated[float, Range(-1e6, 1e6)]
    length_slope: Annotated[float, Range(0, 1e3)]
    length_deviation: Annotated[float, Range(1e-2, 1e6)]
    log_tokens_per_character: Annotated[float, Range(-20, 20)]  # mean of the logarithm
    log_tokens_deviation: Annotated[float, Range(1e-2, 20)]
    intercept: Annotated[float, Range(-100, 100)]
    missing: Weight
    repetition: Weight
    open_end: Weight
    foreign: Weight

    def signs(self, traits: Traits) -> Signs:
        """What speaks against an answer."""
        expected = self.length_base + self.length_slope * traits.source_tokens
        deviation = self.length_deviation * math.sqrt(traits.source_tokens)
        excess = math.log(traits.tokens_per_character) - self.log_tokens_per_character
        return Signs(
            max(0.0, (expected - traits.answer_tokens) / deviation),
            traits.repetition,
            traits.open_end,
            max(0.0, excess / self.log_tokens_deviation),
        )

    def __call__(self, traits: Traits) -> float:
        """The adequacy of an answer, 0..1."""
        weights = self.missing, self.repetition, self.open_end, self.foreign
        against = math.fsum(map(float.__mul__, weights, self.signs(traits)))
        return 1 / (1 + math.exp(min(self.intercept + against, 700.0)))  # above it exp overflows


def traits_of(
    source: Sequence[int], characters: int, answer: Sequence[int], logprobs: Sequence[float], ends: Collection[int]
) -> Traits:
    """The traits of an answer. source: tokens of the text, without special tokens. characters: of the text. answer:
    with its end token, one of `ends`, unless it was cut. logprobs: of its tokens."""
    is_whole = bool(answer) and answer[-1] in ends
    own = answer[:-1] if is_whole else answer
    source_tokens = max(len(source), 1)
    return Traits(
        source_tokens,
        len(own),
        max(0.0, _repetition(own) - _repetition(source)),
        1 - math.exp(min(logprobs[-1], 0.0)) if is_whole else 0.0,
        source_tokens / max(characters, 1),
    )


def _repetition(tokens: Sequence[int]) -> float:
    """The share of pairs of neighbouring tokens that were there before."""
    pairs = max(len(tokens) - 1, 1)
    return 1 - len(set(itertools.pairwise(tokens))) / pairs if len(tokens) > 1 else 0.0
