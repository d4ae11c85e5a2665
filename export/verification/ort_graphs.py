"""The graphs of one variant in sessions of ONNX Runtime, with the session settings, provider and memory layout of a
server: past and present share one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime

from export.manifest import PAD_MULTIPLE, Limits, Role, StateSpec, Variant
from export.passes.quantization_scheme import QuantizationScheme
from export.passes.quantize import quantize
from export.sessions import open_session
from export.verification.emulated_quantization import Roundings, SeenProduct, product_values, read_roundings
from export.verification.graph_calls import (
    Array,
    Arrays,
    Prediction,
    ShortlistPrediction,
    garbage,
    last_positions,
    lengths,
    padded,
    round_up,
)
from export.verification.inputs import Ids

CACHE_AXES = 4  # rows, heads, positions, head_dim; states of a recurrent model have rows and a size

T = TypeVar("T")


class OrtGraphs:
    """`Graphs` of one variant in sessions configured like a server's."""

    def __init__(self, directory: Path, variant: Variant, limits: Limits) -> None:
        self.directory, self.variant, self.limits = directory, variant, limits

    @cached_property
    def sessions(self) -> dict[str, onnxruntime.InferenceSession]:
        """Sessions by role; opened on first use, so that a graph that fails to load is a failed check."""
        return {role: open_session(self.directory / graph.file) for role, graph in self.variant.graphs.items()}

    @property
    def roles(self) -> Collection[str]:
        return self.variant.graphs.keys()

    def roundings(self, *roles: Role) -> Roundings:
        graphs = {role: self.variant.graphs[role].file for role in roles if role in self.variant.graphs}
        return read_roundings({role: onnx.load(self.directory / file) for role, file in graphs.items()})

    def seen_products(
        self, sources: Sequence[Ids], tokens: Sequence[int], starts: Sequence[int], buffers: Arrays, cross: Arrays
    ) -> list[SeenProduct]:
        seen = []
        if "encode" in self.roles:
            seen += self._seen("encode", self._encoder_feeds(sources))
        asked = last_positions([[token] for token in tokens])
        return [*seen, *self._seen("decode", self._step_feeds(tokens, starts, buffers, cross, asked))]

    def _step_feeds(
        self,
        tokens: Sequence[int],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        asked: Sequence[tuple[int, int]],
    ) -> Arrays:
        """The inputs of `decode` for one step of some rows."""
        feeds: Arrays = {
            "tokens": np.array(tokens, np.int64)[:, None],
            "starts": np.array(starts, np.int64),
            "lengths": np.array(starts, np.int32) + 1,
            "total_length": np.array(_capacity_of(buffers), np.int32),
            **self._asked(asked),
            **{f"past.{name}": array for name, array in buffers.items()},
            **cross,
        }
        return self._read_by("decode", feeds)

    def _read_by(self, role: Role, feeds: Mapping[str, T]) -> dict[str, T]:
        """The feeds that a graph takes."""
        return {name: value for name, value in feeds.items() if name in self.variant.graphs[role].inputs}

    def _seen(self, role: Role, feeds: Mapping[str, Array]) -> list[SeenProduct]:
        """Runs a copy of a graph that also returns the inputs and outputs of its products."""
        model = onnx.load(self.directory / self.variant.graphs[role].file)
        values = product_values(model)
        names = list(dict.fromkeys(name for _, *pair in values for name in pair))
        told = {value.name for value in model.graph.output}
        model.graph.output.extend(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names if name not in told
        )
        arrays = dict(zip(names, open_session(model.SerializeToString()).run(names, dict(feeds)), strict=True))
        return [
            SeenProduct(weight, *(arrays[name].reshape(-1, arrays[name].shape[-1]) for name in (given, result)))
            for weight, given, result in values
        ]

    def seen_encoder_products(self, sources: Sequence[Ids], places: Sequence[Sequence[int]]) -> list[SeenProduct]:
        return self._seen("encode", self._encoder_feeds(sources, places))

    def encode(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] = ()) -> Arrays:
        names = self.variant.graphs["encode"].outputs
        feeds = self._encoder_feeds(sources, places)
        return dict(zip(names, self.sessions["encode"].run(list(names), feeds), strict=True))

    def _encoder_feeds(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] = ()) -> Arrays:
        """places: positions of each source to predict, if the graph has a masked head."""
        length = round_up(max(map(len, sources)), PAD_MULTIPLE)
        feeds: Arrays = {"source": padded(sources, length), "source_lengths": lengths(sources)}
        if "places" in self.variant.graphs["encode"].inputs:
            flat = [row * length + place for row, own in enumerate(places) for place in own]
            feeds["places"] = np.array(flat or [0], np.int64)
        return feeds

    def buffers(self, rows: int, capacity: int) -> Arrays:
        arrays: Arrays = {}
        for state in self.variant.states:
            if state.kind not in ("cross_kv", "shortlist"):
                arrays[state.name] = _dirty(state, {"batch": rows, "capacity": state.places(capacity)})
        return arrays

    def decode(
        self,
        blocks: Sequence[Sequence[int]],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        top_k: int = 1,
        asked: Sequence[tuple[int, int]] | None = None,
    ) -> Prediction:
        run, prediction = self.step(blocks, starts, buffers, cross, top_k=top_k, asked=asked)
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
        asked: Sequence[tuple[int, int]] | None = None,
    ) -> tuple[Callable[[], None], Prediction]:
        """`decode` and `logprobs`, bound but not run yet, and the arrays that they will fill. Runs are repeatable."""
        is_prefill = not any(starts) and self.limits.max_block != 1
        length = round_up(max(map(len, blocks)), PAD_MULTIPLE if is_prefill else 1)
        capacity = _capacity_of(buffers)
        feeds = {
            "tokens": padded(blocks, length),
            "starts": np.array(starts, np.int64),
            "lengths": np.array(starts, np.int32) + lengths(blocks),
            "total_length": np.array(length if is_prefill else capacity, np.int32),
            **self._asked(asked := last_positions(blocks) if asked is None else asked),
        }
        rows = len(asked)
        prediction = Prediction(
            logits=np.full((rows, self.limits.vocab_size), np.nan, np.float32),
            logprobs=np.full((rows, self.limits.vocab_size), np.nan, np.float32),
            normaliser=np.full(rows, np.nan, np.float32),
            top_logprobs=np.full((rows, top_k), np.nan, np.float32),
            top_ids=np.full((rows, top_k), -1, np.int64),
        )
        value = onnxruntime.OrtValue.ortvalue_from_numpy
        states = {name: value(array) for name, array in {**buffers, **cross}.items()}
        told = {name: value(array) for name, array in prediction._asdict().items()}
        if "project_shortlist" in self.roles:
            told["states"] = value(np.full((len(blocks), self._state_width), np.nan, np.float32))
        inputs = {name: value(array) for name, array in feeds.items()}
        inputs |= {f"past.{name}" if name in buffers else name: states[name] for name in states}
        inputs |= {"logits": told["logits"], "top_k": value(np.array([top_k], np.int64))}
        roles = ("decode", "logprobs") if rows else ("decode",)
        bindings = {role: self.sessions[role].io_binding() for role in roles}
        for role, binding in bindings.items():
            graph = self.variant.graphs[role]
            for name in graph.inputs:
                binding.bind_ortvalue_input(name, inputs[name])
            for name in graph.outputs:
                # present.X and other outputs that pass the state X through share its memory.
                binding.bind_ortvalue_output(name, told[name] if name in told else states[name.partition(".")[2]])
        bound = inputs, told, states  # values whose arrays the bindings point into

        def run(_bound: Any = bound) -> None:
            for role, binding in bindings.items():
                self.sessions[role].run_with_iobinding(binding)

        return run, prediction

    def _asked(self, positions: Sequence[tuple[int, int]]) -> Arrays:
        """The input of `decode` that selects positions; empty where it reads one token per row and predicts for all."""
        if "asked" in self.variant.graphs["decode"].inputs:
            return {"asked": np.array([row for row, _ in positions], np.int64)}
        if self.limits.max_block == 1:
            return {}
        return {"positions": np.array(positions, np.int64).reshape(-1, 2)}

    @property
    def _state_width(self) -> int:
        (spec,) = [state for state in self.variant.states if state.name == "word_weight"]
        return int(spec.shape[1])

    def shortlist_logprobs(
        self,
        words: Sequence[Ids],
        tokens: Sequence[int],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        width: int,
    ) -> ShortlistPrediction:
        step = self.sessions["decode"].run(["states"], self._step_feeds(tokens, starts, buffers, cross, ()))
        states: Array = step[0]
        kept = [state for state in self.variant.states if state.kind == "shortlist"]
        held = {state.name: _dirty(state, {"batch": len(words), "words": width}) for state in kept}
        for row, own in enumerate(words):
            told = self.sessions["project_shortlist"].run(
                [state.name for state in kept], {"ids": np.array([own], np.int64)}
            )
            for state, array in zip(kept, told, strict=True):
                held[state.name][row, ..., : len(own)] = array[0]
        feeds: Arrays = {
            "states": states,
            "word_counts": lengths(words),
            "word_places": np.arange(width, dtype=np.int32),
            "top_k": np.array([2], np.int64),
            **held,
        }
        names = ("logprobs", "normaliser", "top_logprobs", "top_ids")
        return ShortlistPrediction(states, *self.sessions["shortlist_logprobs"].run(list(names), feeds))

    def align(self, targets: Sequence[Ids], cross: Mapping[str, Array]) -> Array:
        tokens = padded(targets, round_up(max(map(len, targets)), PAD_MULTIPLE))
        feeds = self._read_by("align", {"tokens": tokens, **cross})
        (attention,) = self.sessions["align"].run(["cross_attention"], feeds)
        result: Array = attention
        return result

    def attend(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> Arrays:
        feeds: Arrays = {}
        for rows, tokens, counts in ((sources, "source", "source_lengths"), (targets, "tokens", "lengths")):
            if tokens in self.variant.graphs["attend"].inputs:
                feeds[tokens] = padded(rows, round_up(max(map(len, rows)), PAD_MULTIPLE))
                feeds[counts] = lengths(rows)
        names = self.variant.graphs["attend"].outputs
        return dict(zip(names, self.sessions["attend"].run(list(names), feeds), strict=True))


def _dirty(state: StateSpec, sizes: Mapping[str, int]) -> Array:
    """A state full of garbage. sizes: of the symbolic axes."""
    return garbage([sizes[axis] if isinstance(axis, str) else axis for axis in state.shape], state.dtype)


def _capacity_of(buffers: Arrays) -> int:
    """The capacity of caches in positions; 0 if there are none."""
    return next((array.shape[2] for array in buffers.values() if array.ndim == CACHE_AXES), 0)


@cache
def is_batch_invariant(scheme: QuantizationScheme) -> bool:
    """Whether a row has the same bits in a batch of one and in a larger batch on this processor. For products in blocks
    this is measured, because processors without AVX-512 use other kernels. The other schemes compute exact sums
    everywhere."""
    if not scheme.block_size:
        return True
    tensor = onnx.helper.make_tensor_value_info
    random = np.random.default_rng(1)
    weight_KN, x_BK = (random.standard_normal(shape).astype(np.float32) for shape in ((512, 64), (4, 512)))
    product = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "product",
        [tensor("x", onnx.TensorProto.FLOAT, ["B", 512])],
        [tensor("y", onnx.TensorProto.FLOAT, ["B", 64])],
        [onnx.numpy_helper.from_array(weight_KN, "weight")],
    )
    model = onnx.helper.make_model(product, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    session = open_session(quantize(model, "decode", scheme).SerializeToString())
    (together_BN,) = session.run(["y"], {"x": x_BK})
    return all(np.array_equal(session.run(["y"], {"x": x_BK[:rows]})[0], together_BN[:rows]) for rows in (1, 2, 3))
