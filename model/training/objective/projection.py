"""The operands of the projection to the vocabulary, for the losses that compute its gradients themselves."""

from __future__ import annotations

import torch
from torch import Tensor


def with_bias(hidden_NM: Tensor, weight_VM: Tensor, bias_V: Tensor | None) -> tuple[Tensor, Tensor]:
    """Hidden states (N, M) and weights (V, M) whose product has the bias (V,) in it, if there is one: it is the weights
    of one more dimension, which is 1 in every hidden state."""
    if bias_V is None:
        return hidden_NM, weight_VM
    ones_N1 = hidden_NM.new_ones(len(hidden_NM), 1)
    return torch.cat((hidden_NM, ones_N1), dim=1), torch.cat((weight_VM, bias_V[:, None]), dim=1)
