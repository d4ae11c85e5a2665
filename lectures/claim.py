"""A claim of the lectures: its text, its experiment, and how the figures are judged and plotted.

An experiment returns plain JSON values, so that judging and plotting can be repeated without measuring. This module
does not train, measure or write files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

Verdict = Literal["held", "held in part", "did not hold"]
Measured = dict[str, Any]
"""JSON values: keys are strings, tuples are lists."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The verdict on a claim, with the figures that support it."""

    verdict: Verdict
    explanation: str  # Markdown, with the decisive figures
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.header)]
        assert not wrong, f"rows must have {len(self.header)} cells like {self.header}, got {wrong}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement, its experiment, and how the figures are judged and plotted."""

    name: str  # of its module and its plot
    title: str
    statement: str  # Markdown: the claim and its source
    experiment: str  # Markdown, for readers of the module, to which the page links
    measure: Callable[[Lab], Measured]
    judge: Callable[[Measured], Finding]
    draw: Callable[[Measured, Figure], None]
    size: tuple[float, float] = (9.0, 3.4)  # of the figure, in inches


def verdict_of(held: Sequence[bool]) -> Verdict:
    """Whether all parts of a claim held, some, or none."""
    if all(held):
        return "held"
    return "held in part" if any(held) else "did not hold"
