"""A variant under verification: its graphs, inputs and PyTorch reference, shared by the checks of all graphs.

Rows are ordered so that every step can use a prefix of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from export.manifest import PAD_MULTIPLE, Quantization
from export.verification.emulated_quantization import Roundings, emulated_model
from export.verification.graph_calls import Array, Arrays, Graphs, garbage, lengths, round_up
from export.verification.inputs import Ids, Samples
from export.verification.measure import Checker
from export.verification.torch_reference import Yardstick
from model.architectures import GenerativeModel

TOP_K = (16, 1, 0)  # numbers of best tokens to request, used in rotation
DTYPES = {"fp32": "float32", "fp16": "float16"}


class Case(Checker):
    """One variant of a model with a decoder, and the data that all of its checks share."""

    def __init__(
        self,
        served: Graphs,
        precision: str,
        model: GenerativeModel,
        samples: Samples,
        quantization: Quantization | None = None,
    ) -> None:
        super().__init__(precision, samples, quantization)
        self.served, self.plain_model, self.config = served, model, model.config
        sources = samples.sources or ((),) * len(samples.targets)
        # Some rows start with a prefix, so that the rows of a batched step are at different positions.
        least = 1 if self.config.supports_chunked_prefill else 0
        heads = [max(least, len(target) * (i % 4) // 4) for i, target in enumerate(samples.targets)]
        order = sorted(range(len(heads)), key=lambda i: heads[i] - len(samples.targets[i]))
        self.sources = tuple(sources[i] for i in order)
        self.targets = tuple(samples.targets[i] for i in order)
        self.heads = tuple(heads[i] for i in order)
        self.top_k = tuple(min(count, self.config.vocab_size) for count in TOP_K)

    @cached_property
    def roundings(self) -> Roundings:
        return self.served.roundings("encode", "decode") if self.quantization else Roundings()

    @cached_property
    def aligning(self) -> Roundings:
        """The roundings of `align`, which has no caches of its own and reads what `encode` writes for `decode`."""
        found = self.served.roundings("encode", "align")
        found.steps |= {name: step for name, step in self.roundings.steps.items() if name.startswith("cross_")}
        return found

    @cached_property
    def model(self) -> GenerativeModel:
        """The model, with the roundings of the graphs, if any, emulated."""
        return emulated_model(self.plain_model, self.roundings) if self.quantization else self.plain_model

    @cached_property
    def expected(self) -> Yardstick:
        return self.yardstick(self.model)

    def yardstick(self, model: GenerativeModel) -> Yardstick:
        return Yardstick(model, in_float64=self.quantization is None)

    def cross(self, rows: Sequence[int]) -> Arrays:
        """PyTorch's keys and values for the sources of these rows, followed by garbage."""
        if not self.config.has_encoder:
            return {}
        sources = [self.sources[row] for row in rows]
        length = round_up(max(map(len, sources)), PAD_MULTIPLE)
        arrays: Arrays = {"source_lengths": lengths(sources)}
        for row, source in enumerate(sources):
            for name, array in self.expected.float32.source(source).items():
                if name != "encoder_states":
                    size = (array.shape[1], length, array.shape[3]) if array[0].ndim > 1 else array.shape[1:]
                    if name not in arrays:
                        arrays[name] = garbage((len(rows), *size), self._dtype(name))
                    written_places(arrays[name][row], array[0])[...] = self.roundings.kept(name, array[0])
        return arrays

    def fill(self, buffers: Arrays, row: int, source: Ids, target: Ids) -> None:
        """Writes PyTorch's caches of a target to a row; an empty target has none."""
        for name, cache in self.expected.float32.caches(source, target).items() if target else ():
            written_places(buffers[name][row], cache)[...] = self.roundings.kept(name, cache)

    def _dtype(self, name: str) -> str:
        return "int8" if name in self.roundings.steps else DTYPES.get(self.precision, "float32")


def valid(array: Array, length: int) -> Array:
    """The first `length` positions of states (S, M) or of keys or values (K, S, D); a state without positions (M,) as a
    whole."""
    return array[..., :length, :] if array.ndim > 1 else array


def written_places(kept: Array, expected: Array) -> Array:
    """A view of those positions of a row's keys or values (K, T, D) that have an expected value; a state without
    positions (M,) as a whole."""
    return kept[:, : expected.shape[1]] if kept.ndim > 1 else kept


def capacity_of(targets: Sequence[Ids]) -> int:
    """Positions of a buffer with room for these targets."""
    return round_up(max(map(len, targets)), PAD_MULTIPLE)
