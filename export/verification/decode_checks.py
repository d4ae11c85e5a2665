"""Checks of `decode` and `logprobs`: prompts and blocks of tokens, cached steps, caches, log-probabilities and best
tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from export.bundle.manifest import PAD_MULTIPLE
from export.verification.case import Case, capacity_of, valid, written_places
from export.verification.inputs import Ids
from export.verification.measure import Comparison, Measured
from export.verification.ort_graphs import Prediction, garbage, round_up
from export.verification.torch_reference import LAST


def prefill(case: Case) -> Iterator[Comparison]:
    """A ragged, right-padded batch of prompts, and the longest prompt."""
    longest = [case.samples.longest_target]
    for (prediction, caches), targets in ((case.prefilled, case.targets), (case.prefill(longest), longest)):
        for row, target in enumerate(targets):
            yield "logprobs", prediction.logprobs[row], case.expected.logprobs((), target, LAST)[0]
            for name, expected in case.expected.caches((), target).items():
                yield f"present.{name}", case.roundings.values(name, valid(caches[name][row], len(target))), expected


def prefill_alone(case: Case) -> Iterator[Comparison]:
    """Prompts in a batch against the same prompts in batches of one."""
    for row, alone in enumerate(case.prefilled_alone):
        yield from _predictions_alone(case.prefilled[0].row(row), alone)


def _predictions_alone(together: Prediction, alone: Prediction) -> Iterator[Comparison]:
    """Outputs in which two predictions of a row must agree; their numbers of best tokens may differ."""
    for name in ("logits", "logprobs", "normaliser"):
        yield name, getattr(together, name), getattr(alone, name)


def prefill_without_logits(case: Case) -> Iterator[Comparison]:
    """Prompts without requested logits leave the same caches."""
    for target in case.targets:
        buffers = case.graphs.buffers(1, capacity_of([target]))
        prediction = case.graphs.decode([target], [0], buffers, {}, requested=())
        yield "logits that were not requested", np.array(prediction.logits.size), np.zeros(())
        for name, cache in case.prefill([target])[1].items():
            yield name, buffers[name], cache


def later_block(case: Case) -> Iterator[Comparison]:
    """One row in two blocks: the second attends to the first in the cache."""
    for target in case.targets:
        cut = max(1, len(target) // 3)
        if len(target) - cut > 1:
            prediction = _in_two_blocks(case, target, cut, [(0, len(target) - cut - 1)])
            yield "logprobs", prediction.logprobs[0], case.expected.logprobs((), target, LAST)[0]


def _in_two_blocks(case: Case, target: Ids, cut: int, requested: list[tuple[int, int]]) -> Prediction:
    """Predictions of the second block; the first one returns a prediction in its middle."""
    buffers = case.graphs.buffers(1, capacity_of([target]))
    case.graphs.decode([target[:cut]], [0], buffers, {}, requested=[(0, cut // 2)])
    return case.graphs.decode([target[cut:]], [cut], buffers, {}, requested=requested)


def several_positions(case: Case) -> Iterator[Comparison]:
    """Predictions after every token of a ragged batch, the last row first; and after every token of a block with a
    past, as in the verification of a draft."""
    requested = [(row, position) for row, target in enumerate(case.targets) for position in range(len(target))][::-1]
    buffers = case.graphs.buffers(len(case.targets), capacity_of(case.targets))
    together = case.graphs.decode(case.targets, [0] * len(case.targets), buffers, {}, requested=requested)
    expected = [case.expected.logprobs((), target) for target in case.targets]
    for i, (row, position) in enumerate(requested):
        yield f"logprobs at {position} of row {row}", together.logprobs[i], expected[row][position]
    for target, logprobs in zip(case.targets, expected, strict=True):
        cut = max(1, len(target) // 3)
        if len(target) > cut:
            prediction = _in_two_blocks(case, target, cut, [(0, position) for position in range(len(target) - cut)])
            yield "logprobs of a block", prediction.logprobs, logprobs[cut:]


def steps(case: Case) -> Iterator[Comparison]:
    """Cached steps against the full sequence in PyTorch, without a cache."""
    for row, source, target in case.rows:
        expected = case.expected.logprobs(source, target)
        for position, prediction in case.steps.predictions[row].items():
            yield f"logprobs at {position}", prediction.logprobs[0], expected[position]


def steps_alone(case: Case) -> Iterator[Comparison]:
    """Rows in a batch against the same rows in buffers of their own."""
    for row, predictions in case.steps_alone.items():
        for position, alone in predictions.items():
            yield from _predictions_alone(case.steps.predictions[row][position], alone)


def last_position(case: Case) -> Iterator[Comparison]:
    """One step at the end of the longest target, over PyTorch's caches of the preceding tokens."""
    source, target = case.sources[0], case.samples.longest_target
    last, buffers = len(target) - 1, case.graphs.buffers(1, capacity_of([target]))
    case.fill(buffers, 0, source, target[:last])
    prediction = case.graphs.decode([target[last:]], [last], buffers, case.cross([0]))
    yield f"logprobs at {last}", prediction.logprobs[0], case.expected.logprobs(source, target, LAST)[0]


def caches(case: Case) -> Iterator[Comparison]:
    """The caches after the last step, where targets have written."""
    for row, source, target in case.rows:
        for name, expected in case.expected.caches(source, target).items():
            written = written_places(case.steps.buffers[name][row], expected.own)
            yield f"present.{name}", case.roundings.values(name, written), expected


def caches_elsewhere(case: Case) -> Iterator[Comparison]:
    """The caches after the last step hold garbage after the end of a target, and in the row that no target uses."""
    config = case.config
    for name, array in case.steps.buffers.items():
        is_compressed = config.compression_stride and config.is_compressed(int(name.rpartition(".")[2]))
        stride = config.compression_stride if is_compressed else 1  # target positions per entry
        for row, entries in enumerate(array):
            used = len(case.targets[row]) if row < len(case.targets) else 0
            if used and config.supports_chunked_prefill:  # the padding of a block is written but never read
                used = max(used, round_up(case.starts[row], PAD_MULTIPLE))
            unused = entries[:, -(-used // stride) :] if entries.ndim > 1 else entries[entries.size * bool(used) :]
            yield f"{name} after the end of row {row}", unused, garbage((), entries.dtype)


def normaliser(case: Case) -> Iterator[Comparison]:
    """Log-probabilities plus normaliser, and the logits that `decode` returns."""
    for row, source, target in case.rows:
        expected = case.expected.logits(source, target)
        for position, prediction in case.steps.predictions[row].items():
            logits_V = prediction.logprobs[0] + prediction.normaliser[0]
            yield f"logits at {position}", prediction.logits[0], expected[position]
            yield f"normalised logits at {position}", logits_V, expected[position]


def _all_predictions(case: Case) -> list[Prediction]:
    """Predictions of prompts and of steps, of rows in a batch and in buffers of their own, of one or more rows."""
    prompts = [case.prefilled[0], *case.prefilled_alone] if case.config.supports_chunked_prefill else []
    steps = (*case.steps.predictions.values(), *case.steps_alone.values())
    return [*prompts, *(prediction for positions in steps for prediction in positions.values())]


def sums(case: Case) -> Measured:
    """The probabilities of a row add up to one."""
    sums = np.concatenate([np.exp(p.logprobs.astype(np.float64)).sum(-1) for p in _all_predictions(case)])
    error = float(np.nan_to_num(np.abs(sums - 1), nan=np.inf).max())
    return Measured(error, f"worst of {len(sums)} rows")


def best_tokens(case: Case) -> Iterator[Comparison]:
    """The best tokens, one or several, in a batch and in buffers of their own, against a stable sort of the logits: a
    caller that reads only the logits finds the same tokens."""
    for prediction in _all_predictions(case):
        count = prediction.top_ids.shape[1]
        order = np.argsort(-prediction.logits, axis=-1, kind="stable")[:, :count]
        yield f"ids of the best {count}", prediction.top_ids, order
        expected = np.take_along_axis(prediction.logprobs, order, axis=-1)
        yield f"log-probabilities of the best {count}", prediction.top_logprobs, expected
