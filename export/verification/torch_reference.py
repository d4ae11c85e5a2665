"""PyTorch's outputs, one row at a time, without padding and without a batch: the reference for graphs.

`TorchReference` computes them with one model; `Expectations` computes them in float64 and in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from export.verification.inputs import Ids, predicted_places
from export.verification.measure import Array, Expectation
from model.architectures import Model, SourceModel
from model.attention import CrossAttention, SelfAttention, merge_heads, split_heads
from model.encoder import Encoder
from model.layers import Block
from model.memory_compressed_attention import KeyValueCompression
from model.recurrent import Recurrent, initial_state_names, state_names
from model.transformer import DecoderStack, EncoderDecoder, EncoderStack, LayerCache

Arrays = dict[str, Array]


class TorchReference:
    """Outputs of a model on the CPU, by their names in the graphs."""

    def __init__(self, model: Model) -> None:
        self.model: Any = model
        self.largest_score = 0.0  # of all attention requested so far

    @torch.inference_mode()
    def source(self, source: Ids) -> Arrays:
        """The outputs of `encode`, without an axis of the batch. encoder_states (S, M); for a decoder cross_key.i and
        cross_value.i (K, S, D); for recurrent models the inputs of attention, and first_NAME (M,); for encoder-only
        models those of their heads."""
        model, inputs, outputs = self.model, self._encoder_inputs(source), dict[str, Tensor]()
        if isinstance(model, EncoderDecoder):
            outputs["encoder_states"], layers = model.encode(*inputs)
            for i, layer in enumerate(layers):
                outputs |= {f"cross_key.{i}": layer.key, f"cross_value.{i}": layer.value}
        elif isinstance(model, Recurrent):
            encoded = model.encode(*inputs)
            outputs["encoder_states"] = encoded.states_BSN
            if model.config.score != "none":
                outputs["cross_value.0"] = encoded.states_BSN[:, None]
            if encoded.keys_BSA is not None:
                outputs["cross_key.0"] = encoded.keys_BSA[:, None]
            names = (f"first_{name}" for name in initial_state_names(model.config))
            outputs.update(zip(names, encoded.initial_states, strict=True))
        else:
            assert isinstance(model, Encoder)
            outputs["encoder_states"] = states = model(*inputs)
            if model.pooler is not None:
                outputs["pooled"] = model.pool(states)
            if model.masked is not None:
                places = list(predicted_places(source))
                outputs["place_logprobs"] = model.token_logits(states[:, places]).log_softmax(-1)
            elif model.config.is_classifier:
                outputs["label_logits"], weights = model.classify(states, inputs[1])
                if weights is not None:
                    outputs["token_weights"] = weights
        return {name: tensor[0].numpy() for name, tensor in outputs.items()}

    @torch.inference_mode()
    def logits(self, source: Ids, target: Ids) -> Array:
        """Logits after every position of the target, (T, V), computed as in training, without a cache."""
        tokens = torch.tensor([target])
        if isinstance(self.model, SourceModel):
            states = self.model(*self._encoder_inputs(source), tokens)
        else:
            states = self.model(tokens)
        logits: Array = self.model.decoder.unembedding(states)[0].numpy()
        return logits

    def logprobs(self, source: Ids, target: Ids) -> Array:
        """Log-softmax of the logits, (T, V)."""
        logprobs: Array = torch.from_numpy(self.logits(source, target)).log_softmax(-1).numpy()
        return logprobs

    @torch.inference_mode()
    def caches(self, source: Ids, target: Ids) -> Arrays:
        """self_key.i and self_value.i of every position of the target, (K, T, D). Layers with compressed attention have
        those of every window, of which the last may be incomplete, (K, N, D), and recent_key.i and recent_value.i, see
        `export.graphs.group_query_attention.GraphCompressedAttention`. Recurrent models have the states after the last
        position, (M,)."""
        model, tokens, inputs = self.model, torch.tensor([target]), self._encoder_inputs(source)
        if isinstance(model, Recurrent):
            encoded = model.encode(*inputs)
            _, carried = model.decode(tokens, model.start(encoded), encoded, inputs[1])
            return {name: state[0].numpy() for name, state in zip(state_names(model.config), carried, strict=True)}
        caches, starts = model.decoder.empty_caches(1, len(target)), torch.zeros(1, dtype=torch.int64)
        if isinstance(model, EncoderDecoder):
            model.decode(tokens, starts, caches, model.encode(*inputs)[1], inputs[1])
        else:
            model.decode(tokens, starts, caches)
        arrays: Arrays = {}
        for i, (cache, compression) in enumerate(zip(caches, model.decoder.compressions, strict=True)):
            arrays |= {f"self_key.{i}": cache.key[0].numpy(), f"self_value.{i}": cache.value[0].numpy()}
            if compression is not None:
                arrays |= _compressed(compression, cache, i)
        return arrays

    @torch.inference_mode()
    def attention(self, source: Ids, target: Ids) -> Array:
        """Attention weights of every layer and head over the source, (L, H, T, S)."""
        if isinstance(self.model, Recurrent):
            return self._recurrent_attention(self.model, source, target)
        return self.every_attention(source, target)["cross_attention"]

    @torch.inference_mode()
    def every_attention(self, source: Ids, target: Ids) -> Arrays:
        """Attention weights of every layer and head, (L, H, queries, keys), by the names of the outputs of `attend`: a
        separate softmax in float64 over the recorded projections of an ordinary forward pass."""
        model, config, seen = self.model, self.model.config, dict[nn.Module, Tensor]()

        def keep(module: nn.Module, _inputs: Any, output: Tensor) -> None:
            seen[module] = output

        kinds = (SelfAttention, CrossAttention)
        parts = [part for module in model.modules() if isinstance(module, kinds) for part in module.children()]
        hooks = [part.register_forward_hook(keep) for part in parts]
        try:
            reads = self._encoder_inputs(source) if config.has_encoder else ()
            model(*reads, torch.tensor([target])) if config.has_decoder else model(*reads)
        finally:
            for hook in hooks:
                hook.remove()
        arrays: Arrays = {}
        if config.has_decoder:
            arrays["decoder_attention"] = self._self_attention(model.decoder, seen, target, is_causal=True)
        if config.has_encoder:
            arrays["encoder_attention"] = self._self_attention(model.encoder, seen, source, is_causal=False)
        if config.has_encoder and config.has_decoder:
            arrays["cross_attention"] = self._cross_attention(self.source(source), seen)
        return arrays

    def _self_attention(
        self, stack: EncoderStack | DecoderStack, seen: Mapping[nn.Module, Tensor], tokens: Ids, *, is_causal: bool
    ) -> Array:
        """(L, H, T, T), from every pair of a query and a key; masked pairs have -inf added."""
        config, count = stack.config, len(tokens)
        positions = stack.position_encoding(torch.tensor([tokens]))
        places = torch.arange(count)
        distances_TT = places.numpy()[:, None] - places.numpy()
        hidden_TT = is_causal & (
            (distances_TT < 0) | (bool(config.sliding_window) & (distances_TT >= config.sliding_window))
        )
        layers = []
        for block in stack.blocks:
            assert isinstance(block, Block)
            attention = block.self_attention
            query_TE, key_TE, _ = torch.split(seen[attention.query_key_value][0], attention.sizes, dim=-1)
            sides = []
            for side_TE, norm in ((query_TE, attention.query_norm), (key_TE, attention.key_norm)):
                side_THD = torch.unflatten(side_TE, -1, (-1, config.attention_head_dim))
                side_THD = side_THD if norm is None else norm(side_THD)
                sides.append(side_THD if positions.rotation is None else _turned(side_THD, *positions.rotation))
            query_THD, key_THD = sides
            scores_HTT = _scores(query_THD.numpy(), key_THD.numpy(), config.softmax_scale)
            bias = block.shaw or positions.bias
            if bias is not None:
                query_BHTD = query_THD.transpose(0, 1)[None] * config.softmax_scale
                scores_HTT = scores_HTT + bias(query_BHTD, places[None], places)[0].numpy()
            layers.append(self._softmax(np.where(hidden_TT, -np.inf, scores_HTT)))
        return np.stack(layers)

    def _recurrent_attention(self, model: Recurrent, source: Ids, target: Ids) -> Array:
        """(1, 1, T, S): scores by definition, from the decoder states with which an ordinary forward pass attended to
        the source."""
        score, seen = model.decoder.score, list[Tensor]()
        assert score is not None, "there is no attention without a score"
        handle = score.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
        try:
            model(*self._encoder_inputs(source), torch.tensor([target]))
        finally:
            handle.remove()
        encoded = self.source(source)
        states_SN = encoded["cross_value.0"][0].astype(np.float64)
        rows = []
        for state_M in torch.cat(seen).unbind():
            query = state_M if score.query is None else score.query(state_M)
            query_E = query.double().numpy()
            if "cross_key.0" in encoded:
                vector_A = score.vector.double().numpy()
                scores_S = np.tanh(encoded["cross_key.0"][0].astype(np.float64) + query_E) @ vector_A
            else:
                scores_S = states_SN @ query_E
            powers_S = np.exp(scores_S - scores_S.max())
            rows.append(powers_S / powers_S.sum())
        return np.stack(rows)[None, None]

    def _cross_attention(self, keys: Arrays, seen: Mapping[nn.Module, Tensor]) -> Array:
        """(L, H, T, S)."""
        layers = []
        for i, block in enumerate(self.model.decoder.blocks):
            assert isinstance(block, Block)
            assert block.cross_attention is not None
            query_TE = seen[block.cross_attention.query][0]
            query_THD = torch.unflatten(query_TE, -1, (self.model.config.num_heads, -1)).numpy()
            key_SKD = keys[f"cross_key.{i}"].transpose(1, 0, 2)
            layers.append(self._softmax(_scores(query_THD, key_SKD, self.model.config.softmax_scale)))
        return np.stack(layers)

    def _softmax(self, scores_HTS: Array) -> Array:
        self.largest_score = max(self.largest_score, float(np.abs(scores_HTS[np.isfinite(scores_HTS)]).max()))
        powers_HTS = np.exp(scores_HTS - scores_HTS.max(-1, keepdims=True))
        weights_HTS: Array = powers_HTS / powers_HTS.sum(-1, keepdims=True)
        return weights_HTS

    def _encoder_inputs(self, source: Ids) -> tuple[Tensor, Tensor]:
        return torch.tensor([source]), torch.tensor([len(source)])


class Expectations:
    """The outputs of a float32 model as `Expectation`s; `TorchReference` has the names and shapes."""

    def __init__(self, model: Model, *, in_float64: bool) -> None:
        """in_float64: also compute them exactly; otherwise the model's own outputs count as exact."""
        self.float32 = TorchReference(model)
        self.exact = TorchReference(copy.deepcopy(model).double()) if in_float64 else self.float32

    def source(self, source: Ids) -> dict[str, Expectation]:
        return self._both(lambda reference: reference.source(source))

    def logits(self, source: Ids, target: Ids) -> Expectation:
        return self._one(lambda reference: reference.logits(source, target))

    def logprobs(self, source: Ids, target: Ids) -> Expectation:
        return self._one(lambda reference: reference.logprobs(source, target))

    def caches(self, source: Ids, target: Ids) -> dict[str, Expectation]:
        return self._both(lambda reference: reference.caches(source, target))

    def attention(self, source: Ids, target: Ids) -> Expectation:
        return self._one(lambda reference: reference.attention(source, target))

    def every_attention(self, source: Ids, target: Ids) -> dict[str, Expectation]:
        return self._both(lambda reference: reference.every_attention(source, target))

    def _both(self, compute: Callable[[TorchReference], Arrays]) -> dict[str, Expectation]:
        exact = compute(self.exact)
        float32 = exact if self.exact is self.float32 else compute(self.float32)
        return {name: Expectation(array, float32[name]) for name, array in exact.items()}

    def _one(self, compute: Callable[[TorchReference], Array]) -> Expectation:
        return self._both(lambda reference: {"": compute(reference)})[""]


def _scores(query_THD: Array, key_SKD: Array, factor: float) -> Array:
    """(H, T, S) in float64: products of queries and keys times a factor."""
    query_THD, key_SKD = query_THD.astype(np.float64), key_SKD.astype(np.float64)
    key_SHD = np.repeat(key_SKD, query_THD.shape[1] // key_SKD.shape[1], axis=1)
    scores_HTS: Array = np.einsum("thd,shd->hts", query_THD, key_SHD) * factor
    return scores_HTS


def _turned(x_THD: Tensor, cos_BTR: Tensor, sin_BTR: Tensor) -> Tensor:
    """Rotary positions by definition: dimensions i and i + R/2 form a complex number, which is rotated."""
    half = cos_BTR.shape[-1] // 2
    turn_TR = torch.complex(cos_BTR[0, :, :half], sin_BTR[0, :, :half])
    numbers_THR = torch.complex(x_THD[..., :half], x_THD[..., half : 2 * half]) * turn_TR[:, None]
    return torch.cat((numbers_THR.real, numbers_THR.imag, x_THD[..., 2 * half :]), dim=-1)


def _compressed(compression: KeyValueCompression, cache: LayerCache, layer: int) -> Arrays:
    """The states that a layer with compressed attention keeps, from the keys and values of all positions."""
    arrays: Arrays = {}
    stride, whole = compression.stride, [merge_heads(tensor) for tensor in cache]
    for part, plain_1TE, compressed_1TE in zip(("key", "value"), whole, compression.compress(*whole), strict=True):
        length = plain_1TE.shape[1]
        last = [length - 1] if length % stride else []
        compressed_KND = split_heads(compressed_1TE, cache.key.shape[1])[0][
            :, [*range(stride - 1, length, stride), *last]
        ]
        recent_WE = nn.functional.pad(plain_1TE[0], (0, 0, stride - 1, 0))[length:]
        arrays |= {
            f"self_{part}.{layer}": compressed_KND.numpy(),
            f"recent_{part}.{layer}": recent_WE.flatten().numpy(),
        }
    return arrays
