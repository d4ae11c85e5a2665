"""A variant under verification: its inputs, the outputs of its graphs, and PyTorch's outputs for the same inputs.

Outputs that several checks compare are computed once, on first use. Rows are ordered so that every step can use a
prefix of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from export.bundle.manifest import PAD_MULTIPLE, Role
from export.passes.equalize import equalized
from export.verification.emulated_quantization import Roundings, emulated_model
from export.verification.golden import Answer, answer_greedily
from export.verification.inputs import Ids, Samples, predicted_places
from export.verification.measure import Array, Arrays
from export.verification.ort_graphs import OrtGraphs, Prediction, lengths, round_up
from export.verification.torch_reference import Expectations
from model.architectures import Model

TOP_K = (16, 1, 0)  # numbers of best tokens to request, used in rotation
CAPACITY_MULTIPLE = 8  # the capacity of a server's buffers is a multiple of this
SPARE_CAPACITY = 8  # positions by which the buffers of single rows are longer
GREEDY_TOKENS = 24  # of an answer


class Steps(NamedTuple):
    """Predictions of decode steps by row and position, one row each, and the buffers after the last step."""

    predictions: dict[int, dict[int, Prediction]]
    buffers: Arrays


class GreedyAnswer(NamedTuple):
    """The answer of the graphs to one input, and that of the PyTorch reference up to the first difference."""

    source: Ids
    prompt: Ids
    answer: Answer
    reference: Ids


class GreedyAnswers(NamedTuple):
    """An answer for each row, of at most `max_tokens` tokens."""

    rows: tuple[GreedyAnswer, ...]
    max_tokens: int


class Case:
    """One variant, and the data that its checks share. plain: the model's outputs without roundings, which several
    variants may share."""

    def __init__(self, graphs: OrtGraphs, model: Model, samples: Samples, plain: Expectations | None = None) -> None:
        self.plain = plain or Expectations(model)
        self.graphs, self.model, self.config, self.samples = graphs, model, model.config, samples
        self.precision, self.quantization = graphs.variant.precision, graphs.variant.quantization
        count = max(len(samples.sources), len(samples.targets))
        sources, targets = samples.sources or ((),) * count, samples.targets or ((),) * count
        # Some rows start with a prefix, so that the rows of a batched step are at different positions.
        least = 1 if self.config.supports_chunked_prefill else 0
        starts = [max(least, len(target) * (i % 4) // 4) for i, target in enumerate(targets)]
        order = sorted(range(count), key=lambda i: starts[i] - len(targets[i]))
        self.sources = tuple(sources[i] for i in order)
        self.targets = tuple(targets[i] for i in order)
        self.starts = tuple(starts[i] for i in order)
        self.top_k = tuple(min(count, self.config.vocab_size) for count in TOP_K)

    @property
    def rows(self) -> list[tuple[int, Ids, Ids]]:
        """The number, source and target of each row."""
        return [(row, *pair) for row, pair in enumerate(zip(self.sources, self.targets, strict=True))]

    def read_roundings(self, *roles: Role) -> Roundings:
        """The roundings in the graphs of these roles; none if the variant is not quantized."""
        return self.graphs.roundings(*roles) if self.quantization else Roundings()

    @cached_property
    def plain_model(self) -> Model:
        """The model that the graphs compute, without rounding: the checkpoint's, or an equalized one."""
        exponents = self.roundings.exponents
        return self.model if exponents is None else equalized(self.model, exponents)

    @cached_property
    def roundings(self) -> Roundings:
        return self.read_roundings("encode", "decode")

    @cached_property
    def align_roundings(self) -> Roundings:
        """The roundings of `align`, which has no caches of its own and reads what `encode` writes for `decode`."""
        found = self.read_roundings("encode", "align")
        found.steps |= {name: step for name, step in self.roundings.steps.items() if name.startswith("cross_")}
        return found

    def reference(self, roundings: Roundings) -> Expectations:
        """The expected outputs, with the roundings of a quantized variant emulated."""
        if self.quantization is None:
            return Expectations(self.plain_model)
        return Expectations(emulated_model(self.plain_model, roundings), unrounded=self.plain_model)

    @cached_property
    def expected(self) -> Expectations:
        """PyTorch's outputs with the roundings of `encode` and `decode`."""
        return self.reference(self.roundings) if self.quantization else self.plain

    def cross(self, rows: Sequence[int]) -> Arrays:
        """PyTorch's keys and values for the sources of these rows, followed by garbage."""
        if not self.config.has_encoder:
            return {}
        sources = [self.sources[row] for row in rows]
        arrays = self.graphs.cross_buffers(len(rows), round_up(max(map(len, sources)), CAPACITY_MULTIPLE))
        for row, source in enumerate(sources):
            self._write(arrays, row, self.expected.own.source(source))
        return {**arrays, "source_lengths": lengths(sources)}

    def fill(self, buffers: Arrays, row: int, source: Ids, target: Ids) -> None:
        """Writes PyTorch's caches of a target to a row; an empty target has none."""
        if target:
            self._write(buffers, row, self.expected.own.caches(source, target))

    def _write(self, buffers: Arrays, row: int, values: Arrays) -> None:
        for name in buffers.keys() & values.keys():
            written_places(buffers[name][row], values[name])[...] = self.roundings.kept(name, values[name])

    def encode(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] | None = None) -> list[Arrays]:
        """The outputs of `encode` for each source of a ragged batch, without padding. places: positions that a masked
        head predicts; by default `predicted_places`."""
        places = [predicted_places(source) for source in sources] if places is None else places
        arrays, outputs, first = self.graphs.encode(sources, places), list[Arrays](), 0
        for row, (source, own) in enumerate(zip(sources, places, strict=True)):
            outputs.append({})
            for name, array in arrays.items():
                if name == "place_logprobs":  # of all rows, one after another
                    outputs[row][name] = array[first : first + len(own)]
                elif name == "token_weights":
                    outputs[row][name] = array[row, : len(source)]
                else:
                    outputs[row][name] = valid(array[row], len(source))
            first += len(own)
        return outputs

    @cached_property
    def encoded(self) -> list[Arrays]:
        return self.encode(self.sources)

    @cached_property
    def encoded_longest(self) -> Arrays:
        return self.encode([self.samples.longest_source])[0]

    def prefill(self, targets: Sequence[Ids], top_k: int = 1) -> tuple[Prediction, Arrays]:
        """Predictions after whole targets in one batch, and their caches."""
        buffers = self.graphs.buffers(len(targets), capacity_of(targets))
        return self.graphs.decode(targets, [0] * len(targets), buffers, {}, top_k=top_k), buffers

    @cached_property
    def prefilled(self) -> tuple[Prediction, Arrays]:
        return self.prefill(self.targets, self.top_k[0])

    @cached_property
    def prefilled_alone(self) -> list[Prediction]:
        return [self.prefill([target], self.top_k[1])[0] for target in self.targets]

    def step_through(self, rows: Sequence[int], capacity: int, top_k: Sequence[int]) -> Steps:
        """Feeds the targets of these rows: first the start of each row separately, then all rows together, token by
        token. Finished rows leave from the end. The buffers have one more row, which no target uses. The numbers of
        best tokens rotate."""
        predictions: dict[int, dict[int, Prediction]] = {row: {} for row in rows}
        buffers, cross = self.graphs.buffers(len(rows) + 1, capacity), self.cross(rows)

        def decode(first: int, blocks: Sequence[Sequence[int]], starts: Sequence[int], step: int) -> Prediction:
            """Decode a block of each of the rows from `first` on."""
            some = slice(first, first + len(blocks))
            past, sources = ({name: array[some] for name, array in both.items()} for both in (buffers, cross))
            return self.graphs.decode(blocks, starts, past, sources, top_k=top_k[step % len(top_k)])

        for i, row in enumerate(rows):
            head = self.targets[row][: self.starts[row]]
            for start, block in enumerate(
                [head] if self.config.supports_chunked_prefill else [[token] for token in head]
            ):
                predictions[row][start + len(block) - 1] = decode(i, [block], [start], start)
        for step in range(max(len(self.targets[row]) - self.starts[row] for row in rows)):
            live = [row for row in rows if self.starts[row] + step < len(self.targets[row])]
            positions = [self.starts[row] + step for row in live]
            tokens = [[self.targets[row][position]] for row, position in zip(live, positions, strict=True)]
            together = decode(0, tokens, positions, step)
            for i, row in enumerate(live):
                predictions[row][positions[i]] = together.row(i)
        return Steps(predictions, buffers)

    @cached_property
    def steps(self) -> Steps:
        return self.step_through(range(len(self.targets)), capacity_of(self.targets), self.top_k)

    @cached_property
    def steps_alone(self) -> dict[int, dict[int, Prediction]]:
        """Every row in separate buffers of another capacity, with other numbers of best tokens."""
        capacity, top_k = capacity_of(self.targets) + SPARE_CAPACITY, (*self.top_k[1:], self.top_k[0])
        return {row: self.step_through([row], capacity, top_k).predictions[row] for row in range(len(self.targets))}

    @cached_property
    def greedy_answers(self) -> GreedyAnswers:
        """Greedy answers to the sources, or to the beginnings of the targets, in one batch."""
        config, reference = self.config, self.expected.own
        half, start = max(1, config.max_target_len // 2), max(1, len(config.template.target_prefix))
        prompts = [target[: half if config.supports_chunked_prefill else start] for target in self.targets]
        max_tokens = min(GREEDY_TOKENS, config.max_target_len - max(map(len, prompts)) + 1)
        sources = self.sources if config.has_encoder else ()
        found = answer_greedily(self.graphs, sources, prompts, config.eos_ids, max_tokens)
        rows = [
            GreedyAnswer(source, prompt, answer, reference.greedy(source, prompt, max_tokens, answer.tokens))
            for source, prompt, answer in zip(self.sources, prompts, found, strict=True)
        ]
        return GreedyAnswers(tuple(rows), max_tokens)

    @cached_property
    def aligned(self) -> Array:
        """Cross-attention weights of a ragged batch whose sources are followed by garbage."""
        return self.graphs.align(self.targets, self.cross(range(len(self.targets))))

    @cached_property
    def attended(self) -> Arrays:
        """Every attention of a ragged batch."""
        return self.graphs.attend(self.sources, self.targets)


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
