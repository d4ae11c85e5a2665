"""What fp16 costs the random models of `python -m bench gpu-check` in PyTorch, without ONNX Runtime or CUDA: the
largest difference of a log-probability from fp32, on the CPU. The bars of the part `answers` follow from it.

usage: python -m bench.gpu.rounding
"""

from __future__ import annotations

import copy
import random

import torch
from torch import Tensor

from bench.gpu.answers import LIKELY
from bench.gpu.bundles import SMALL
from bench.gpu.models import small_model
from model.architectures import GenerativeModel

SEQUENCES, TOKENS, MOST_SOURCE = 40, 40, 48


def largest_error(name: str) -> float:
    """Of the log-probabilities of tokens that a search may take."""
    model = small_model(*SMALL[name])
    half, rng = copy.deepcopy(model).half(), random.Random(1)
    found = 0.0
    for _ in range(SEQUENCES):
        tokens = [model.config.bos_id, *_drawn(model, rng, TOKENS - 1)]
        source = _drawn(model, rng, rng.randrange(2, MOST_SOURCE)) if model.config.has_encoder else []
        exact_TV, rounded_TV = (_logprobs(one, source, tokens) for one in (model, half))
        found = max(found, float((exact_TV - rounded_TV).abs()[exact_TV > LIKELY].max()))
    return found


def _drawn(model: GenerativeModel, rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(4, model.config.vocab_size) for _ in range(count)]


@torch.no_grad()
def _logprobs(model: GenerativeModel, source: list[int], tokens: list[int]) -> Tensor:
    """float32 (T, V)."""
    inputs = [torch.tensor([tokens])]
    if source:
        inputs = [torch.tensor([source]), torch.tensor([len(source)]), *inputs]
    logits_TV: Tensor = model.decoder.unembedding(model(*inputs))[0]
    return logits_TV.float().log_softmax(-1)


if __name__ == "__main__":
    for each in SMALL:
        print(f"{each}: {largest_error(each):.3f}")
