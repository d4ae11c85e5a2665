"""Reference decoding, slow and obviously correct: the oracle for the fast decoders.

One request, no cache: every step runs the whole decoder over every complete hypothesis. This module has the functions
of a single sequence (`greedy`, `score`, `cross_attention`) and `ModelPredictor`, through which a strategy
reads a model; the strategies are in `model.reference.beam` and `model.reference.sampling`. This code is not meant for
serving, and it must not share code with the cached path that it checks.

Shapes: R hypotheses, V vocabulary, L decoder layers, H heads, T target positions, S source positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from model.architectures import GenerativeModel, SourceModel
from model.recurrent import EncodedSource, Recurrent

Process = Callable[[np.ndarray, Sequence[int]], np.ndarray]
"""Log-probabilities float32 (V,), not to be modified, and the new tokens so far → scores float32 (V,)."""

Stop = Callable[[Sequence[int]], bool]
"""Whether these new tokens end the answer even though the last of them is not eos."""


class Predictor(Protocol):
    """The view of a decoding strategy on a model with its prompt and, for an encoder-decoder, its source."""

    eos_ids: tuple[int, ...]

    def logprobs(self, hypotheses: Sequence[Sequence[int]]) -> np.ndarray:
        """Log-probabilities float32 (R, V) of the token after each of R lists of new tokens, all of one length."""

    def coverage(self, tokens: Sequence[int]) -> np.ndarray:
        """float64 (S,): the attention that each source position received while `tokens` were generated."""


def greedy(model: GenerativeModel, prompt: Sequence[int], *, source: Sequence[int] = (), max_tokens: int) -> list[int]:
    """Appends the most likely token to `prompt`, until it is eos or there are `max_tokens` of them; ties go to the
    lowest id.

    prompt: at least one id, bos for an encoder-decoder. source: the source's ids with its eos, for an encoder-decoder
    only. The model must be in evaluation mode; it is not changed. Returns the new ids, including eos if it was
    produced. Raises ValueError if the arguments do not fit the model or exceed its longest sequence.
    """
    _check(model, prompt, source, max_tokens)
    new: list[int] = []
    while len(new) < max_tokens and not (new and new[-1] in model.config.eos_ids):
        new.append(int(next_logits(model, [*prompt, *new], source=source).argmax()))
    return new


@torch.inference_mode()
def next_logits(model: GenerativeModel, prefix: Sequence[int], *, source: Sequence[int] = ()) -> Tensor:
    """Logits float32 (V,) of the token that follows `prefix`."""
    logits_V: Tensor = model.decoder.unembedding(_states(model, [prefix], source)[0, -1])
    return logits_V.float()


@torch.inference_mode()
def score(
    model: GenerativeModel, prompt: Sequence[int], target: Sequence[int], *, source: Sequence[int] = ()
) -> list[float]:
    """The log-probability of each token of `target`, at least one, after `prompt`. Arguments, errors: see `greedy`."""
    _check(model, prompt, source, len(target))
    states_TM = _states(model, [[*prompt, *target[:-1]]], source)[0, len(prompt) - 1 :]
    logprobs_TV = model.decoder.unembedding(states_TM).float().log_softmax(-1)
    return [float(logprobs_V[token]) for logprobs_V, token in zip(logprobs_TV, target, strict=True)]


@torch.inference_mode()
def cross_attention(model: SourceModel, inputs: Sequence[int], *, source: Sequence[int]) -> Tensor:
    """Weights float32 (L, H, T, S) with which each of T decoder inputs, bos first, attends to each source position. A
    recurrent model has one layer and one head of attention; raises ValueError if it has none."""
    lengths_1 = _row([len(source)], model)[0]
    if isinstance(model, Recurrent):
        return _alphas(model, inputs, model.encode(_row(source, model), lengths_1), lengths_1)[None, None]
    _, cross = model.encode(_row(source, model), lengths_1)
    attends = model.source_attention(cross, lengths_1)
    model.decoder.train_states(_row(inputs, model), attends)
    return torch.stack([attend.weights_BHTS[0] for attend in attends]).float()


def _alphas(model: Recurrent, inputs: Sequence[int], source: EncodedSource, lengths_1: Tensor) -> Tensor:
    """Weights float32 (T, S), computed token by token."""
    attend = model.source_attention(source, lengths_1)
    if attend is None:
        raise ValueError("score: a model without a score has no attention, got none")
    states, rows = model.start(source), []
    for token in inputs:
        _, states = model.decoder(_row([token], model), states, source.keys_BSA, attend)
        rows.append(attend.weights_BTS[0, 0])
    return torch.stack(rows).float()


class ModelPredictor:
    """A model with its prompt and source; every call runs it over the whole sequences."""

    def __init__(
        self, model: GenerativeModel, prompt: Sequence[int], *, source: Sequence[int] = (), max_tokens: int
    ) -> None:
        """Arguments and errors as in `greedy`."""
        _check(model, prompt, source, max_tokens)
        self.model, self.prompt, self.source = model, list(prompt), list(source)
        self.eos_ids = model.config.eos_ids

    @torch.inference_mode()
    def logprobs(self, hypotheses: Sequence[Sequence[int]]) -> np.ndarray:
        states_RTM = _states(self.model, [[*self.prompt, *tokens] for tokens in hypotheses], self.source)
        logits_RV: Tensor = self.model.decoder.unembedding(states_RTM[:, -1])
        return logits_RV.float().log_softmax(-1).cpu().numpy()

    def coverage(self, tokens: Sequence[int]) -> np.ndarray:
        if not isinstance(self.model, SourceModel):
            raise ValueError("coverage: a decoder-only model has no source")
        weights_LHTS = cross_attention(self.model, [*self.prompt, *tokens[:-1]], source=self.source)
        weights_TS = weights_LHTS.double().mean((0, 1))
        summed: np.ndarray = weights_TS[-len(tokens) :].sum(0).cpu().numpy()
        return summed


def _states(model: GenerativeModel, inputs: Sequence[Sequence[int]], source: Sequence[int]) -> Tensor:
    """The states (R, T, M) of rows of decoder inputs, all with the same source."""
    inputs_RT = torch.cat([_row(tokens, model) for tokens in inputs])
    states_RTM: Tensor
    if isinstance(model, SourceModel):
        source_RS = _row(source, model).expand(len(inputs), -1)
        states_RTM = model(source_RS, _row([len(source)] * len(inputs), model)[0], inputs_RT)
    else:
        states_RTM = model(inputs_RT)
    return states_RTM


def _row(values: Sequence[int], model: GenerativeModel) -> Tensor:
    """int64 (1, T) on the model's device."""
    return torch.tensor([list(values)], device=model.decoder.unembedding.weight.device)


def _check(model: GenerativeModel, prompt: Sequence[int], source: Sequence[int], max_tokens: int) -> None:
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
