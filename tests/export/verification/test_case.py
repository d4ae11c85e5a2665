"""The data of a case: the order of its rows, the tokens it feeds, and the arrays it fills."""

from pathlib import Path

import numpy as np
import pytest

from export.bundle.manifest import StateSpec, Variant
from export.limits import limits_of
from export.verification.case import Case, valid, written_places
from export.verification.emulated_quantization import Roundings
from export.verification.inputs import Samples
from export.verification.ort_graphs import OrtGraphs, Prediction
from tests.tiny import tiny_config, tiny_model

SAMPLES = Samples(
    sources=((4, 2), (5, 6, 7, 2), (8, 2), (9, 9, 2), (4, 5, 2)),
    targets=((1, 4, 5, 6, 7, 8), (1,), (1, 5, 6, 7), (1, 7, 6, 5, 4), (1, 9)),
    longest_source=(4,) * 9,
    longest_target=(1,) * 9,
)
STATES = [
    *(StateSpec(name=f"self_{part}.{i}", kind="self_kv", dtype="float32", shape=("batch", 4, "capacity", 8))
      for part in ("key", "value") for i in (0, 1)),
    *(StateSpec(name=f"cross_{part}.{i}", kind="cross_kv", dtype="float32", shape=("batch", 4, "source", 8))
      for part in ("key", "value") for i in (0, 1)),
]  # fmt: skip


class FakeGraphs(OrtGraphs):
    """Records the blocks that `decode` receives; every prediction holds the last token of its row."""

    def __init__(self, model):
        variant = Variant(precision="fp32", graphs={}, states=tuple(STATES))
        super().__init__(Path(), variant, limits_of(model.config))
        self.calls = []

    def decode(self, blocks, starts, buffers, cross, *, top_k=1, requested=None, firsts=()):
        self.calls.append((blocks, starts, top_k, cross["source_lengths"].tolist()))
        for row, (block, start) in enumerate(zip(blocks, starts, strict=True)):
            for place, token in enumerate(block):
                buffers["self_key.0"][row, :, start + place] = token
        last = np.array([block[-1] for block in blocks], np.float32)
        return Prediction(last[:, None], last[:, None], last, last[:, None], last[:, None])


@pytest.fixture
def case():
    model = tiny_model(tiny_config())
    return Case(FakeGraphs(model), model, SAMPLES)


def test_rows_that_finish_first_are_last(case):
    """So a step can use the first rows of the buffers."""
    steps = [len(target) - start for target, start in zip(case.targets, case.starts, strict=True)]
    assert steps == sorted(steps, reverse=True)
    assert len(set(case.starts)) > 2, "rows of a step are at different positions"
    assert sorted(zip(case.sources, case.targets, strict=True)) == sorted(
        zip(SAMPLES.sources, SAMPLES.targets, strict=True)
    )
    assert case.rows[1] == (1, case.sources[1], case.targets[1])


def test_every_token_is_fed_once_in_its_row_and_position(case):
    predictions, buffers = case.step_through(range(5), 16, (2, 1))
    for row, _, target in case.rows:
        assert {position: p.logits[0, 0] for position, p in predictions[row].items()} == dict(enumerate(target))
        assert (buffers["self_key.0"][row, :, : len(target)] == np.array(target)[:, None]).all()
        assert (buffers["self_key.0"][row, :, len(target) :] == 37.0).all()
    assert (buffers["self_key.0"][5] == 37.0).all(), "the row that no target uses"
    assert {top_k for _, _, top_k, _ in case.graphs.calls} == {1, 2}
    together = max(case.graphs.calls, key=lambda call: len(call[0]))
    assert together[3] == [len(case.sources[row]) for row in range(len(together[0]))]


def test_cross_attention_caches_are_followed_by_garbage(case):
    arrays = case.cross([3, 0])
    assert arrays["source_lengths"].tolist() == [len(case.sources[row]) for row in (3, 0)]
    assert arrays["cross_value.1"].shape[2] == 8, "the smallest capacity of a server"
    for i, row in enumerate((3, 0)):
        expected = case.expected.own.source(case.sources[row])["cross_value.1"]
        length = len(case.sources[row])
        assert np.array_equal(arrays["cross_value.1"][i, :, :length], expected)
        assert (arrays["cross_value.1"][i, :, length:] == 37.0).all()


def test_filled_caches_are_stored_as_the_graph_stores_them(case):
    case.roundings = Roundings(steps={"self_key.0": 0.25})
    buffers = case.graphs.buffers(2, 16)
    case.fill(buffers, 1, (4, 2), (1, 5, 6))
    caches = case.expected.own.caches((4, 2), (1, 5, 6))
    assert np.array_equal(buffers["self_key.0"][1, :, :3], np.clip(np.rint(caches["self_key.0"] / 0.25), -128, 127))
    assert np.array_equal(buffers["self_value.0"][1, :, :3], caches["self_value.0"])
    assert (buffers["self_key.0"][0] == 37.0).all()
    case.fill(buffers, 0, (4, 2), ())
    assert (buffers["self_key.0"][0] == 37.0).all()


def test_positions_are_those_of_states_of_keys_and_of_neither():
    states_SM, keys_KSD, state_M = np.zeros((5, 8)), np.zeros((2, 5, 4)), np.zeros(8)
    assert [valid(array, 3).shape for array in (states_SM, keys_KSD, state_M)] == [(3, 8), (2, 3, 4), (8,)]
    assert written_places(keys_KSD, np.zeros((2, 1, 4))).shape == (2, 1, 4)
    assert written_places(state_M, np.zeros(8)).shape == (8,)
