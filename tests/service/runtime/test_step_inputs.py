import numpy as np
import pytest

from service.runtime.bindings import Arena, Binding
from service.runtime.memory import HostMemory
from service.runtime.step_inputs import RowInputs
from tests.fakes import RecordingSession, array_at, cuda_memory


@pytest.mark.parametrize("memory", [HostMemory(), cuda_memory()], ids=["host", "cuda"])
def test_what_is_filled_in_later_is_read_where_it_was_bound(memory):
    inputs, binding = RowInputs(Arena(memory), 5), Binding(RecordingSession())
    inputs.bind(binding, 3, {"tokens", "lengths", "positions"})
    places = binding.io.bound
    assert {name: place[:3] for name, place in places.items()} == {
        "tokens": (memory.device, np.int64, (3, 1)),
        "positions": (memory.device, np.int64, (3, 2)),
        "lengths": (memory.device, np.int32, (3,)),
    }
    for start in (0, 7):
        inputs["tokens"][:, 0] = np.arange(start, start + 5)
        inputs["lengths"][:] = start
        inputs.write()
        assert array_at(places["tokens"])[:, 0].tolist() == [start, start + 1, start + 2]
        assert array_at(places["lengths"]).tolist() == [start] * 3
        assert array_at(places["positions"]).tolist() == [[0, 0], [1, 0], [2, 0]]
