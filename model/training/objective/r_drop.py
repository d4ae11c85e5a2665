"""R-Drop (Liang et al. 2021): every batch passes the model twice, and dropout may not change what it predicts.

The loss is the mean cross-entropy of both passes plus weight / 4 times the Kullback-Leibler divergences between their
distributions p and q, in both directions: equation 4 of the paper, halved, so that it has the scale of one pass. The
passes are the two halves of one batch that holds every row twice.

Shapes: N positions, M d_model, V vocabulary, C positions of one chunk, L labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from model.config import ConfigError, ModelConfig, TrainConfig
from model.training.data.examples import Batch
from model.training.objective.projection import with_bias

CHUNK = 256  # positions of each pass; their probabilities are in float32, both passes' at the same time


def check_r_drop(model: ModelConfig, train: TrainConfig) -> None:
    """Refuses R-Drop where both passes are the same, or labels have no common distribution. Raises ConfigError."""
    if train.r_drop_weight and not model.dropout:
        raise ConfigError("r_drop_weight", "needs dropout, as two passes do not differ without it; set model.dropout")
    if train.r_drop_weight and model.multi_label:
        raise ConfigError("r_drop_weight", "compares distributions over labels, which multi_label models have not")


def twice(batch: Batch) -> Batch:
    """The batch with all of its rows a second time, after the first; `tokens` counts them once."""
    source_BS, lengths_B, input_BT, target_BT = (torch.cat((tensor, tensor)) for tensor in batch[:4])
    return Batch(source_BS, lengths_B, input_BT, target_BT, batch.tokens)


def paired_label_loss(logits_2NL: Tensor, targets_N: Tensor, *, weight: float, smoothing: float) -> Tensor:
    """The loss of labels, a scalar: logits (2 N, L) of both passes and the targets (N,) of one; summed over N."""
    first, second = functional.log_softmax(logits_2NL, -1).chunk(2)
    both = torch.cat((targets_N, targets_N))
    entropy = functional.cross_entropy(logits_2NL, both, reduction="sum", label_smoothing=smoothing)
    divergence = ((first.exp() - second.exp()) * (first - second)).sum()  # KL(p, q) + KL(q, p)
    return entropy / 2 + weight / 4 * divergence


def paired_cross_entropy(
    hidden_2NM: Tensor, weight_VM: Tensor, targets_N: Tensor, *, bias_V: Tensor | None, weight: float, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The loss of tokens and, without a gradient, the mean negative log-likelihood of both passes: float32 scalars,
    summed over positions.

    hidden (2 N, M): the states of the first pass, then those of the second, float32 or bfloat16; targets (N,) int64.
    As `projected_cross_entropy` it computes its own gradients in chunks of positions.
    """
    hidden_2NM, weight_VM = with_bias(hidden_2NM, weight_VM, bias_V)
    pair: tuple[Tensor, Tensor] = _PairedCrossEntropy.apply(hidden_2NM, weight_VM, targets_N, weight, smoothing)  # type: ignore[no-untyped-call]
    return pair


class _PairedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_2NM: Tensor, weight_VM: Tensor, targets_N: Tensor, weight: float, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        states = hidden_2NM.chunk(2)
        projection_VM = weight_VM.to(hidden_2NM.dtype)
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]  # of frozen vocabularies only the former
        grad_hidden_2NM = torch.empty_like(hidden_2NM) if needs_hidden else None
        grad_weight_VM = torch.zeros_like(weight_VM) if needs_weight else None
        loss, plain = (hidden_2NM.new_zeros((), dtype=torch.float32) for _ in range(2))
        for start in range(0, len(targets_N), CHUNK):
            part = slice(start, start + CHUNK)
            targets_C1 = targets_N[part, None]
            logs = [torch.log_softmax(half[part] @ projection_VM.T, -1, dtype=torch.float32) for half in states]
            chances = [log_CV.exp() for log_CV in logs]
            difference_CV = logs[0] - logs[1]
            for own, sign in ((0, 1.0), (1, -1.0)):
                log_CV, own_CV, other_CV = logs[own], chances[own], chances[1 - own]
                divergence_C1 = sign * (own_CV * difference_CV).sum(-1, keepdim=True)
                nll = -log_CV.gather(1, targets_C1).sum()
                plain += nll / 2
                loss += (1.0 - smoothing) / 2 * nll + weight / 4 * divergence_C1.sum()
                if smoothing:
                    loss -= smoothing / (2 * len(weight_VM)) * log_CV.sum()
                # d loss / d logits = p (1/2 + weight/4 (1 + log p - log q - KL(p, q))) - weight/4 q - targets/2
                factor_CV = (difference_CV * sign - (divergence_C1 - 1.0)).mul_(weight / 4).add_(0.5)
                residual_CV = factor_CV.mul_(own_CV).sub_(other_CV, alpha=weight / 4)
                residual_CV.sub_(smoothing / (2 * len(weight_VM)))
                residual_CV.scatter_add_(1, targets_C1, residual_CV.new_full(targets_C1.shape, (smoothing - 1.0) / 2))
                rounded_CV = residual_CV.to(hidden_2NM.dtype)
                if grad_hidden_2NM is not None:
                    torch.mm(rounded_CV, projection_VM, out=grad_hidden_2NM.chunk(2)[own][part])
                if grad_weight_VM is not None:
                    grad_weight_VM += rounded_CV.T @ states[own][part]
        ctx.save_for_backward(grad_hidden_2NM, grad_weight_VM)
        ctx.mark_non_differentiable(plain)
        return loss, plain

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_2NM, grad_weight_VM = ctx.saved_tensors
        hidden = None if grad_hidden_2NM is None else grad_hidden_2NM * grad_loss.to(grad_hidden_2NM.dtype)
        return hidden, None if grad_weight_VM is None else grad_weight_VM * grad_loss, None, None, None
