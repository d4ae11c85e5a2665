"""Tokens that a device draws for sampling, before the host has read what they follow: plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Draw(NamedTuple):
    """How a row's next tokens are drawn from its distribution, see `service.decoding.sampling`.

    uniforms: the number from the random stream for each step of a turn. sharpness: 1 / temperature. top_k: 0: no limit.
    """

    uniforms: tuple[float, ...]
    sharpness: float
    top_k: int
    top_p: float
    min_p: float


Draws = Callable[[int, int], Draw] | None
"""How tokens will be drawn, by how many come before them, and their number; None: none is."""


class NotKept(Exception):
    """A later step has overwritten a distribution, which `service.step.StepPlan.read_rows` did not name."""
