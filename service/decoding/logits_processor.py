"""What changes the model's distribution for one request (`Rule`): penalties on the scores, or tokens taken away.

A rule is immutable and shared by the hypotheses of its request; what it must remember of one hypothesis is that
hypothesis's `state`, a value that is never changed once made. So a hypothesis forks by copying references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Rule(Protocol):
    """One constraint or penalty of one request.

    is_mask: it only sets scores to -inf. Rules that are no masks run first, and the scores are normalised again after
    them; masks are not: a constrained answer keeps the probability that the model gives it.
    """

    is_mask: bool

    def start(self) -> Any:
        """The state before the first new token."""
        ...

    def after(self, state: Any, token: int) -> Any:
        """The state when `token` has been appended. `state` itself does not change."""
        ...

    def applies(self, state: Any, tokens: Sequence[int]) -> bool:
        """Whether `apply` would change anything behind `tokens`; where nothing applies, a row costs nothing."""
        ...

    def apply(self, scores_V: np.ndarray, state: Any, tokens: Sequence[int]) -> None:
        """Changes scores float32 (V,) in place. `tokens`: the new tokens so far, without the prompt.

        Scores are the model's log-probabilities plus one constant: for rules that are no masks, its logits.
        """
        ...
