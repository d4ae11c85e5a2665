"""Exported graphs, called with plain arrays as the service calls them, for experiments on cost and symmetry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from bench.measure import seconds
from export.passes.quantization_scheme import SCHEMES
from export.variants import save_variant, trace_model
from model.architectures import GenerativeModel, Model, build
from model.config import ModelConfig

Array = np.ndarray


def fresh_model(config: ModelConfig, *, seed: int = 1) -> GenerativeModel:
    """Random weights, in evaluation mode."""
    torch.manual_seed(seed)
    model: GenerativeModel = build(config)
    model.eval()
    return model


def sessions(model: Model, directory: Path) -> dict[str, onnxruntime.InferenceSession]:
    """Exports a model of float32 or float16 weights to `directory` and opens every graph, by role, on one thread."""
    is_half = next(model.parameters()).dtype == torch.float16
    variant = save_variant(trace_model(model), directory, SCHEMES["fp16" if is_half else "fp32"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return {
        role: onnxruntime.InferenceSession(str(directory / graph.file), options, ["CPUExecutionProvider"])
        for role, graph in variant.graphs.items()
    }


def encode(session: onnxruntime.InferenceSession, source_BS: Array) -> Array:
    """Encoder states, float32 (B, S, M), of sources without padding."""
    lengths_B = np.full(len(source_BS), source_BS.shape[1], np.int32)
    states_BSM: Array = session.run(["encoder_states"], {"source": source_BS, "source_lengths": lengths_B})[0]
    return states_BSM


def encode_ms(session: onnxruntime.InferenceSession, source_BS: Array) -> float:
    """Milliseconds of one call of the same."""
    return 1e3 * seconds(lambda: encode(session, source_BS))


class CachedRow:
    """One row of a decoder-only model whose cache is extended in place, as the service does it."""

    def __init__(self, session: onnxruntime.InferenceSession, config: ModelConfig, capacity: int) -> None:
        self._session, self._layers = session, config.num_decoder_layers
        shape = (1, config.attention_kv_heads, capacity, config.attention_head_dim)
        self._caches = {
            f"self_{part}.{layer}": onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
            for layer in range(self._layers)
            for part in ("key", "value")
        }

    def run(self, tokens: Array, start: int) -> tuple[Array, float]:
        """Reads int64 tokens (T,) at positions start … start + T - 1 → logits (V,) of the next, seconds."""
        binding, end = self._session.io_binding(), start + len(tokens)
        for name, array in self._inputs(tokens, start, end).items():
            binding.bind_cpu_input(name, array)
        for name, cache in self._caches.items():
            binding.bind_ortvalue_input(f"past.{name}", cache)
            binding.bind_ortvalue_output(f"present.{name}", cache)
        binding.bind_output("logits", "cpu")
        elapsed_s = seconds(lambda: self._session.run_with_iobinding(binding))
        logits_1V: Array = binding.get_outputs()[len(self._caches)].numpy()
        return logits_1V[0], elapsed_s

    def ms(self, tokens: Array, start: int) -> float:
        """Milliseconds of one call of the same."""
        return 1e3 * self.run(tokens, start)[1]

    def _inputs(self, tokens: Array, start: int, end: int) -> Mapping[str, Array]:
        return {
            "tokens": np.ascontiguousarray(tokens[None]),
            "starts": np.array([start], np.int64),
            "lengths": np.array([end], np.int32),
            "total_length": np.array(end, np.int32),
            "positions": np.array([[0, len(tokens) - 1]], np.int64),
        }
