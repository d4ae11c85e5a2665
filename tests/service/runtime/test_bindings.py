"""A binding to memory that has moved is never used, whichever reference is forgotten."""

import weakref
from dataclasses import replace

import numpy as np
import pytest

from service.runtime.bindings import MAX_BINDINGS, Arena, Binding, BindingCache
from service.runtime.memory import HostMemory
from service.runtime.onnx_model import OnnxModel
from service.runtime.runner import OnnxRunner
from tests.fakes import RecordingSession, array_at
from tests.runner_requests import CountingSession, alone, assert_same_bits, logprobs_of, requests_for

FLOAT = np.dtype(np.float32)


def test_a_binding_is_found_until_memory_of_its_arena_moves():
    arena = Arena(HostMemory())
    cache = BindingCache(arena)
    arena.allocate(64)
    assert cache.get("step") is None
    binding = cache.add("step", Binding(RecordingSession()))
    assert cache.get("step") is binding
    Arena(HostMemory()).allocate(64)
    assert cache.get("step") is binding, "another arena"
    arena.allocate(0)
    assert cache.get("step") is None
    assert len(cache) == 0


def test_memory_that_moves_while_a_binding_is_made_is_an_error():
    arena = Arena(HostMemory())
    cache = BindingCache(arena)
    cache.get("step")
    arena.allocate(64)
    with pytest.raises(AssertionError, match="memory moved"):
        cache.add("step", Binding(RecordingSession()))


def test_only_memory_of_the_arena_can_be_bound():
    memory = HostMemory()
    arena, other = Arena(memory), Arena(memory)
    block = arena.allocate(64)
    assert arena.place(block, 16, FLOAT, (2, 3)) == ("cpu", 0, FLOAT, (2, 3), block.address + 16)
    for foreign in (memory.allocate(64), other.allocate(64)):
        with pytest.raises(AssertionError, match="must come from the arena"):
            arena.place(foreign, 0, FLOAT, (1,))


def test_a_cache_keeps_a_bounded_number_of_bindings():
    cache = BindingCache(Arena(HostMemory()))
    for number in range(3 * MAX_BINDINGS):
        cache.add(number, Binding(RecordingSession()))
        assert len(cache) <= MAX_BINDINGS


def test_arrays_that_a_binding_reads_live_as_long_as_it_does():
    session = RecordingSession()
    binding = Binding(session, "options")
    binding.read_array("tokens", np.arange(5))
    place = binding.io.bound["tokens"]
    for _ in range(100):
        np.zeros(5, np.int64)
    assert place[:3] == ("cpu", np.int64, (5,))
    assert array_at(place).tolist() == [0, 1, 2, 3, 4]
    binding.run()
    assert session.runs == [(binding.io, "options")]


class Haunted(HostMemory):
    """Memory whose blocks are overwritten with NaN, and kept, as soon as they are unreferenced."""

    def allocate(self, size):
        block = super().allocate(size)
        weakref.finalize(block, block.bytes.fill, 0xFF)
        self.graves.append(block.bytes)
        return block

    def __init__(self):
        self.graves: list[np.ndarray] = []


def test_answers_are_right_while_all_buffers_move_all_the_time(model):
    """Few rows and short texts first, so that every buffer grows in the middle of answers."""
    requests = [replace(request, prompt=(1,)) for request in requests_for(model, 20, seed=4)]
    order = sorted(range(len(requests)), key=lambda number: requests[number].max_tokens)
    decode = CountingSession(model.sessions["decode"])
    counted = OnnxModel(model.manifest, model.choice, {**model.sessions, "decode": decode})
    runner = OnnxRunner(counted, Haunted(), max_rows=20)
    arrivals = [2 * order.index(number) for number in range(len(requests))]
    assert_same_bits(logprobs_of(runner, requests, arrivals=arrivals, max_rows=20), alone(model, requests))
    assert decode.made > 5, "bindings were made anew"
