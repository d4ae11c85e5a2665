"""Separate passes that return attention weights: decoding computes none, so only requests for them pay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from export.bundle.manifest import AttentionKind
from service.runtime.bindings import Binding
from service.runtime.kv_cache import Scratch
from service.runtime.model_sessions import ModelSessions
from service.runtime.step_inputs import RowInputs


class AttentionPasses:
    """Cross-attention over the sources of rows, and all attention of separate passes.

    See `service.step.DeferredOutputs`. One thread uses it.
    """

    def __init__(self, model: ModelSessions, scratch: Scratch, rows: RowInputs) -> None:
        self._model, self._scratch = model, scratch
        self._align, self._source_lengths = model.sessions.get("align"), rows["source_lengths"]

    def cross_attention(self, row: int, tokens: Sequence[int]) -> np.ndarray:
        """One pass of the decoder over `tokens`, in plain attention: float32 (layers, heads, tokens, source). The
        source's keys and values are copied first, so that the result does not depend on the capacity of rows."""
        assert self._align is not None, "the bundle was exported without attention"
        length = int(self._source_lengths[row])
        self._scratch.reserve(1, length)
        binding = Binding(self._align)
        binding.read_array("tokens", np.array([tokens], np.int64))
        binding.read_array("source_lengths", np.array([length], np.int32))
        for name, place in self._scratch.places():
            binding.read(name, place)
        self._scratch.store(row, length)
        binding.io.bind_output("cross_attention", "cpu")
        binding.run()
        weights_LBHTS: np.ndarray = binding.io.get_outputs()[0].numpy()
        return weights_LBHTS[:, 0]

    def attention(
        self, source: Sequence[int], tokens: Sequence[int], kinds: Sequence[AttentionKind]
    ) -> dict[AttentionKind, np.ndarray]:
        """One pass of the whole model, in a batch of its own and unpadded: float32 (layers, heads, queries, keys)."""
        feeds = {
            "source": np.array([source], np.int64),
            "source_lengths": np.array([len(source)], np.int32),
            "tokens": np.array([tokens], np.int64),
            "lengths": np.array([len(tokens)], np.int32),
        }
        wanted = self._model.variant.graphs["attend"].inputs
        outputs = self._model.open_attend().run(
            [f"{kind}_attention" for kind in kinds], {name: feeds[name] for name in wanted}
        )
        return {kind: weights_LBHQK[:, 0] for kind, weights_LBHQK in zip(kinds, outputs, strict=True)}
