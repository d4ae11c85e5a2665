"""Draws of tokens on a device: what `service.decoding.sampling` would draw, so that the next step can begin before the
host has read anything.

Which number of a random stream a row gets does not depend on its tokens, so the host sends it with the inputs of a step
(`service.step.Draw`). A graph of our own ranks nothing: it takes the K best tokens of each row, which `logprobs` found,
and counts those before the weight at which the draw falls. It does that for two targets, a slack below and above. Where
both name the same token, so would exact arithmetic; elsewhere the token is a guess, which the host checks.

Shapes: R rows, V vocabulary, K best tokens, 2 bounds, P numbers of a draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from export.bundle.onnx_writer import Node, Value, model
from service.draws import Draw
from service.runtime.bindings import Arena, Binding, BindingCache
from service.runtime.memory import StoredArray
from service.runtime.model_sessions import ModelSessions
from service.runtime.sessions import open_own_graph, run_options
from service.runtime.step_inputs import RowInputs
from service.runtime.step_outputs import CAPTURED_TOP_K, FLOAT, LogitsBlocks
from service.step import StepPlan

SLACK = 1e-5
"""Share of a row's weight, for a sharpness of 0: log-probabilities times the sharpness are rounded in float32, which
moves a weight by 1.5e-6 of itself for each unit of sharpness and 2e-6 more, in a vocabulary of 250,000 words."""
UNLIMITED = 1e9  # a top-k beyond all
COLUMNS = ("uniform", "slack", "top_k", "top_p", "min_p", "excess")
GREEDY = Draw((0.0,), 1.0, 0, 1.0, 0.0)
"""Draws the best token."""


def draw_graph(count: int) -> bytes:
    """The graph for `count` best tokens of each row. chosen, int64 (R, 1): the token drawn by the lower bound. places,
    float32 (R, 2, 1): how many of the best tokens come before each draw; `count`: all, and the draw is beyond them."""
    nodes = [
        Node("Mul", ("logprobs", "sharpness"), "scaled"),
        Node("LogSoftmax", ("scaled",), "normalised", axis=1),
        Node("GatherElements", ("normalised", "top_ids"), "best", axis=1),
        Node("Exp", ("best",), "weights_RK"),
        Node("Unsqueeze", ("weights_RK", "axis_1"), "weights"),
        Node("Split", ("draws",), *COLUMNS, axis=2, num_outputs=len(COLUMNS)),
        Node("Less", ("places_K", "top_k"), "in_top_k"),
        Node("Where", ("in_top_k", "weights", "zero"), "kept"),
        Node("MatMul", ("kept", "sums_KK"), "reached"),
        Node("MatMul", ("kept", "ones_K1"), "known"),
        Node("Greater", ("top_k", "count"), "is_open"),  # other tokens than these may be drawn
        Node("Where", ("is_open", "one", "known"), "total"),
        Node("Mul", ("total", "top_p"), "enough"),
        Node("Sub", ("reached", "kept"), "before"),
        Node("Less", ("before", "enough"), "in_top_p"),
        Node("Slice", ("weights", "axis_0", "axis_1", "axis_2"), "highest"),
        Node("Mul", ("highest", "min_p"), "least"),
        Node("GreaterOrEqual", ("weights", "least"), "in_min_p"),
        Node("And", ("in_top_p", "in_min_p"), "inside"),
        Node("Where", ("inside", "kept", "zero"), "inner"),
        Node("MatMul", ("inner", "ones_K1"), "inner_sum"),
        Node("Slice", ("inside", "last_K", "end_K", "axis_2"), "reaches_last"),
        Node("And", ("reaches_last", "is_open"), "goes_beyond"),
        Node("Slice", ("weights", "last_K", "end_K", "axis_2"), "lowest"),
        Node("Mul", ("lowest", "excess"), "last_of_nucleus"),
        Node("Add", ("enough", "last_of_nucleus"), "nucleus"),
        Node("Where", ("goes_beyond", "nucleus", "inner_sum"), "left"),
        Node("Mul", ("uniform", "left"), "exact_target"),
        Node("Add", ("exact_target", "slack"), "target"),
        Node("LessOrEqual", ("reached", "target"), "passed"),
        Node("Cast", ("passed",), "passed_numbers", to=1),
        Node("MatMul", ("passed_numbers", "ones_K1"), "places"),
        Node("Slice", ("places", "axis_0", "axis_1", "axis_1"), "lower"),
        Node("Min", ("lower", "last_place"), "taken"),
        Node("Cast", ("taken",), "taken_R11", to=7),
        Node("Squeeze", ("taken_R11", "axis_2"), "taken_R1"),
        Node("GatherElements", ("top_ids", "taken_R1"), "chosen", axis=1),
    ]
    inputs: list[Value] = [
        ("logprobs", "float32", ("rows", "words")),
        ("top_ids", "int64", ("rows", count)),
        ("sharpness", "float32", ("rows", 1)),
        ("draws", "float32", ("rows", 2, len(COLUMNS))),
    ]
    outputs: list[Value] = [("chosen", "int64", ("rows", 1)), ("places", "float32", ("rows", 2, 1))]
    constants = {
        "places_K": np.arange(count, dtype=FLOAT),
        "sums_KK": np.triu(np.ones((count, count), FLOAT)),
        "ones_K1": np.ones((count, 1), FLOAT),
        **{name: np.array(value, FLOAT) for name, value in {"zero": 0, "one": 1, "count": count}.items()},
        "last_place": np.array(count - 1, FLOAT),
        **{f"axis_{place}": np.array([place]) for place in range(3)},
        "last_K": np.array([count - 1]),
        "end_K": np.array([count]),
    }
    return model(nodes, inputs, outputs, constants)


def bounds(draw: Draw, number: int, count: int) -> tuple[Sequence[float], Sequence[float]]:
    """COLUMNS of a draw, for the step of this number. Of a nucleus beyond the K best only the weight is known, up to
    that of its last token; where min-p ends beyond them, only that it keeps these."""
    slack, uniform, is_nucleus = SLACK * (1 + draw.sharpness), draw.uniforms[number], draw.top_p < 1
    top_k, share = draw.top_k or UNLIMITED, slack if is_nucleus else 0.0
    least_k = min(top_k, count) if draw.min_p else top_k
    return (
        (uniform, -slack, least_k, draw.top_p - share, draw.min_p * (1 + slack), 0.0),
        (uniform, slack, top_k, draw.top_p + share, draw.min_p * (1 - slack), float(is_nucleus)),
    )


class TokenDraws:
    """The draws of a runner's rows. count: K of the graph."""

    def __init__(self, model: ModelSessions, logits: LogitsBlocks, inputs: RowInputs) -> None:
        """logits: the outputs whose best tokens are drawn from. inputs: where the drawn tokens go."""
        self._logits, self._inputs, self._options = logits, inputs, model.run_options
        self.count = min(CAPTURED_TOP_K[-1], model.manifest.limits.vocab_size)
        self._session = open_own_graph(draw_graph(self.count), model.stream)
        self._arena = Arena(logits.arenas[0].memory)
        self._places = self._arena.allocate(inputs.max_rows * 2 * FLOAT.itemsize)
        self._bindings = BindingCache(self._arena, *logits.arenas)

    def capture(self, rooms: Iterable[int], graph_ids: Iterator[int]) -> None:
        """Captures the draws of so many rows each."""
        self._logits.ensure(0, self.count)
        for room in rooms:
            binding = self._binding(room)
            binding.options = run_options(next(graph_ids))
            binding.run()

    def place(self, plan: StepPlan, number: int) -> None:
        """Fills in how the tokens of a plan's step of this number are drawn."""
        assert plan.decode is not None
        sharpness_R1, draws_R2P = self._inputs["sharpness"], self._inputs["draws"]
        sharpness_R1[: plan.shape.rows] = GREEDY.sharpness
        draws_R2P[: plan.shape.rows] = bounds(GREEDY, 0, self.count)
        for row, draw in plan.decode.draws:
            sharpness_R1[row] = draw.sharpness
            draws_R2P[row] = bounds(draw, number, self.count)

    @property
    def is_possible(self) -> bool:
        """Whether as many tokens are ranked in this turn as the graph takes."""
        return int(self._logits.top_k[0]) == self.count

    def run(self, rows: int) -> None:
        """Draws the next tokens of the first rows."""
        self._binding(rows).run()

    def _binding(self, rows: int) -> Binding:
        binding = self._bindings.get(rows)
        if binding is None:
            binding = self._bindings.add(rows, Binding(self._session, self._options))
            self._logits.read(binding, ("logprobs", "top_ids"), rows)
            self._inputs.bind(binding, rows, ("sharpness", "draws"))
            self._inputs.bind_newest(binding, "chosen", rows)
            binding.write("places", self._arena.place(self._places, 0, FLOAT, (rows, 2, 1)))
        return binding

    def stored(self, rows: int) -> tuple[StoredArray, StoredArray]:
        """Where the tokens and the places of the first rows are."""
        return self._inputs.stored_newest(rows), StoredArray(self._places, 0, (rows, 2), FLOAT)

    def read(
        self, plan: StepPlan, chosen_R1: np.ndarray, places_R2: np.ndarray, best: Sequence[Sequence[int]]
    ) -> list[tuple[int, bool]]:
        """The tokens with which the rows go on, each with whether it was drawn for certain: of the arrays that `stored`
        names, or of `best`, by row, where none is drawn."""
        assert plan.decode is not None
        tokens = [(own[0], False) for own in best]
        low_R, high_R = places_R2[:, 0], places_R2[:, 1]
        is_certain_R = (low_R == high_R) & (high_R < self.count)
        for row, _ in plan.decode.draws:
            tokens[row] = int(chosen_R1[row, 0]), bool(is_certain_R[row])
        return tokens
