"""What PyTorch says, one row at a time, without padding and without a batch: what graphs are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from export.samples import Ids
from model.attention import merge_heads, split_heads
from model.compression import Compression
from model.layers import Block
from model.transformer import EncoderDecoder, LayerCache, Transformer

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
        """self_key.i and self_value.i of every position of the target, (K, T, D). Of layers that compress those of
        every window, the last of which may be incomplete, (K, N, D), and recent_key.i and recent_value.i, see
        `export.graphs.GraphCompressedAttention`."""
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
            compression = self.model.decoder.compressions[i]
            if compression is not None:
                arrays |= _compressed(compression, cache, i)
        return arrays

    @torch.inference_mode()
    def attention(self, source: Ids, target: Ids) -> NDArray[Any]:
        """How every layer and head attends to the source, (L, H, T, S): a softmax of our own, in float64, over the
        source's keys and what the query projections of an ordinary forward pass were seen to return."""
        assert isinstance(self.model, EncoderDecoder)
        config, seen, keys = self.model.config, dict[int, NDArray[Any]](), self.source(source)
        hooks = []
        for i, block in enumerate(self.model.decoder.blocks):
            assert isinstance(block, Block)
            assert block.cross_attention is not None

            def keep(_module: Any, _inputs: Any, output: Tensor, layer: int = i) -> None:
                seen[layer] = output[0].double().numpy()

            hooks.append(block.cross_attention.query.register_forward_hook(keep))
        try:
            self.model(*self._encoder_inputs(source), torch.tensor([target]))
        finally:
            for hook in hooks:
                hook.remove()
        heads, kv_heads, head_dim = config.num_heads, config.attention_kv_heads, config.attention_head_dim
        layers = []
        for i in range(config.num_decoder_layers):
            query_THD = seen[i].reshape(len(target), heads, head_dim)
            key_SKD = keys[f"cross_key.{i}"][0].astype(np.float64).transpose(1, 0, 2)
            key_SHD = np.repeat(key_SKD, heads // kv_heads, axis=1)
            scores_HTS = np.einsum("thd,shd->hts", query_THD, key_SHD) * config.attention_factor
            powers_HTS = np.exp(scores_HTS - scores_HTS.max(-1, keepdims=True))
            layers.append(powers_HTS / powers_HTS.sum(-1, keepdims=True))
        return np.stack(layers)

    def _encoder_inputs(self, source: Ids) -> tuple[Tensor, Tensor]:
        return torch.tensor([source]), torch.tensor([len(source)])


def _compressed(compression: Compression, cache: LayerCache, layer: int) -> Arrays:
    """What a layer that compresses keeps, from the keys and values of all positions."""
    arrays: Arrays = {}
    stride, whole = compression.stride, [merge_heads(tensor) for tensor in cache]
    for part, plain_1TE, told_1TE in zip(("key", "value"), whole, compression.everywhere(*whole), strict=True):
        length = plain_1TE.shape[1]
        last = [length - 1] if length % stride else []
        told_KND = split_heads(told_1TE, cache.key.shape[1])[0][:, [*range(stride - 1, length, stride), *last]]
        recent_WE = nn.functional.pad(plain_1TE[0], (0, 0, stride - 1, 0))[length:]
        arrays |= {f"self_{part}.{layer}": told_KND.numpy(), f"recent_{part}.{layer}": recent_WE.flatten().numpy()}
    return arrays
