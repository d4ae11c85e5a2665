"""Floating-point operations of a training step, by the formulas of torch's counter, and the machine's peak, measured.

Matrix products and convolutions count, 2 m n k operations for (m, k) by (k, n); element-wise work is a few per cent of
them, and published figures leave it out (Kaplan et al. 2020, 2.1; Chowdhery et al. 2022, appendix B). What is computed
counts: the padding of a batch, the masked half of causal scores, the backward pass as far as parameters are trained.

The operations of a model are a polynomial of the sizes of a batch: no term has more than the rows times two lengths. So
the counter watches a few small batches before training, and `StepFlops` solves for the coefficients. Training itself
runs without a counter, which would take longer than the step.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from model.architectures import Model
from model.config import ModelConfig
from model.mixture_of_experts import ExpertFeedForward
from model.training.data.examples import IGNORED, Batch
from model.training.objective.loss import batch_loss

LENGTHS = (2, 2), (3, 2), (4, 2), (2, 3), (3, 3), (2, 4)  # source and target: these determine a quadratic polynomial

SIZES = 128, 8192  # of the square matrices whose products measure the peak: the smallest and the largest
ENOUGH = 1024  # a smaller size does not end the measurement: on a busy machine each product may wait for its threads
PRODUCT_S = 0.001  # at least; short, so that some are done without an interruption by other work
MEASURED_S = 0.025  # the product of each size is repeated for this long,
REPEATS = 3  # and at least so often,
PATIENCE_S = 2.0  # and so much longer while no product of the smallest size takes less than PRODUCT_S: all have waited


def _vector_product(matrix: Tensor, *_: Any, **__: Any) -> int:
    """Operations of the product of a matrix and a vector, which torch's counter leaves out."""
    return 2 * matrix.numel()


def _convolution_backward(gradient: Tensor, source: Tensor, weight: Tensor, *others: Any, **_: Any) -> int:
    """Operations of a convolution's backward pass; for groups, torch's counter would multiply those of the weights by
    the number of groups. others: end with the gradients wanted."""
    return int(2 * gradient.numel() * weight[0].numel() * sum(others[-1][:2]))


FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    torch.ops.aten.mv: _vector_product,
    torch.ops.aten.convolution_backward: _convolution_backward,
}


class _Counter(TorchDispatchMode):
    """Adds up operations by torch's formulas. `FlopCounterMode` also attributes them to modules, which takes three
    times as long."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if formula := FORMULAS.get(func.overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out


class StepFlops:
    """Operations of the forward and backward passes of a batch; one of a frozen parameter has less of the latter.

    Exact for Transformers. Recurrent layers leave out a product of the first step here and there, by the lengths of the
    rows, which comes to at most 2 %.
    """

    def __init__(self, model: Model, *, r_drop_weight: float = 0.0) -> None:
        """model: on any device, in training mode; its weights, gradients and random generators stay as they are.
        r_drop_weight: as for `batch_loss`; other than 0, a step has two passes."""
        self._config = model.config
        batches = list(_small_batches(model.config))
        measured = [measured_flops(model, batch, r_drop_weight=r_drop_weight) for batch in batches]
        terms = torch.stack([self._terms(batch) for batch in batches])
        scale = terms.amax(0).clamp_min(1.0)
        # Of the least norm: terms that a model lacks are 0 in all batches or proportional to another one.
        solved = torch.linalg.lstsq(terms / scale, torch.tensor(measured).double()[:, None], driver="gelsd")
        self._operations = solved.solution[:, 0] / scale  # of each term

    def __call__(self, batch: Batch) -> int:
        return round(float(self._terms(batch) @ self._operations))

    def _terms(self, batch: Batch) -> Tensor:
        """The products of a batch's sizes to which operations are proportional, float64."""
        config, (rows, source), target = self._config, batch.source_BS.shape, batch.input_BT.shape[1]
        windows = target // config.compression_stride if config.compression_stride else 0
        read = int(batch.lengths_B.sum()) if config.is_recurrent else 0  # recurrent layers leave out padding
        lengths = 1, source, target, source * source, source * target, target * target, target * windows
        return torch.tensor([batch.tokens, read, *(rows * length for length in lengths)], dtype=torch.float64)


def measured_flops(model: Model, batch: Batch, *, r_drop_weight: float = 0.0) -> int:
    """Operations that torch's counter finds in the forward and backward passes of a batch. Leaves gradients at None
    and random generators as they are."""
    device = next(model.parameters()).device
    # A gradient is freed as soon as it is there: beside the weights of a model, all gradients may not fit.
    hooks = [
        module.router.register_forward_hook(_take_turns)
        for module in model.modules()
        if isinstance(module, ExpertFeedForward)
    ]
    for parameter in model.parameters():
        if parameter.requires_grad:
            hooks.append(parameter.register_post_accumulate_grad_hook(_free_gradient))  # type: ignore[no-untyped-call]
    counter, generators = _Counter(), torch.random.fork_rng([device] if device.type == "cuda" else [])
    try:
        # cuDNN computes recurrent layers by operators that the counter does not know.
        with counter, generators, torch.backends.cudnn.flags(enabled=False):
            loss = batch_loss(model, batch.to(device), r_drop_weight=r_drop_weight)
            torch.autograd.backward(loss.smoothed)
    finally:
        for hook in hooks:
            hook.remove()
    return counter.flops


def _free_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def _take_turns(router: Any, inputs: Any, logits_NX: Tensor) -> Tensor:
    """Logits by which every expert reads as many tokens, which matters where only some experts are trained."""
    tokens, experts = logits_NX.shape
    turns_NX = torch.arange(tokens)[:, None] + torch.arange(experts)
    return logits_NX * 0.0 + (turns_NX % experts).to(logits_NX)


def _small_batches(config: ModelConfig) -> Iterator[Batch]:
    """As many as there are terms that a model may have, none of which is a combination of the others in all batches."""
    lengths = dict.fromkeys(
        (min(source, config.max_source_len), min(target, config.max_target_len))
        for source, target in (*LENGTHS, (2, 2 * config.compression_stride + 1 if config.compression_stride else 2))
    )
    for source, target in lengths:
        yield _small_batch(config, source, target)
    if not config.is_classifier:
        yield _small_batch(config, *LENGTHS[-1], left_out=1)
    if config.is_recurrent:
        yield _small_batch(config, *LENGTHS[-1], shorter=2)


def _small_batch(config: ModelConfig, source: int, target: int, *, left_out: int = 0, shorter: int = 1) -> Batch:
    """Rows of these lengths. left_out: positions that predict nothing. shorter: rows whose source is one token shorter,
    at least one: of equal lengths, oneDNN computes recurrent layers by operators that the counter does not know."""
    rows = max(3, config.num_experts)  # a multiple of the experts, so that each reads as many tokens
    source, target = (source if config.has_encoder else 0), (target if config.has_decoder else 0)
    source_BS, input_BT = (torch.zeros(rows, length, dtype=torch.int64) for length in (source, target))
    lengths_B = torch.full((rows,), source) - (torch.arange(rows) >= rows - shorter).long() * bool(source)
    target_BT = (
        input_BT.clone() if config.has_decoder else source_BS[:, : 1 if config.is_classifier else source].clone()
    )
    target_BT.view(-1)[:left_out] = IGNORED
    return Batch(source_BS, lengths_B, input_BT, target_BT, target_BT.numel() - left_out)


@functools.cache
def peak_flops_per_s(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """The speed of the fastest product of two square matrices, in operations per second.

    Measured once per process. threads: `torch.get_num_threads()`, on which the figure depends.
    """
    assert threads == torch.get_num_threads(), threads
    return fastest_product(
        lambda size: shortest_s(
            _multiplication(size, device, dtype), expected_s=PRODUCT_S if size == SIZES[0] else float("inf")
        )
    )


def fastest_product(seconds_of: Callable[[int], float]) -> float:
    """The best speed over the sizes, which double until a product takes PRODUCT_S and has ENOUGH rows, so that
    processors and accelerators are both busy, in operations per second.

    seconds_of: measures the product of two square matrices of a size, in seconds.
    """
    size, most = SIZES
    fastest = 0.0
    while True:
        product_s = seconds_of(size)
        fastest = max(fastest, 2 * size**3 / product_s)
        if (product_s >= PRODUCT_S and size >= ENOUGH) or size >= most:
            return fastest
        size *= 2


def _multiplication(size: int, device: torch.device, dtype: torch.dtype) -> Callable[[], None]:
    """Multiplies two matrices and waits for the result. Draws no random numbers: a run's generators stay as they are.
    The first call, which prepares the device, is done."""
    factor = torch.full((size, size), 0.5, device=device, dtype=dtype)
    result = torch.empty_like(factor)

    def multiply() -> None:
        torch.mm(factor, factor, out=result)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    multiply()
    return multiply


def shortest_s(run: Callable[[], None], *, expected_s: float) -> float:
    """The shortest time that `run` takes, of REPEATS and of as many as begin in MEASURED_S, or in PATIENCE_S more
    while none is as short as expected."""
    ends_s, times_s = time.perf_counter() + MEASURED_S, list[float]()
    while len(times_s) < REPEATS or time.perf_counter() < ends_s + (min(times_s) >= expected_s) * PATIENCE_S:
        began_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)
