"""The protocol of everything that changes a model's distribution for one request (`LogitsProcessor`): penalties, masks.

A processor is immutable and shared by the hypotheses of its request. What it remembers of one hypothesis is that
hypothesis's `state`, an immutable value, so forking a hypothesis copies references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class LogitsProcessor(Protocol):
    """One constraint or penalty of one request.

    is_mask: it only sets scores to -inf. Other processors run first, and the scores are normalised again after them;
    after masks they are not: a constrained answer keeps the probability that the model gives it.
    """

    is_mask: bool

    def initial_state(self) -> Any:
        """The state before the first new token."""
        ...

    def next_state(self, state: Any, token: int) -> Any:
        """The state when `token` has been appended. `state` itself does not change."""
        ...

    def applies(self, state: Any, tokens: Sequence[int]) -> bool:
        """Whether `apply` would change anything after `tokens`; a row to which nothing applies costs nothing."""
        ...

    def apply(self, scores_V: np.ndarray, state: Any, tokens: Sequence[int]) -> None:
        """Changes scores float32 (V,) in place. `tokens`: the new tokens so far, without the prompt.

        Scores are the model's log-probabilities plus one constant: for processors that are no masks, its logits.
        """
        ...
