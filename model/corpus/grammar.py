"""Probabilistic grammar rules that know exactly what they can produce.

A `Rule` draws a value together with its exact log-probability, counts its derivations, knows its entropy and can list
everything it derives. Rules share parts (a rule graph, not a tree), and the totals are cached, so that a grammar of
10^20 sentences is counted in a second. There is no parser here: rules only produce.

Draws use nothing but `random()` and integer arithmetic: the same seed gives the same values in every Python version.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Uniform = Callable[[], float]  # draws from [0, 1), as random.Random.random does


class Rule(ABC, Generic[T_co]):
    """Something that derives values of one kind."""

    @abstractmethod
    def draw(self, uniform: Uniform) -> tuple[T_co, float]:
        """One value and its log-probability in nats (the sum over all choices made)."""

    @abstractmethod
    def outcomes(self) -> Iterator[tuple[T_co, float]]:
        """Every derivation with its log-probability. Only for small rules: there are `count` of them."""

    count: int  # derivations; equals the number of distinct values when the rule is unambiguous
    entropy: float  # nats per derivation


class Value(Rule[T_co]):
    """Always the same value."""

    count = 1
    entropy = 0.0

    def __init__(self, value: T_co) -> None:
        self._value = value

    def draw(self, uniform: Uniform) -> tuple[T_co, float]:
        return self._value, 0.0

    def outcomes(self) -> Iterator[tuple[T_co, float]]:
        yield self._value, 0.0


class Choice(Rule[T_co]):
    """One of several rules, with whole-number weights (all equal when left out)."""

    def __init__(self, options: Sequence[Rule[T_co]], weights: Sequence[int] | None = None) -> None:
        weights = weights or [1] * len(options)
        if not options or len(weights) != len(options) or min(weights) < 1:
            raise ValueError(f"a choice needs options with weights of at least 1, got {len(options)} and {weights}")
        self._options = tuple(options)
        self._limits = list(accumulate(weights))
        self._logprobs = [math.log(weight / self._limits[-1]) for weight in weights]

    def draw(self, uniform: Uniform) -> tuple[T_co, float]:
        index = bisect_right(self._limits, int(uniform() * self._limits[-1]))
        value, logprob = self._options[index].draw(uniform)
        return value, self._logprobs[index] + logprob

    def outcomes(self) -> Iterator[tuple[T_co, float]]:
        for option, own in zip(self._options, self._logprobs, strict=True):
            for value, logprob in option.outcomes():
                yield value, own + logprob

    @cached_property
    def count(self) -> int:  # type: ignore[override]
        return sum(option.count for option in self._options)

    @cached_property
    def entropy(self) -> float:  # type: ignore[override]
        return sum(
            math.exp(own) * (option.entropy - own) for option, own in zip(self._options, self._logprobs, strict=True)
        )


class Join(Rule[T_co]):
    """A function of independently drawn parts."""

    def __init__(self, function: Callable[..., T_co], *parts: Rule[Any]) -> None:
        self._function = function
        self._parts = parts

    def draw(self, uniform: Uniform) -> tuple[T_co, float]:
        drawn = [part.draw(uniform) for part in self._parts]
        return self._function(*[value for value, _ in drawn]), sum(logprob for _, logprob in drawn)

    def outcomes(self) -> Iterator[tuple[T_co, float]]:
        def extend(index: int, values: tuple[Any, ...], logprob: float) -> Iterator[tuple[T_co, float]]:
            if index == len(self._parts):
                yield self._function(*values), logprob
                return
            for value, own in self._parts[index].outcomes():
                yield from extend(index + 1, (*values, value), logprob + own)

        return extend(0, (), 0.0)

    @cached_property
    def count(self) -> int:  # type: ignore[override]
        return math.prod(part.count for part in self._parts)

    @cached_property
    def entropy(self) -> float:  # type: ignore[override]
        return sum(part.entropy for part in self._parts)


def one_of(values: Sequence[T]) -> Rule[T]:
    """Any of the values, all equally likely."""
    return Choice([Value(value) for value in values])


def weighted(options: Sequence[tuple[Rule[T], int]]) -> Rule[T]:
    """A choice between (rule, weight)."""
    return Choice([rule for rule, _ in options], [weight for _, weight in options])
