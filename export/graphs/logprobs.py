"""The graph `logprobs`, which every model with a decoder has: logits → log-probabilities and the best tokens.

Shapes: P positions that are asked for, N tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from export.graphs.signature import Signature
from model.config import ModelConfig


class LogprobsGraph(nn.Module):
    """`logprobs`: logits → log-probabilities, and the best tokens.

    logprobs float32 (P, V): log-softmax of the logits. normaliser float32 (P,): the log-sum-exp taken off them, so that
    logits = logprobs + normaliser. top_ids int64 (P, N): the N = `top_k` best tokens by their logits, best first, of
    equal ones the lower id; top_logprobs float32 (P, N): theirs. N may be 0, and then costs nothing; 1 costs more than
    2 (32 rows of 32,000 words on one thread: softmax and all 330 microseconds with 0, 950 with 1, 840 with 2, 730 with
    8). By logits, so that rows of which only the likeliest token is wanted find the same one without this graph:
    log-probabilities of two logits that differ may be equal.
    """

    def forward(self, logits_PV: Tensor, top_k_1: Tensor) -> list[Tensor]:
        logprobs_PV = logits_PV.log_softmax(-1)
        # One subtraction instead of ReduceLogSumExp, which costs as much as nine LogSoftmax (4430 against 493
        # microseconds at 32 x 32000).
        normaliser_P = logits_PV[:, 0] - logprobs_PV[:, 0]
        ids_PN = _top_k(logits_PV, top_k_1)
        return [logprobs_PV, normaliser_P, logprobs_PV.gather(1, ids_PN), ids_PN]


def _top_k(scores_PV: Tensor, top_k_1: Tensor) -> Tensor:
    """The best of each row, sorted, of equal ones the lower index first: int64 indices (P, N)."""
    # Named outright, because `torch.topk` takes a number, and the graph would take it out of its tensor and back in.
    count: Any = top_k_1.item()
    results: Sequence[Tensor] = torch.onnx.ops.symbolic_multi_out(
        "::TopK",
        (scores_PV, top_k_1),
        dtypes=[scores_PV.dtype, torch.int64],
        shapes=[(scores_PV.shape[0], count)] * 2,
        version=11,
    )
    return results[1]


def logprobs_signature(config: ModelConfig) -> Signature:
    """That of `logprobs`, which is the same for all models with so many words."""
    return Signature(
        module=LogprobsGraph(),
        arguments=(torch.zeros(3, config.vocab_size), torch.tensor([2])),
        dynamic_axes=({0: torch.export.Dim("asked")}, {}),
        inputs=("logits", "top_k"),
        outputs=("logprobs", "normaliser", "top_logprobs", "top_ids"),
    )
