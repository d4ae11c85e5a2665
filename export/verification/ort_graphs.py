"""The graphs of one variant in sessions of ONNX Runtime, with the session settings, provider and memory layout of a
server: past and present share one buffer.

Rows are ragged and occupy the first rows of larger buffers that are full of garbage. Buffers belong to the caller; a
call writes into them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from export.bundle.manifest import PAD_MULTIPLE, SOURCE_MULTIPLE, Limits, Role, StateKind, Variant, largest_capacity
from export.passes.quantization_scheme import INVARIANT_BLOCKS, QuantizationScheme
from export.passes.quantize import quantize
from export.sessions import open_session
from export.verification.emulated_quantization import RecordedProduct, Roundings, product_values, read_roundings
from export.verification.inputs import Ids
from export.verification.measure import Array, Arrays

GARBAGE = 37.0  # initial contents of buffers: large, but finite, so that a weight of 0 cancels it
INT8_GARBAGE = -128  # the same for int8 caches, whose largest value is 127 times their step
CACHE_AXES = 4  # rows, heads, positions, head_dim; states of a recurrent model have rows and a size


class Prediction(NamedTuple):
    """Outputs of `decode` and `logprobs` for the next token of each row, or after each requested token; fields are
    named like the outputs."""

    logits: Array  # float32 (rows, V)
    logprobs: Array  # float32 (rows, V)
    normaliser: Array  # float32 (rows,): logits = logprobs + normaliser
    top_logprobs: Array  # float32 (rows, N), best first
    top_ids: Array  # int64 (rows, N)

    def row(self, i: int) -> Prediction:
        """One row, as arrays with one row each."""
        return Prediction(*(array[i : i + 1] for array in self))


class ShortlistPrediction(NamedTuple):
    """The predictions of a step over per-row shortlists: the first W tokens of each row's shortlist, in its order."""

    states: Array  # float32 (rows, M), from which logits are computed
    logprobs: Array  # float32 (rows, W), -inf after the end of a row's shortlist
    normaliser: Array  # float32 (rows,)
    top_logprobs: Array  # float32 (rows, N), best first
    top_ids: Array  # int64 (rows, N)


class OrtGraphs:
    """The graphs of one variant in sessions configured like a server's."""

    def __init__(self, directory: Path, variant: Variant, limits: Limits) -> None:
        self.directory, self.variant, self.limits = directory, variant, limits

    @cached_property
    def sessions(self) -> dict[str, onnxruntime.InferenceSession]:
        """Sessions by role; opened on first use, so that a graph that fails to load is a failed check."""
        return {role: open_session(self.directory / graph.file) for role, graph in self.variant.graphs.items()}

    @property
    def roles(self) -> Collection[str]:
        """The roles of the graphs that exist."""
        return self.variant.graphs.keys()

    def roundings(self, *roles: Role) -> Roundings:
        """The roundings in the graphs of these roles, as far as they exist."""
        return read_roundings(self._load(role) for role in roles if role in self.roles)

    def _load(self, role: Role) -> onnx.ModelProto:
        return onnx.load(self.directory / self.variant.graphs[role].file)

    def record_products(self, role: Role, feeds: Mapping[str, Array]) -> list[RecordedProduct]:
        """Run a copy of a graph that also returns the inputs and outputs of its products."""
        model = self._load(role)
        values = product_values(model)
        names = list(dict.fromkeys(name for value in values for name in (value.given, value.result)))
        known = {value.name for value in model.graph.output}
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in known)
        session = open_session(model.SerializeToString())
        arrays = dict(zip(names, session.run(names, self._inputs_of(role, feeds)), strict=True))

        def rows_of(name: str) -> Array:
            rows: Array = arrays[name].reshape(-1, arrays[name].shape[-1])
            return rows

        return [
            RecordedProduct(value.weight, rows_of(value.given), rows_of(value.result), value.has_bias)
            for value in values
        ]

    def encode(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] = ()) -> Arrays:
        """All outputs of `encode` for a ragged batch, by name; arguments of `encoder_feeds`."""
        return self._run("encode", self.encoder_feeds(sources, places))

    def embed(self, vector_M: Array) -> Array:
        """The output of `embed` for one pooled vector, float32 (D,): alone, as servers do it."""
        embedding: Array = self._run("embed", {"pooled_vector": vector_M[None].astype(np.float32)})["embedding"][0]
        return embedding

    def _run(self, role: Role, feeds: Mapping[str, Array]) -> Arrays:
        names = self.variant.graphs[role].outputs
        return dict(zip(names, self.sessions[role].run(list(names), self._inputs_of(role, feeds)), strict=True))

    def _inputs_of(self, role: Role, feeds: Mapping[str, Array]) -> Arrays:
        """The feeds that a graph takes."""
        return {name: feeds[name] for name in self.variant.graphs[role].inputs}

    def encoder_feeds(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] = ()) -> Arrays:
        """The inputs of `encode`. places: positions of each source to predict, if the graph has a masked head."""
        tokens = padded(sources, SOURCE_MULTIPLE)
        flat = [row * tokens.shape[1] + place for row, own in enumerate(places) for place in own]
        return {"source": tokens, "source_lengths": lengths(sources), "places": np.array(flat or [0], np.int64)}

    def buffers(self, rows: int, capacity: int, *, window_places: int = 0) -> Arrays:
        """Self-attention caches full of garbage, (rows, K, capacity, D), by the names of the states; in recurrent
        models the states of their cells, (rows, M). window_places: of states with a window; 0: capacity."""
        arrays = self._states(rows, capacity, "self_kv", "recurrent")
        for name in self.with_window if window_places else ():
            heads, _, width = arrays[name].shape[1:]
            arrays[name] = garbage((rows, heads, window_places, width), arrays[name].dtype)
        return arrays

    @property
    def with_window(self) -> list[str]:
        """The names of the states with a window."""
        return [state.name for state in self.variant.states if state.window]

    def cross_buffers(self, rows: int, source_len: int) -> Arrays:
        """Cross-attention keys and values full of garbage, (rows, K, source_len, D), by the names of the states."""
        return self._states(rows, source_len, "cross_kv")

    def _states(self, rows: int, length: int, *kinds: StateKind) -> Arrays:
        arrays: Arrays = {}
        for state in self.variant.states:
            if state.kind in kinds:
                sizes = {"batch": rows, "capacity": state.places(length), "source": length, "words": length}
                shape = [sizes[axis] if isinstance(axis, str) else axis for axis in state.shape]
                arrays[state.name] = garbage(shape, state.dtype)
        return arrays

    def decoder_feeds(
        self,
        blocks: Sequence[Sequence[int]],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        requested: Sequence[tuple[int, int]] | None = None,
        firsts: Sequence[int] = (),
    ) -> Arrays:
        """The inputs of `decode` for a block of tokens of each row; arguments of `decode`."""
        is_prefill = not any(starts) and self.limits.max_block != 1
        tokens = padded(blocks, PAD_MULTIPLE if is_prefill else 1)
        capacity = max([array.shape[2] for array in buffers.values() if array.ndim == CACHE_AXES], default=0)
        places = min([buffers[name].shape[2] for name in self.with_window], default=capacity)
        total = tokens.shape[1] if is_prefill else min(capacity, largest_capacity(self.limits.max_target_len))
        if requested is None:
            requested = [(row, len(block) - 1) for row, block in enumerate(blocks)]
        return {
            "tokens": tokens,
            "starts": np.array(starts, np.int64),
            "lengths": np.array(starts, np.int32) + lengths(blocks),
            "total_length": np.array(total, np.int32),
            # A graph has one of these two inputs, or neither if nothing else in it depends on the total length.
            "key_positions": np.arange(total),
            "total_slots": np.array(self.variant.slots(total), np.int32),
            "window_lengths": np.array(starts, np.int32) + lengths(blocks) - np.array(firsts or 0, np.int32),
            "window_total": np.array(min(total, places), np.int32),
            # A graph has one of these two inputs, or neither if it reads one token per row and predicts for all rows.
            "positions": np.array(requested, np.int64).reshape(-1, 2),
            "asked": np.array([row for row, _ in requested], np.int64),
            **{f"past.{name}": array for name, array in buffers.items()},
            **cross,
        }

    def decode(
        self,
        blocks: Sequence[Sequence[int]],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        top_k: int = 1,
        requested: Sequence[tuple[int, int]] | None = None,
        firsts: Sequence[int] = (),
    ) -> Prediction:
        """Predictions after each row's block; `buffers` and `cross` hold exactly these rows.

        cross: source_lengths and the source's keys and values, or empty. Blocks of more than one token are a prefill
        with starts of 0, or belong to a single row. top_k: number of best tokens per row. requested: for models that
        support chunked prefill, the tokens after which to predict instead, each as (row, position in the block); if
        empty, nothing is ranked. firsts: of each row the first position in the buffers of states with a window, if
        these do not hold all.
        """
        run, prediction = self.step(blocks, starts, buffers, cross, top_k=top_k, requested=requested, firsts=firsts)
        run()
        return prediction

    def step(
        self,
        blocks: Sequence[Sequence[int]],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        top_k: int = 1,
        requested: Sequence[tuple[int, int]] | None = None,
        firsts: Sequence[int] = (),
    ) -> tuple[Callable[[], None], Prediction]:
        """`decode` and `logprobs`, bound but not run yet, and the arrays that they will fill. Runs are repeatable."""
        rows = len(blocks if requested is None else requested)
        prediction = Prediction(
            logits=np.full((rows, self.limits.vocab_size), np.nan, np.float32),
            logprobs=np.full((rows, self.limits.vocab_size), np.nan, np.float32),
            normaliser=np.full(rows, np.nan, np.float32),
            top_logprobs=np.full((rows, top_k), np.nan, np.float32),
            top_ids=np.full((rows, top_k), -1, np.int64),
        )
        inputs = self.decoder_feeds(blocks, starts, buffers, cross, requested, firsts)
        inputs |= {"logits": prediction.logits, "top_k": np.array([top_k], np.int64)}
        outputs: Arrays = {**buffers, **cross, **prediction._asdict()}
        if "states" in self.variant.graphs["decode"].outputs:  # read by the graphs of shortlists
            (width,) = [state.shape[1] for state in self.variant.states if state.name == "word_weight"]
            outputs["states"] = np.full((len(blocks), int(width)), np.nan, np.float32)
        value = onnxruntime.OrtValue.ortvalue_from_numpy
        bindings = {}
        for role in ("decode", "logprobs") if rows else ("decode",):
            bindings[role] = binding = self.sessions[role].io_binding()
            for name in self.variant.graphs[role].inputs:
                binding.bind_ortvalue_input(name, value(inputs[name]))
            for name in self.variant.graphs[role].outputs:
                state = name.removeprefix("present.").removeprefix("passed.")  # whose memory is also the output's
                binding.bind_ortvalue_output(name, value(outputs[state]))

        def run(_bound: Any = (inputs, outputs)) -> None:  # the bindings point into these arrays
            for role, binding in bindings.items():
                self.sessions[role].run_with_iobinding(binding)

        return run, prediction

    def shortlist_logprobs(
        self,
        shortlists: Sequence[Ids],
        tokens: Sequence[int],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        width: int,
    ) -> ShortlistPrediction:
        """Predictions after one token of each row over the row's shortlist, in shortlist buffers of capacity `width`
        that are full of garbage; no logits of `decode` are requested."""
        feeds = self.decoder_feeds([[token] for token in tokens], starts, buffers, cross, ())
        states: Array = self.sessions["decode"].run(["states"], self._inputs_of("decode", feeds))[0]
        feeds = self._states(len(shortlists), width, "shortlist")
        for row, own in enumerate(shortlists):
            for name, array in self._run("project_shortlist", {"ids": np.array([own], np.int64)}).items():
                feeds[name][row, ..., : len(own)] = array[0]
        feeds |= {
            "states": states,
            "word_counts": lengths(shortlists),
            "word_places": np.arange(width, dtype=np.int32),
            "top_k": np.array([2], np.int64),
        }
        outputs = self._run("shortlist_logprobs", feeds)
        return ShortlistPrediction(states, *(outputs[name] for name in ShortlistPrediction._fields[1:]))

    def align(self, targets: Sequence[Ids], cross: Mapping[str, Array]) -> Array:
        """Weights with which target positions attend to source positions, float32 (L, B, H, T, S). Only S is padded.

        targets: as fed to the decoder, bos first. cross: as for `decode`.
        """
        return self._run("align", {"tokens": padded(targets, 1), **cross})["cross_attention"]

    def attend(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> Arrays:
        """Every attention of a pass over a ragged batch, by output name: float32 (L, B, H, Q, K). The longest row has
        no padding.

        targets: as fed to the decoder, bos first. Rows of an input that the model does not have are empty.
        """
        feeds = {
            "source": padded(sources, 1),
            "source_lengths": lengths(sources),
            "tokens": padded(targets, 1),
            "lengths": lengths(targets),
        }
        return self._run("attend", feeds)


def padded(rows: Sequence[Sequence[int]], multiple: int) -> Array:
    """Right-padded with id 0 to a multiple of some length, int64 (rows, length)."""
    length = round_up(max(map(len, rows)), multiple)
    return np.array([[*row, *[0] * (length - len(row))] for row in rows], np.int64)


def lengths(rows: Sequence[Sequence[int]]) -> Array:
    """The length of each row, int32."""
    return np.array([len(row) for row in rows], np.int32)


def round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def garbage(shape: Sequence[int], dtype: Any) -> Array:
    """The initial contents of a buffer."""
    return np.full(shape, INT8_GARBAGE if np.dtype(dtype) == np.int8 else GARBAGE, dtype)


@cache
def is_batch_invariant(scheme: QuantizationScheme) -> bool:
    """Whether a row has the same bits in a batch of one and in a larger batch on this processor. For products in small
    blocks this is measured, because processors without AVX-512 use other kernels. Larger blocks have it nowhere; the
    other schemes compute exact sums everywhere. On CUDA, products of more than 16 rows are those of another kernel."""
    if not scheme.block_size:
        return True
    if scheme.is_half:
        return False
    if scheme.block_size > INVARIANT_BLOCKS[scheme.weight_bits]:
        return False
    random = np.random.default_rng(1)
    weight_KN, x_BK = (random.standard_normal(shape).astype(np.float32) for shape in ((512, 64), (4, 512)))
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        product (float[B, 512] x) => (float[B, 64] y) { y = MatMul(x, weight) }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight_KN, "weight"))
    session = open_session(quantize(model, "decode", scheme).SerializeToString())
    (together_BN,) = session.run(["y"], {"x": x_BK})
    return all(np.array_equal(session.run(["y"], {"x": x_BK[:rows]})[0], together_BN[:rows]) for rows in (1, 2, 3))
