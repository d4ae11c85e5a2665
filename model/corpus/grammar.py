"""Probabilistic grammar rules, which draw values. There is no parser here: rules only produce.

Rules share parts: they form a graph, not a tree. Draws use nothing but `random()` and integer arithmetic: the same seed
gives the same values in every Python version.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Uniform = Callable[[], float]  # draws from [0, 1), as random.Random.random does


class Rule(ABC, Generic[T_co]):
    """Something that derives values of one kind."""

    @abstractmethod
    def draw(self, uniform: Uniform) -> T_co:
        """One value; every choice is drawn by its weights."""


class Value(Rule[T_co]):
    """Always the same value."""

    def __init__(self, value: T_co) -> None:
        self.value = value

    def draw(self, uniform: Uniform) -> T_co:
        return self.value


class Choice(Rule[T_co]):
    """One of several rules, with whole-number weights (all equal when left out). limits: the sums of the weights."""

    def __init__(self, options: Sequence[Rule[T_co]], weights: Sequence[int] | None = None) -> None:
        weights = weights or [1] * len(options)
        if not options or len(weights) != len(options) or min(weights) < 1:
            raise ValueError(f"a choice needs options with weights of at least 1, got {len(options)} and {weights}")
        self.options = tuple(options)
        self.limits = list(accumulate(weights))

    def draw(self, uniform: Uniform) -> T_co:
        index = bisect_right(self.limits, int(uniform() * self.limits[-1]))
        return self.options[index].draw(uniform)


class Join(Rule[T_co]):
    """A function of independently drawn parts."""

    def __init__(self, function: Callable[..., T_co], *parts: Rule[Any]) -> None:
        self.function = function
        self.parts = parts

    def draw(self, uniform: Uniform) -> T_co:
        return self.function(*[part.draw(uniform) for part in self.parts])


def one_of(values: Sequence[T]) -> Rule[T]:
    """Any of the values, all equally likely."""
    return Choice([Value(value) for value in values])


def weighted(options: Sequence[tuple[Rule[T], int]]) -> Rule[T]:
    """A choice between (rule, weight)."""
    return Choice([rule for rule, _ in options], [weight for _, weight in options])
