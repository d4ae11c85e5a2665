"""What PyTorch says, one row at a time, without padding and without a batch: what graphs are compared with."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from export.samples import Ids
from model.transformer import EncoderDecoder, Transformer

Arrays = dict[str, NDArray[Any]]


class Expected:
    """Outputs of a model on the CPU, by the names that the graphs give them."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    @torch.inference_mode()
    def source(self, source: Ids) -> Arrays:
        """encoder_states (1, S, M), cross_key.i and cross_value.i (1, K, S, D)."""
        assert isinstance(self.model, EncoderDecoder)
        states, layers = self.model.encode(*self._encoder_inputs(source))
        arrays = {"encoder_states": states.numpy()}
        for i, layer in enumerate(layers):
            arrays |= {f"cross_key.{i}": layer.key.numpy(), f"cross_value.{i}": layer.value.numpy()}
        return arrays

    @torch.inference_mode()
    def logits(self, source: Ids, target: Ids) -> NDArray[Any]:
        """Behind every position of the target, (T, V): the training view, without a cache."""
        tokens = torch.tensor([target])
        if isinstance(self.model, EncoderDecoder):
            states = self.model(*self._encoder_inputs(source), tokens)
        else:
            states = self.model(tokens)
        logits: NDArray[Any] = self.model.decoder.unembedding(states)[0].float().numpy()
        return logits

    def logprobs(self, source: Ids, target: Ids) -> NDArray[Any]:
        """Log-softmax of the same, (T, V)."""
        logprobs: NDArray[Any] = torch.from_numpy(self.logits(source, target)).log_softmax(-1).numpy()
        return logprobs

    @torch.inference_mode()
    def caches(self, source: Ids, target: Ids) -> Arrays:
        """self_key.i and self_value.i of every position of the target, (K, T, D)."""
        caches = self.model.decoder.empty_caches(1, len(target))
        tokens, starts = torch.tensor([target]), torch.zeros(1, dtype=torch.int64)
        if isinstance(self.model, EncoderDecoder):
            inputs = self._encoder_inputs(source)
            self.model.decode(tokens, starts, caches, self.model.encode(*inputs)[1], inputs[1])
        else:
            self.model.decode(tokens, starts, caches)
        arrays: Arrays = {}
        for i, cache in enumerate(caches):
            arrays |= {f"self_key.{i}": cache.key[0].numpy(), f"self_value.{i}": cache.value[0].numpy()}
        return arrays

    def _encoder_inputs(self, source: Ids) -> tuple[Tensor, Tensor]:
        return torch.tensor([source]), torch.tensor([len(source)])
