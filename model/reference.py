"""Decoding that is slow and obviously right: the oracle for everything that decodes fast.

One sequence, no cache, no batch: every step runs the whole model over the whole prefix and reads the last position.
A strategy is a rule over `next_logits`; one that keeps a single prefix is a `Choose` for `extend`. Nothing here is
meant for serving, and nothing here may share code with the cached path that it is there to check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from model.transformer import EncoderDecoder, Transformer

Choose = Callable[[Tensor], int]
"""Logits float32 (V,) → the id of the next token."""


def greedy(model: Transformer, prompt: Sequence[int], *, source: Sequence[int] = (), max_tokens: int) -> list[int]:
    """The most likely token, again and again; of equal ones the lowest id. Arguments, result and errors of `extend`."""
    return extend(model, prompt, source=source, max_tokens=max_tokens, choose=lambda logits_V: int(logits_V.argmax()))


def extend(
    model: Transformer, prompt: Sequence[int], *, source: Sequence[int] = (), max_tokens: int, choose: Choose
) -> list[int]:
    """Appends one chosen token after another to `prompt`, until the end of the sentence or `max_tokens` of them.

    prompt: at least one id, bos for an encoder-decoder. source: the source's ids with its eos, for an encoder-decoder
    only. The model must be in evaluation mode; it is not changed. Returns the new ids, with eos where it was produced.
    Raises ValueError when these do not fit the model or its longest sequence.
    """
    _check(model, prompt, source, max_tokens)
    new: list[int] = []
    while len(new) < max_tokens and model.config.eos_id not in new:
        new.append(choose(next_logits(model, [*prompt, *new], source=source)))
    return new


@torch.inference_mode()
def next_logits(model: Transformer, prefix: Sequence[int], *, source: Sequence[int] = ()) -> Tensor:
    """Logits float32 (V,) of the token that follows `prefix`."""
    device = model.decoder.unembedding.weight.device
    prefix_1T = torch.tensor([list(prefix)], device=device)
    if isinstance(model, EncoderDecoder):
        states_1TM = model(
            torch.tensor([list(source)], device=device), torch.tensor([len(source)], device=device), prefix_1T
        )
    else:
        states_1TM = model(prefix_1T)
    logits_V: Tensor = model.decoder.unembedding(states_1TM[0, -1])
    return logits_V.float()


def _check(model: Transformer, prompt: Sequence[int], source: Sequence[int], max_tokens: int) -> None:
    config = model.config
    if model.training:
        raise ValueError("the model is in training mode; call model.eval() first")
    if max_tokens < 1:
        raise ValueError(f"max_tokens: must be at least 1, got {max_tokens}")
    if not prompt:
        raise ValueError("prompt: must hold at least one token")
    longest = len(prompt) + max_tokens - 1  # the last new token is never an input
    if longest > config.max_target_len:
        raise ValueError(
            f"max_tokens: {len(prompt)} prompt tokens and {max_tokens} new ones need {longest} positions, "
            f"the model has {config.max_target_len}"
        )
    if config.has_encoder and not 1 <= len(source) <= config.max_source_len:
        raise ValueError(f"source: must hold 1..{config.max_source_len} tokens, got {len(source)}")
    if not config.has_encoder and source:
        raise ValueError(f"source: a decoder-only model takes none, got {len(source)} tokens")
