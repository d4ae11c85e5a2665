import numpy as np
import pytest

from service.runtime.bindings import Arena, Binding
from service.runtime.memory import HostMemory
from service.runtime.step_outputs import FEW_LINES, LogitsBlocks, top_k_for
from tests.fakes import RecordingSession, array_at, cuda_memory

WORDS = 40


def filled(memory, rows, top_k):
    """Buffers as the graphs would leave them, the logits in them, and their log-probabilities."""
    outputs = LogitsBlocks(Arena(memory), WORDS)
    outputs.ensure(rows, top_k)
    logits_RV = np.random.default_rng(1).normal(size=(rows, WORDS)).astype(np.float32)
    logprobs_RV = logits_RV - np.log(np.exp(logits_RV).sum(1, keepdims=True))
    order = np.argsort(-logits_RV, axis=1, kind="stable")[:, : outputs.top_k[0]]
    written: dict[str, np.ndarray] = {"logits": logits_RV}
    if outputs.is_ranked:
        written |= {"logprobs": logprobs_RV, "normaliser": np.arange(rows, dtype=np.float32)}
        written |= {"top_ids": order, "top_logprobs": np.take_along_axis(logprobs_RV, order, 1)}
    for name, values in written.items():
        place = bound(outputs, rows)[name]
        assert place[:3] == (memory.device, values.dtype, values.shape)
        array_at(place)[:] = values
    return outputs, logits_RV, logprobs_RV


def bound(outputs, lines):
    """Where both graphs write."""
    outputs._session = RecordingSession()
    binding = outputs._ranking(lines)
    places = binding.io.bound
    assert places.pop("top_k")[0] == "cpu"
    read = places.pop("logits")
    outputs.bind(binding, 0, lines)
    assert places["logits"] == read
    return places


@pytest.mark.parametrize(("wanted", "asked"), [(1, 2), (2, 2), (3, 4), (64, 64), (65, 128), (200, 200)])
def test_top_k_is_rounded_up(wanted, asked):
    assert top_k_for(wanted) == asked


@pytest.mark.parametrize("memory", [HostMemory(), cuda_memory()], ids=["host", "cuda"])
@pytest.mark.parametrize("top_k", [1, 3, 8])
def test_turn_returns_the_best_tokens_and_whole_distributions(memory, top_k):
    outputs, _, logprobs_RV = filled(memory, 3, top_k)
    top_ids, top_logprobs = outputs.best(3)
    for row in range(3):
        assert np.array_equal(outputs.logprobs(row, row), logprobs_RV[row])
        best = np.argsort(-logprobs_RV[row], kind="stable")[:top_k]
        assert top_ids[row][:top_k] == best.tolist()
        assert top_logprobs[row][:top_k] == logprobs_RV[row, best].tolist()
        assert outputs.logsumexp(0, row) == row


def test_one_token_is_left_to_numpy_in_main_memory_and_to_the_graph_on_a_device():
    assert filled(HostMemory(), 2, 1)[0].top_k.tolist() == [0]
    assert filled(cuda_memory(), 2, 1)[0].top_k.tolist() == [2]


def test_there_are_never_more_best_tokens_than_words():
    assert filled(HostMemory(), 2, 64)[0].top_k.tolist() == [WORDS]


def test_of_equal_tokens_the_lowest_id_is_the_best():
    outputs, *_ = filled(HostMemory(), 1, 1)
    array_at(bound(outputs, 1)["logits"])[:] = 0.0
    assert outputs.best(1)[0] == [[0]]
    assert outputs.most_likely(0)[0] == 0


@pytest.mark.parametrize("rows", [1, 3, FEW_LINES, FEW_LINES + 1])
def test_rows_without_scores_return_the_best_token_and_its_logit(rows):
    outputs, logits_RV, _ = filled(HostMemory(), rows, 0)
    assert outputs.best(rows)[0] == [[token] for token in logits_RV.argmax(1)]
    assert outputs.best(rows)[1] == [[logit] for logit in logits_RV.max(1)]
    best = [outputs.most_likely(row) for row in range(rows)]
    assert best == list(zip(logits_RV.argmax(1).tolist(), logits_RV.max(1).tolist(), strict=True))


@pytest.mark.parametrize("top_k", [1, 4])
def test_the_best_token_of_a_line_is_there_before_the_line_is_ranked(top_k):
    outputs, *_ = filled(HostMemory(), 1, top_k)
    array_at(bound(outputs, 1)["logits"])[:] = np.arange(WORDS)
    assert outputs.most_likely(0) == (WORDS - 1, float(WORDS - 1)), "what the last turn ranked is there still"


@pytest.mark.parametrize("rows", [1, FEW_LINES + 1])
def test_nan_is_reported_without_scores_too(rows):
    outputs, *_ = filled(HostMemory(), rows, 0)
    array_at(bound(outputs, rows)["logits"])[rows - 1, 7] = np.nan
    assert np.isnan(outputs.best(rows)[1][rows - 1][0])


def test_on_a_device_all_rows_are_ranked():
    outputs, _, logprobs_RV = filled(cuda_memory(), 3, 0)
    top_ids, top_logprobs = outputs.best(3)
    best = [outputs.most_likely(row) for row in range(3)]
    assert [(ids[0], scores[0]) for ids, scores in zip(top_ids, top_logprobs, strict=True)] == best
    assert [best[0] for best in top_logprobs] == logprobs_RV.max(1).tolist()


def moved(outputs, arena, *sizes):
    """Makes room; returns whether bindings to the outputs became invalid."""
    before = arena.generation
    outputs.ensure(*sizes)
    return arena.generation != before


def test_turns_with_and_without_scores_keep_each_others_bindings():
    outputs = LogitsBlocks(arena := Arena(HostMemory()), WORDS)
    assert moved(outputs, arena, 4, 0)
    plain = outputs.size
    assert plain == 4 * WORDS * 4, "no allocation for unrequested outputs"
    assert moved(outputs, arena, 4, 8)
    assert outputs.size > 2 * plain
    for top_k in (0, 8, 0):
        assert not moved(outputs, arena, 4, top_k)


def test_bindings_stay_valid_until_there_is_too_little_room():
    outputs = LogitsBlocks(arena := Arena(HostMemory()), WORDS)
    assert moved(outputs, arena, 4, 8)
    assert not moved(outputs, arena, 4, 6)
    assert not moved(outputs, arena, 2, 8)
    assert not moved(outputs, arena, 2, 1)
    assert moved(outputs, arena, 8, 1)


def test_lines_are_ranked_by_bindings_of_their_number_and_top_k():
    session = RecordingSession()
    outputs = LogitsBlocks(Arena(HostMemory()), WORDS, session)
    for top_k in (8, 4, 8):
        outputs.ensure(4, top_k)
        outputs.rank(4)
        outputs.rank(4)
    assert session.made == 2


def test_rows_are_bound_where_they_lie():
    outputs = LogitsBlocks(Arena(HostMemory()), WORDS)
    outputs.ensure(4, 8)
    outputs.bind(part := Binding(RecordingSession()), 1, 2)
    device, dtype, shape, address = part.io.bound["logits"]
    assert (device, dtype, shape) == ("cpu", np.float32, (2, WORDS))
    assert address - bound(outputs, 4)["logits"][-1] == WORDS * 4
