"""Models whose `w4a16` graphs have the weights of the fp32 graphs, bit for bit, so that both answer alike."""

import torch
from torch import Tensor, nn

BLOCK, LAST = 32, 8  # weights that share a scale, and the largest magnitude of their integers
LAST_OF_ROW = 127  # of the integers of an embedding's row


def with_packed_weights(model):
    """The model, its weights rounded in place: products to 4 bits in blocks of inputs, embeddings to 8 bits by row. All
    scales are powers of two, so float16 holds what the integers stand for. The tables must not be tied."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                for part in module.weight.split(BLOCK, dim=1):
                    part.copy_(on_grid(part, LAST))
            elif isinstance(module, nn.Embedding):
                module.weight.copy_(on_grid(module.weight, LAST_OF_ROW))
    return model


def on_grid(rows: Tensor, last: int) -> Tensor:
    """Rows as multiples of a power of two each, below `last` of them but for the largest, which are `last`: so the
    scales are found again."""
    largest = rows.abs().amax(1, keepdim=True)
    step = torch.exp2(torch.round(torch.log2(largest / last)))
    below = (rows / step).round().clamp(1 - last, last - 1)
    is_largest = torch.zeros_like(rows, dtype=torch.bool).scatter(1, rows.abs().argmax(1, keepdim=True), True)
    return torch.where(is_largest, rows.sign() * last, below) * step
