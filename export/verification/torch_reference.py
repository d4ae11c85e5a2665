"""PyTorch's outputs, one row at a time, without padding and without a batch: the reference for graphs.

`TorchReference` computes them with one model; `Expectations` computes them in float64 and in float32, or with and
without the roundings of a quantized graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from export.verification.inputs import Ids, predicted_places
from export.verification.measure import Array, Arrays, Expectation
from model.architectures import Model, SourceModel
from model.attention import CrossAttention, SelfAttention, merge_heads, split_heads
from model.encoder import Encoder
from model.layers import Block
from model.memory_compressed_attention import KeyValueCompression
from model.recurrent import Recurrent, initial_state_names, state_names
from model.reference.greedy import greedy
from model.transformer import DecoderStack, EncoderDecoder, EncoderStack, LayerCache


class TorchReference:
    """Outputs of a model on the CPU, by their names in the graphs; those that many checks read are computed once."""

    def __init__(self, model: Model) -> None:
        self.model: Any = model
        self.largest_score = 0.0  # of all attention requested so far
        self._sources: dict[Ids, Arrays] = {}
        self._answers: dict[tuple[Ids, Ids, int], Ids] = {}

    def greedy(self, source: Ids, prompt: Ids, max_tokens: int) -> Ids:
        """The greedy answer, computed without caches."""
        asked = source, prompt, max_tokens
        if asked not in self._answers:
            self._answers[asked] = tuple(greedy(self.model, prompt, source=source, max_tokens=max_tokens))
        return self._answers[asked]

    def source(self, source: Ids) -> Arrays:
        """The outputs of `encode`, without an axis of the batch. encoder_states (S, M); for a decoder cross_key.i and
        cross_value.i (K, S, D); for recurrent models the inputs of attention, and first_NAME (M,); for encoder-only
        models those of their heads."""
        if source not in self._sources:
            self._sources[source] = self._encoded(source)
        return self._sources[source]

    @torch.inference_mode()
    def _encoded(self, source: Ids) -> Arrays:
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
                positions = list(predicted_places(source))
                outputs["place_logprobs"] = model.token_logits(states[:, positions]).log_softmax(-1)
            elif model.config.is_classifier:
                outputs["label_logits"], weights = model.classify(states, inputs[1])
                if weights is not None:
                    outputs["token_weights"] = weights
            elif model.config.is_tagger:
                outputs["token_label_logits"] = model.tag_logits(states)
        return {name: tensor[0].numpy() for name, tensor in outputs.items()}

    @torch.inference_mode()
    def embedding(self, vector_M: Array) -> Array:
        """A pooled vector through the layers after the pooling, (D,)."""
        dtype = next(self.model.dense.parameters()).dtype
        embedding: Array = self.model.project(torch.from_numpy(vector_M).to(dtype)[None])[0].numpy()
        return embedding

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
        separate softmax in float64 over the queries and keys of an ordinary forward pass."""
        model, config, recorded = self.model, self.model.config, dict[nn.Module, tuple[Any, ...]]()

        def record(attention: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            x_BTM, attend, *others = inputs

            def recording(*arguments: Any) -> Tensor:
                recorded[attention] = arguments
                mixed_BTE: Tensor = attend(*arguments)
                return mixed_BTE

            return x_BTM, recording, *others

        attentions = [module for module in model.modules() if isinstance(module, SelfAttention | CrossAttention)]
        self._forward(source, target, attentions, record)
        arrays: Arrays = {}
        if config.has_decoder:
            arrays["decoder_attention"] = self._self_attention(model.decoder, recorded, is_causal=True)
        if config.has_encoder:
            arrays["encoder_attention"] = self._self_attention(model.encoder, recorded, is_causal=False)
        if config.has_encoder and config.has_decoder:
            keys, layers = self.source(source), []
            for i, block in enumerate(model.decoder.blocks):
                query_BHTD = split_heads(recorded[block.cross_attention][0], config.num_heads)
                layers.append(self._softmax(_scores(query_BHTD, keys[f"cross_key.{i}"], config.softmax_scale)))
            arrays["cross_attention"] = np.stack(layers)
        return arrays

    def _self_attention(
        self, stack: EncoderStack | DecoderStack, recorded: Mapping[nn.Module, tuple[Any, ...]], *, is_causal: bool
    ) -> Array:
        """(L, H, T, T), from every pair of a query and a key; masked pairs have -inf added."""
        layers = []
        for number, block in enumerate(stack.blocks):
            config = stack.config.layer(number)
            assert isinstance(block, Block)
            query_BTE, key_BSE, _, bias = recorded[block.self_attention]
            query_BHTD, positions = split_heads(query_BTE, config.num_heads), torch.arange(query_BTE.shape[1])
            key_KTD = split_heads(key_BSE, config.attention_kv_heads)[0].numpy()
            scores_HTT = _scores(query_BHTD, key_KTD, config.softmax_scale)
            if config.attention_softcap:
                scores_HTT = np.tanh(scores_HTT / config.attention_softcap) * config.attention_softcap
            if bias is not None:
                scores_HTT = scores_HTT + bias(query_BHTD * config.softmax_scale, positions[None], positions)[0].numpy()
            distances_TT = positions.numpy()[:, None] - positions.numpy()
            is_far_TT = bool(config.sliding_window) & (distances_TT >= config.sliding_window)
            layers.append(self._softmax(np.where(is_causal & ((distances_TT < 0) | is_far_TT), -np.inf, scores_HTT)))
        return np.stack(layers)

    def _recurrent_attention(self, model: Recurrent, source: Ids, target: Ids) -> Array:
        """(1, 1, T, S): scores by definition, from the decoder states with which an ordinary forward pass attended to
        the source."""
        score, seen = model.decoder.score, list[Tensor]()
        assert score is not None, "there is no attention without a score"
        self._forward(source, target, [score], lambda _, inputs: seen.append(inputs[0][0]))
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

    def _softmax(self, scores_HTS: Array) -> Array:
        self.largest_score = max(self.largest_score, float(np.abs(scores_HTS[np.isfinite(scores_HTS)]).max()))
        powers_HTS = np.exp(scores_HTS - scores_HTS.max(-1, keepdims=True))
        weights_HTS: Array = powers_HTS / powers_HTS.sum(-1, keepdims=True)
        return weights_HTS

    def _forward(self, source: Ids, target: Ids, modules: Sequence[nn.Module], hook: Callable[..., Any]) -> None:
        config, handles = self.model.config, [module.register_forward_pre_hook(hook) for module in modules]
        inputs = self._encoder_inputs(source) if config.has_encoder else ()
        try:
            self.model(*inputs, torch.tensor([target])) if config.has_decoder else self.model(*inputs)
        finally:
            for handle in handles:
                handle.remove()

    def _encoder_inputs(self, source: Ids) -> tuple[Tensor, Tensor]:
        return torch.tensor([source]), torch.tensor([len(source)])


class Expectations:
    """The outputs of a float32 model as `Expectation`s; `TorchReference` has the names and shapes."""

    def __init__(self, model: Model, *, in_float64: bool, unrounded: Model | None = None) -> None:
        """in_float64: also compute them exactly; otherwise the model's own outputs count as exact. unrounded: the model
        without the roundings that this one emulates."""
        self.float32 = TorchReference(model)
        self.exact = TorchReference(copy.deepcopy(model).double()) if in_float64 else self.float32
        self.other = self.float32 if unrounded is None else TorchReference(unrounded)

    def source(self, source: Ids) -> dict[str, Expectation]:
        return self._both(lambda reference: reference.source(source))

    def embedding(self, vector_M: Array) -> Expectation:
        return self._one(lambda reference: reference.embedding(vector_M))

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
        other = exact if self.exact is self.other else compute(self.other)
        return {name: Expectation(array, other[name]) for name, array in exact.items()}

    def _one(self, compute: Callable[[TorchReference], Array]) -> Expectation:
        return self._both(lambda reference: {"": compute(reference)})[""]


def _scores(query_BHTD: Tensor, key_KSD: Array, scale: float) -> Array:
    """(H, T, S) in float64: products of queries and keys times a factor."""
    query_HTD = query_BHTD[0].numpy().astype(np.float64)
    key_HSD = np.repeat(key_KSD.astype(np.float64), len(query_HTD) // len(key_KSD), axis=0)
    scores_HTS: Array = query_HTD @ key_HSD.transpose(0, 2, 1) * scale
    return scores_HTS


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
