"""Label-smoothed cross-entropy fused with the output projection, which never materialises the logits of a whole batch.

With 8,000 entries and 4,096 positions the logits are 130 MB in float32, and reading and writing them several times
costs more than the products themselves. Therefore positions are processed in chunks that fit the cache; the forward
pass computes the gradients of hidden states and weights, and the backward pass only scales them. On two cores this made
the whole training step 1.6 times as fast as with `F.cross_entropy`, which remains the oracle of the tests.

Shapes: N positions, M d_model, V vocabulary, C positions of one chunk.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from model.architectures import GenerativeModel, Model, SourceModel
from model.encoder import Encoder
from model.mixture_of_experts import ExpertFeedForward
from model.training.data.examples import IGNORED, Batch
from model.training.objective.projection import with_bias
from model.training.objective.r_drop import paired_cross_entropy, paired_label_loss, twice

CHUNK = 512  # positions; 256 to 1,024 differ by 2 %
BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")  # of x86 and Arm processors, as torch names them


class Loss(NamedTuple):
    """Sums over positions, float32 scalars. Divide by the number of positions for means."""

    smoothed: Tensor  # the objective; carries the gradient
    plain: Tensor  # negative log-likelihood in nats, without smoothing or gradient


def takes_bf16(wanted: bool | Literal["auto"], device: torch.device) -> bool:
    """Whether to compute matrix products in bfloat16. "auto": if the device has instructions for it.

    Without them torch computes element by element: 1 GFLOP/s beside 53 in float32 on a Zen 3 core.
    """
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in BF16_INSTRUCTIONS)


def projected_cross_entropy(
    hidden_NM: Tensor, weight_VM: Tensor, targets_N: Tensor, *, bias_V: Tensor | None = None, smoothing: float = 0.0
) -> Loss:
    """Cross-entropy of logits = hidden @ weight.T + bias against targets (1 - smoothing) * one-hot + smoothing / V.

    hidden (N, M) float32 or, for half-precision products, bfloat16; weight (V, M) and bias (V,) float32; targets (N,)
    int64 without padding: drop it before (`drop_padding`). Szegedy et al. 2016, section 7, as `F.cross_entropy`
    defines it.
    """
    hidden_NM, weight_VM = with_bias(hidden_NM, weight_VM, bias_V)
    # In an autograd function's forward pass gradients are off, and `needs_input_grad` ignores a `no_grad` around it.
    apply = _ProjectedCrossEntropy.apply
    smoothed, plain = apply(hidden_NM, weight_VM, targets_N, smoothing, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    return Loss(smoothed, plain)


def batch_loss(
    model: Model,
    batch: Batch,
    *,
    smoothing: float = 0.0,
    bf16: bool = False,
    balance_weight: float = 0.0,
    r_drop_weight: float = 0.0,
) -> Loss:
    """Loss of a batch; bf16 runs the model's products, and that with the vocabulary, in bfloat16.

    balance_weight: the weight of the balance loss of each mixture-of-experts layer, per target. r_drop_weight: that of
    the divergence between two passes (`r_drop`); 0: one pass.
    """
    rows = twice(batch) if r_drop_weight else batch
    if isinstance(model, Encoder):
        loss, targets = _encoder_loss(model, rows, smoothing=smoothing, bf16=bf16, r_drop_weight=r_drop_weight)
    else:
        loss, targets = _decoder_loss(model, rows, smoothing=smoothing, bf16=bf16, r_drop_weight=r_drop_weight)
    for module in model.modules():
        if isinstance(module, ExpertFeedForward) and module.balance is not None and balance_weight:
            loss = loss._replace(smoothed=loss.smoothed + balance_weight * targets * module.balance)
    return loss


def _decoder_loss(
    model: GenerativeModel, batch: Batch, *, smoothing: float, bf16: bool, r_drop_weight: float
) -> tuple[Loss, int]:
    """The loss and the number of targets, those of one pass."""
    with torch.autocast(batch.input_BT.device.type, torch.bfloat16, enabled=bf16):
        if isinstance(model, SourceModel):
            states_BTM = model(batch.source_BS, batch.lengths_B, batch.input_BT)
        else:
            states_BTM = model(batch.input_BT)
    hidden_NM, targets_N = drop_padding(states_BTM, batch.target_BT)
    hidden_NM = hidden_NM.to(torch.bfloat16 if bf16 else torch.float32)
    output = model.decoder.unembedding
    if model.config.logits_softcap:
        once_N = targets_N[: len(targets_N) // 2] if r_drop_weight else targets_N
        logits = output(hidden_NM.to(output.weight.dtype))
        return _loss_of_logits(logits, once_N, smoothing=smoothing, r_drop_weight=r_drop_weight), len(once_N)
    if r_drop_weight:
        once_N = targets_N[: len(targets_N) // 2]
        paired = paired_cross_entropy(
            hidden_NM, output.weight, once_N, bias_V=output.bias, weight=r_drop_weight, smoothing=smoothing
        )
        return Loss(*paired), len(once_N)
    loss = projected_cross_entropy(hidden_NM, output.weight, targets_N, bias_V=output.bias, smoothing=smoothing)
    return loss, len(targets_N)


def _encoder_loss(
    model: Encoder, batch: Batch, *, smoothing: float, bf16: bool, r_drop_weight: float
) -> tuple[Loss, int]:
    """The loss and the number of targets: the masked tokens or the labels of one pass. Only a seventh of the tokens, or
    one vector per text, is projected, so the logits may be materialised."""
    with torch.autocast(batch.source_BS.device.type, torch.bfloat16, enabled=bf16):
        logits, targets_N = encoder_logits(model, batch)
    logits = logits.float()
    if model.config.multi_label:
        wanted = label_sets(targets_N, logits.shape[1]).to(logits.dtype)
        loss = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
        return Loss(loss, loss.detach()), len(targets_N)
    once_N = targets_N[: len(targets_N) // 2] if r_drop_weight else targets_N
    return _loss_of_logits(logits, once_N, smoothing=smoothing, r_drop_weight=r_drop_weight), len(once_N)


def _loss_of_logits(logits: Tensor, targets_N: Tensor, *, smoothing: float, r_drop_weight: float) -> Loss:
    """The loss of materialised logits (N, L), or (2 N, L) of two passes for R-Drop, and the targets of one."""
    both = torch.cat((targets_N, targets_N)) if r_drop_weight else targets_N
    plain = functional.cross_entropy(logits.detach(), both, reduction="sum")
    if r_drop_weight:
        paired = paired_label_loss(logits, targets_N, weight=r_drop_weight, smoothing=smoothing)
        return Loss(paired, plain / 2)
    smoothed = functional.cross_entropy(logits, targets_N, reduction="sum", label_smoothing=smoothing)
    return Loss(smoothed, plain)


def label_sets(targets_N: Tensor, labels: int) -> Tensor:
    """Which labels each text has: targets (N,) → bool (N, L). A text of target UNLABELLED has none."""
    return targets_N[:, None] == torch.arange(labels, device=targets_N.device)


def encoder_logits(model: Encoder, batch: Batch) -> tuple[Tensor, Tensor]:
    """The logits of the masked tokens, of the labels, or of the labelled tokens, and their targets (N,)."""
    states_BSM = model(batch.source_BS, batch.lengths_B)
    if model.tag is not None:
        hidden_NM, targets_N = drop_padding(states_BSM, batch.target_BT)
        return model.tag_logits(hidden_NM), targets_N
    if model.masked is None:
        return model.classify(states_BSM, batch.lengths_B).logits_BL, batch.target_BT[:, 0]
    hidden_NM, targets_N = drop_padding(states_BSM, batch.target_BT)
    return model.token_logits(hidden_NM), targets_N


def drop_padding(hidden_BTM: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states (N, M) and targets (N,) of the positions whose target is not IGNORED."""
    targets = targets_BT.flatten()
    kept_N = (targets != IGNORED).nonzero().squeeze(1)
    return hidden_BTM.flatten(0, 1).index_select(0, kept_N), targets.index_select(0, kept_N)


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NM: Tensor, weight_VM: Tensor, targets_N: Tensor, smoothing: float, with_gradients: bool
    ) -> tuple[Tensor, Tensor]:
        # Of frozen vocabularies only the former.
        needs_hidden, needs_weight = (with_gradients and needs for needs in ctx.needs_input_grad[:2])
        vocabulary = weight_VM.shape[0]
        weight = weight_VM.to(hidden_NM.dtype)
        weight_sum_M = weight_VM.sum(0)
        hidden_sum_M = hidden_NM.sum(0, dtype=torch.float32)
        grad_hidden_NM = torch.empty_like(hidden_NM) if needs_hidden else None
        grad_weight_VM = torch.zeros_like(weight_VM) if needs_weight else None
        buffers_2CV = hidden_NM.new_empty(2, min(CHUNK, len(targets_N)), vocabulary)  # allocated once, not per chunk
        plain = hidden_NM.new_zeros((), dtype=torch.float32)
        log_total = hidden_NM.new_zeros((), dtype=torch.float32)
        for start in range(0, len(targets_N), CHUNK):
            hidden_CM, targets_C1 = hidden_NM[start : start + CHUNK], targets_N[start : start + CHUNK, None]
            logits_CV, residual_CV = buffers_2CV[:, : len(hidden_CM)]
            torch.mm(hidden_CM, weight.T, out=logits_CV)
            target_logit_C1 = logits_CV.gather(1, targets_C1).float()
            # Computed in float32 and rounded to the dtype of the products at the end: one pass over the chunk.
            torch.softmax(logits_CV, -1, out=residual_CV)
            # log p of the target: precise enough in bfloat16 too, whose relative error is 2^-9 for every p.
            target_probability_C1 = residual_CV.gather(1, targets_C1).float()
            log_probability_C1 = target_probability_C1.clamp_min(torch.finfo(torch.float32).tiny).log()
            plain -= log_probability_C1.sum()
            log_total += (target_logit_C1 - log_probability_C1).sum()  # log of the softmax's denominator
            if needs_hidden or needs_weight:
                residual_C1 = (target_probability_C1 - (1.0 - smoothing)).to(residual_CV.dtype)
                rows_C1 = torch.arange(len(hidden_CM), device=residual_CV.device)[:, None]
                residual_CV[rows_C1, targets_C1] = residual_C1  # `scatter_` copies the whole chunk in bfloat16
            if grad_hidden_NM is not None:
                torch.mm(residual_CV, weight, out=grad_hidden_NM[start : start + CHUNK])
            if grad_weight_VM is not None:
                grad_weight_VM += residual_CV.T @ hidden_CM
        # The uniform part smoothing / V is the same for all entries, so its terms need sums of rows only.
        mean_logit = (hidden_sum_M @ weight_sum_M) / vocabulary
        smoothed = (1.0 - smoothing) * plain + smoothing * (log_total - mean_logit)
        if grad_hidden_NM is not None and smoothing:
            grad_hidden_NM -= (weight_sum_M * (smoothing / vocabulary)).to(grad_hidden_NM.dtype)
        if grad_weight_VM is not None and smoothing:
            grad_weight_VM -= hidden_sum_M * (smoothing / vocabulary)
        ctx.save_for_backward(grad_hidden_NM, grad_weight_VM)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, grad_smoothed: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_NM, grad_weight_VM = ctx.saved_tensors
        hidden = None if grad_hidden_NM is None else grad_hidden_NM * grad_smoothed.to(grad_hidden_NM.dtype)
        return hidden, None if grad_weight_VM is None else grad_weight_VM * grad_smoothed, None, None, None
