"""What PyTorch says, one row at a time, without padding and without a batch: what graphs are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from export.samples import Ids
from model.layers import Block
from model.recurrent import Recurrent, first_names, state_names
from model.transformer import EncoderDecoder, SourceModel, Transformer

Arrays = dict[str, NDArray[Any]]


class Expected:
    """Outputs of a model on the CPU, by the names that the graphs give them."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    @torch.inference_mode()
    def source(self, source: Ids) -> Arrays:
        """encoder_states (1, S, M), cross_key.i and cross_value.i (1, K, S, D); of recurrent models what attention
        reads, and first_NAME (1, M)."""
        if isinstance(self.model, Recurrent):
            return self._recurrent_source(self.model, source)
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
        if isinstance(self.model, SourceModel):
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
        """self_key.i and self_value.i of every position of the target, (K, T, D); of recurrent models what is carried
        behind the last, (M,)."""
        if isinstance(self.model, Recurrent):
            return self._carried(self.model, source, target)
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

    @torch.inference_mode()
    def attention(self, source: Ids, target: Ids) -> NDArray[Any]:
        """How every layer and head attends to the source, (L, H, T, S): a softmax of our own, in float64, over the
        source's keys and what the query projections of an ordinary forward pass were seen to return."""
        if isinstance(self.model, Recurrent):
            return self._recurrent_attention(self.model, source, target)
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

    def _recurrent_source(self, model: Recurrent, source: Ids) -> Arrays:
        told = model.encode(*self._encoder_inputs(source))
        arrays = {"encoder_states": told.states_BSN.numpy()}
        if model.config.score != "none":
            arrays["cross_value.0"] = told.states_BSN[:, None].numpy()
        if told.keys_BSA is not None:
            arrays["cross_key.0"] = told.keys_BSA[:, None].numpy()
        names = (f"first_{name}" for name in first_names(model.config))
        return arrays | {name: first.numpy() for name, first in zip(names, told.firsts, strict=True)}

    def _carried(self, model: Recurrent, source: Ids, target: Ids) -> Arrays:
        inputs = self._encoder_inputs(source)
        told = model.encode(*inputs)
        _, carried = model.decode(torch.tensor([target]), model.start(told), told, inputs[1])
        return {name: state[0].numpy() for name, state in zip(state_names(model.config), carried, strict=True)}

    def _recurrent_attention(self, model: Recurrent, source: Ids, target: Ids) -> NDArray[Any]:
        """(1, 1, T, S): scores by their definitions from the decoder states that an ordinary forward pass was seen to
        compare with the source."""
        score, seen = model.decoder.score, list[Tensor]()
        assert score is not None, "there is no attention without a score"
        handle = score.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
        try:
            model(*self._encoder_inputs(source), torch.tensor([target]))
        finally:
            handle.remove()
        told = self.source(source)
        states_SN = told["cross_value.0"][0, 0].astype(np.float64)
        rows = []
        for state_M in torch.cat(seen).unbind():
            query = state_M if score.query is None else score.query(state_M)
            query_E = query.double().numpy()
            if "cross_key.0" in told:
                vector_A = score.vector.double().numpy()
                scores_S = np.tanh(told["cross_key.0"][0, 0].astype(np.float64) + query_E) @ vector_A
            else:
                scores_S = states_SN @ query_E
            powers_S = np.exp(scores_S - scores_S.max())
            rows.append(powers_S / powers_S.sum())
        return np.stack(rows)[None, None]

    def _encoder_inputs(self, source: Ids) -> tuple[Tensor, Tensor]:
        return torch.tensor([source]), torch.tensor([len(source)])
