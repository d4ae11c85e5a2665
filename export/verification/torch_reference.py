"""PyTorch's outputs, one row at a time, without padding and without a batch: the reference for graphs.

`TorchReference` computes them with one model; `Expectations` computes them in float32 and in float64, or with and
without the roundings of a quantized graph. One pass over a target gives all that is compared of it.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from export.verification.inputs import Ids, predicted_places
from export.verification.measure import Array, Arrays, Expectation
from model.architectures import Model
from model.attention import CrossAttention, SelfAttention, merge_heads, split_heads
from model.encoder import Encoder
from model.layers import Block
from model.memory_compressed_attention import KeyValueCompression
from model.recurrent import Recurrent, initial_state_names, state_names
from model.transformer import DecoderStack, EncoderDecoder, EncoderStack, LayerCache

LAST = slice(-1, None)  # of the positions of a target


class _Pass(NamedTuple):
    """What a forward pass over a source and a target gives: states (1, T, M), and by layer keys and values."""

    states: Tensor
    caches: Sequence[LayerCache]


class TorchReference:
    """Outputs of a model on the CPU, by their names in the graphs; those that many checks read are computed once."""

    def __init__(self, model: Model) -> None:
        self.model: Any = model
        self.largest_score = 0.0  # of all attention requested so far
        self._sources: dict[Ids, Arrays] = {}
        self._passes: dict[tuple[Ids, Ids], _Pass] = {}

    def greedy(self, source: Ids, prompt: Ids, max_tokens: int, guess: Ids) -> Ids:
        """The greedy answer, computed without caches, up to the first token that differs from `guess`: one pass over
        the guess tells every token of an answer that equals it."""
        logits_TV = self.logits(source, (*prompt, *guess[: max_tokens - 1]), slice(len(prompt) - 1, None))
        answer = list[int]()
        for token, guessed in itertools.zip_longest(logits_TV.argmax(-1).tolist(), guess):
            answer.append(token)
            if token != guessed or token in self.model.config.eos_ids:
                break
        return tuple(answer)

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
        embedding: Array = self.model.project(torch.from_numpy(vector_M).float()[None])[0].numpy()
        return embedding

    @torch.inference_mode()
    def logits(self, source: Ids, target: Ids, places: slice = slice(None)) -> Array:
        """Logits after every position of the target, or after some, (T, V), computed as in training, without a cache.
        Not modified by callers."""
        states = self._read(source, target).states[:, places]
        logits: Array = self.model.decoder.unembedding(states)[0].numpy()
        return logits

    def logprobs(self, source: Ids, target: Ids, places: slice = slice(None)) -> Array:
        """Log-softmax of the logits, (T, V)."""
        logprobs: Array = torch.from_numpy(self.logits(source, target, places)).log_softmax(-1).numpy()
        return logprobs

    def _read(self, source: Ids, target: Ids) -> _Pass:
        """A pass over a target, or the beginning of one over a longer target, as no position depends on later ones."""
        size = len(target)
        for (read, longer), (states, caches) in self._passes.items():
            if read == source and longer[:size] == target:
                begun = [LayerCache(cache.key[:, :, :size], cache.value[:, :, :size]) for cache in caches]
                return _Pass(states[:, :size], begun)
        states, recorded = self._record(source, target)
        heads, caches = self.model.config.attention_kv_heads, list[LayerCache]()
        for block in () if isinstance(self.model, Recurrent) else self.model.decoder.blocks:
            _, key_BTE, value_BTE, *_ = recorded[block.self_attention]
            caches.append(LayerCache(split_heads(key_BTE, heads), split_heads(value_BTE, heads)))
        self._passes[source, target] = found = _Pass(states, caches)
        return found

    def _record(self, source: Ids, target: Ids) -> tuple[Tensor, dict[nn.Module, tuple[Any, ...]]]:
        """The states of an ordinary forward pass, and what each attention of it read: query, key, value, ..."""
        recorded = dict[nn.Module, tuple[Any, ...]]()

        def record(attention: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            x_BTM, attend, *others = inputs

            def recording(*arguments: Any) -> Tensor:
                recorded[attention] = arguments
                mixed_BTE: Tensor = attend(*arguments)
                return mixed_BTE

            return x_BTM, recording, *others

        attentions = [module for module in self.model.modules() if isinstance(module, SelfAttention | CrossAttention)]
        return self._forward(source, target, attentions, record), recorded

    @torch.inference_mode()
    def caches(self, source: Ids, target: Ids) -> Arrays:
        """self_key.i and self_value.i of every position of the target, (K, T, D). Layers with compressed attention have
        those of every window, of which the last may be incomplete, (K, N, D), and recent_key.i and recent_value.i, see
        `export.graphs.group_query_attention.GraphCompressedAttention`. Recurrent models have the states after the last
        position, (M,)."""
        model = self.model
        if isinstance(model, Recurrent):
            tokens, inputs = torch.tensor([target]), self._encoder_inputs(source)
            encoded = model.encode(*inputs)
            _, carried = model.decode(tokens, model.start(encoded), encoded, inputs[1])
            return {name: state[0].numpy() for name, state in zip(state_names(model.config), carried, strict=True)}
        arrays: Arrays = {}
        caches = self._read(source, target).caches
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
        model, config = self.model, self.model.config
        _, recorded = self._record(source, target)
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
            is_far_TT = bool(config.sliding_window) & (np.abs(distances_TT) >= config.sliding_window)
            is_later_TT = is_causal & (distances_TT < 0)
            layers.append(self._softmax(np.where(is_later_TT | is_far_TT, -np.inf, scores_HTT)))
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

    def _forward(self, source: Ids, target: Ids, modules: Sequence[nn.Module], hook: Callable[..., Any]) -> Tensor:
        config, handles = self.model.config, [module.register_forward_pre_hook(hook) for module in modules]
        inputs = self._encoder_inputs(source) if config.has_encoder else ()
        try:
            states: Tensor = self.model(*inputs, torch.tensor([target])) if config.has_decoder else self.model(*inputs)
            return states
        finally:
            for handle in handles:
                handle.remove()

    def _encoder_inputs(self, source: Ids) -> tuple[Tensor, Tensor]:
        return torch.tensor([source]), torch.tensor([len(source)])


class Expectations:
    """The outputs of a float32 model as `Expectation`s; `TorchReference` has the names and shapes."""

    def __init__(self, model: Model, *, unrounded: Model | None = None) -> None:
        """unrounded: the model without the roundings that this one emulates; without one the other outputs of
        expectations are those of the model in float64."""
        self.own, self._unrounded = TorchReference(model), unrounded

    @functools.cached_property
    def other(self) -> TorchReference:
        unrounded = self._unrounded
        return TorchReference(in_float64(self.own.model) if unrounded is None else unrounded)

    def source(self, source: Ids) -> dict[str, Expectation]:
        return self._both(lambda reference: reference.source(source))

    def embedding(self, vector_M: Array) -> Expectation:
        return self._one(lambda reference: reference.embedding(vector_M))

    def logits(self, source: Ids, target: Ids) -> Expectation:
        return self._one(lambda reference: reference.logits(source, target))

    def logprobs(self, source: Ids, target: Ids, places: slice = slice(None)) -> Expectation:
        return self._one(lambda reference: reference.logprobs(source, target, places))

    def caches(self, source: Ids, target: Ids) -> dict[str, Expectation]:
        return self._both(lambda reference: reference.caches(source, target))

    def attention(self, source: Ids, target: Ids) -> Expectation:
        return self._one(lambda reference: reference.attention(source, target))

    def every_attention(self, source: Ids, target: Ids) -> dict[str, Expectation]:
        return self._both(lambda reference: reference.every_attention(source, target))

    def _both(self, compute: Callable[[TorchReference], Arrays]) -> dict[str, Expectation]:
        other = functools.cache(lambda: compute(self.other))
        own = compute(self.own)
        return {name: Expectation(array, functools.partial(_named, other, name)) for name, array in own.items()}

    def _one(self, compute: Callable[[TorchReference], Array]) -> Expectation:
        return self._both(lambda reference: {"": compute(reference)})[""]


def _named(compute: Callable[[], Arrays], name: str) -> Array:
    return compute()[name]


def in_float64(model: Model) -> Model:
    """A copy that computes in float64. Its matrices stay in float32, in the memory of the model, and are converted,
    which is exact, where they are read: all at once they would take twice the memory of the model."""
    own = {id(parameter): nn.Parameter(parameter.detach().double()) for parameter in _but_matrices(model)}
    shared = {id(module.weight): module.weight for module in _with_matrices(model)}
    exact = copy.deepcopy(model, dict[int, Any](own | shared))
    for buffer in exact.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.double()
    for module in _with_matrices(exact):
        module.forward = functools.partial(_exact_output, module)  # type: ignore[method-assign]
    return exact


def _with_matrices(model: Model) -> Iterator[nn.Linear | nn.Embedding]:
    return (module for module in model.modules() if isinstance(module, nn.Linear | nn.Embedding))


def _but_matrices(model: Model) -> Iterator[nn.Parameter]:
    matrices = {id(module.weight) for module in _with_matrices(model)}
    return (parameter for parameter in model.parameters() if id(parameter) not in matrices)


def _exact_output(module: nn.Linear | nn.Embedding, given: Tensor) -> Tensor:
    """What the module's class computes, with its matrix in float64 meanwhile."""
    if isinstance(module, nn.Embedding):
        return functional.embedding(given, module.weight).double()
    kept, module.weight = module.weight, nn.Parameter(module.weight.detach().double())
    try:
        return type(module).forward(module, given.double())
    finally:
        module.weight = kept


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
