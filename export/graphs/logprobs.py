"""The graph `logprobs` of every model with a decoder: logits → log-probabilities and the top tokens.

Shapes: P positions with logits, N top tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from export.graphs.tracing import Input, Signature
from model.config import ModelConfig


class LogprobsGraph(nn.Module):
    """`logprobs`: logits → log-probabilities and the top tokens.

    logprobs float32 (P, V): log-softmax of the logits. normaliser float32 (P,): the log-sum-exp subtracted from them,
    so that logits = logprobs + normaliser. top_ids int64 (P, N): the N = `top_k` tokens with the highest logits, best
    first, ties by the lower id. top_logprobs float32 (P, N): their log-probabilities.

    N = 0 adds no cost; 1 costs more than 2 (32 rows of a 32,000-token vocabulary on one thread, including the softmax:
    330 microseconds with 0, 950 with 1, 840 with 2, 730 with 8). Tokens are ranked by logits because rows that need
    only the most likely token find it without this graph: log-probabilities of two different logits may be equal.
    """

    def forward(self, logits_PV: Tensor, top_k_1: Tensor) -> list[Tensor]:
        logprobs_PV = logits_PV.log_softmax(-1)
        # One subtraction replaces ReduceLogSumExp, which costs as much as nine LogSoftmax (4430 against 493
        # microseconds at 32 x 32000).
        normaliser_P = logits_PV[:, 0] - logprobs_PV[:, 0]
        ids_PN = _top_k(logits_PV, top_k_1)
        return [logprobs_PV, normaliser_P, logprobs_PV.gather(1, ids_PN), ids_PN]


def _top_k(scores_PV: Tensor, top_k_1: Tensor) -> Tensor:
    """Return the indices of the highest scores of each row, int64 (P, N), sorted, ties by the lower index."""
    # Called directly, because `torch.topk` takes a Python number: the graph would unpack and repack its tensor.
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
    """Return the signature of `logprobs`, which depends only on the vocabulary size."""
    logits = Input("logits", ("asked", config.vocab_size), torch.float32)
    return Signature(
        module=LogprobsGraph(),
        arguments=(logits, Input("top_k", (1,))),
        outputs=("logprobs", "normaliser", "top_logprobs", "top_ids"),
    )
