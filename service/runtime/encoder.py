"""The encoder's passes: sources of new rows, in batches, into the cross-attention caches of their rows.

`service.runtime.batching` decides which sources share a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from service.encoder_request import EncoderOutput
from service.runtime.batching import contiguous_runs, encoder_outputs_by_row, mask_positions, pad, source_width
from service.runtime.bindings import Binding, BindingCache
from service.runtime.kv_cache import Scratch
from service.runtime.model_sessions import ModelSessions
from service.runtime.step_inputs import RowInputs
from service.step import NewRow


class Encoder:
    """The passes of one `encode` session for the rows of an engine. One thread uses it."""

    def __init__(self, model: ModelSessions, session: Any, scratch: Scratch, rows: RowInputs) -> None:
        self._session, self._scratch = session, scratch
        self._embed_session = model.sessions.get("embed")
        self._has_mask_positions = "places" in model.variant.graphs["encode"].inputs
        self._memory, self._source_lengths = scratch.arena.memory, rows["source_lengths"]
        self._bindings, self._options = BindingCache(scratch.arena), model.run_options

    def encode(self, new_rows: Sequence[NewRow]) -> dict[int, EncoderOutput]:
        """Encodes the sources of one batch, the longest last, into their rows' caches. Returns the requested
        outputs by row."""
        width, count = source_width(new_rows[-1]), len(new_rows)
        wanted = sorted({name for new in new_rows if new.encoder_request for name in new.encoder_request.outputs})
        positions = mask_positions(new_rows, width) if self._has_mask_positions else None
        binding = self._binding(count, width, wanted, positions)
        rows = [new.row for new in new_rows]
        binding.arrays["source"][:] = pad([new.source for new in new_rows], width)
        binding.arrays["source_lengths"][:] = self._source_lengths[rows] = [len(new.source) for new in new_rows]
        if self._memory.device != "cpu":
            for name, array in binding.arrays.items():
                binding.upload(name, array, self._memory)
        binding.run()
        outputs = binding.io.get_outputs()[-len(wanted) :] if wanted else ()
        arrays = dict(zip(wanted, (one.numpy() for one in outputs), strict=True))
        found = encoder_outputs_by_row(new_rows, arrays, self._embed)
        for first, stop in contiguous_runs(rows):
            self._scratch.load(first, rows[first], rows=stop - first, length=len(new_rows[stop - 1].source))
        return found

    def _embed(self, vector_M: np.ndarray) -> np.ndarray:
        """A pooled vector through `embed`, float32: alone, so that its bits do not depend on the batch."""
        assert self._embed_session is not None
        embedding_D: np.ndarray = self._embed_session.run(None, {"pooled_vector": vector_M[None]})[0][0]
        return embedding_D

    def _binding(self, count: int, width: int, wanted: Sequence[str], positions: np.ndarray | None) -> Binding:
        """A binding for `count` sources of one width; cached if only the caches are requested. positions: the mask
        positions whose predictions are wanted; None: the graph has none."""
        self._scratch.reserve(count, width)  # may allocate, and so comes first
        is_plain = not wanted and positions is None
        binding = self._bindings.get((count, width)) if is_plain else None
        if binding is None:
            binding = Binding(self._session, self._options if not wanted else None)
            if positions is not None:
                self._read_array(binding, "places", positions)
            self._read_array(binding, "source", np.zeros((count, width), np.int64))
            self._read_array(binding, "source_lengths", np.zeros(count, np.int32))
            for name, place in self._scratch.places():
                binding.write(name, place)
            for name in wanted:
                binding.io.bind_output(name, "cpu")
            if is_plain:
                self._bindings.add((count, width), binding)
        return binding

    def _read_array(self, binding: Binding, name: str, array: np.ndarray) -> None:
        """Lets the graph read an array that is filled before each run: there, or where `encode` uploads it."""
        if self._memory.device == "cpu":
            binding.read_array(name, array)
        else:
            binding.arrays[name] = array
