"""How the next token of each row is chosen. Scheduler and runner know no strategy: they see tokens and parents."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import NamedTuple, Protocol

import numpy as np

from service.sequence import Sequence


class Selection(NamedTuple):
    """For each row of a turn its next token and the row whose cache it continues, both as long as there are rows."""

    tokens: list[int]
    parents: list[int]


class NotFinite(ArithmeticError):
    """The model's outputs contain NaN or infinity: the numbers cannot be trusted."""


class Strategy(Protocol):
    """Chooses tokens. It may look at a sequence (its request, its tokens), and changes nothing."""

    def select(self, logits_RV: np.ndarray, sequences: Rows[Sequence]) -> Selection:
        """logits_RV: float32 (R, V), one line for each of `sequences`, not modified. Raises NotFinite."""
        ...


class Greedy:
    """The most likely token; of equal ones the lowest id."""

    def select(self, logits_RV: np.ndarray, sequences: Rows[Sequence]) -> Selection:
        chosen_R = logits_RV.argmax(axis=1)
        best_R = logits_RV[np.arange(len(chosen_R)), chosen_R]  # NaN, where there is one: argmax stops at it
        if not np.isfinite(best_R).all():
            rows = np.flatnonzero(~np.isfinite(best_R)).tolist()
            raise NotFinite(f"logits of rows {rows} are not finite")
        return Selection(chosen_R.tolist(), list(range(len(chosen_R))))
