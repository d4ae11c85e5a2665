"""What one claim of the lectures is here: the words, an experiment, and how its figures are judged and drawn.

An experiment returns plain JSON values, so that judging and drawing can be done again without measuring again. Nothing
here trains, measures or writes a file.
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
    """What the figures of an experiment say about its claim."""

    verdict: Verdict
    says: str  # Markdown, with the figures that decide
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.header)]
        assert not wrong, f"rows must have {len(self.header)} cells like {self.header}, got {wrong}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement, how it is tried, and how its figures are read."""

    name: str  # of its module, its section and its figure
    title: str
    said: str  # Markdown: what the lectures say, and the paper it comes from
    tried: str  # Markdown: the experiment
    measure: Callable[[Lab], Measured]
    judge: Callable[[Measured], Finding]
    draw: Callable[[Measured, Figure], None]
    size: tuple[float, float] = (9.0, 3.4)  # of the figure, in inches


def verdict_of(held: Sequence[bool]) -> Verdict:
    """All parts of a claim held, some of them, or none."""
    if all(held):
        return "held"
    return "held in part" if any(held) else "did not hold"
