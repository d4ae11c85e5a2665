import numpy as np
import pytest

from service.runtime.bindings import Arena, Binding
from service.runtime.memory import CudaMemory, HostMemory
from service.runtime.step_inputs import RowInputs
from tests.fakes import FakeCuda, bytes_at


class FakeBinding:
    """Reads what was bound to it, as often as it is asked."""

    def __init__(self):
        self.bound = {}

    def io_binding(self):
        return self

    def bind_input(self, name, device, number, dtype, shape, address):
        self.bound[name] = device, dtype, shape, address

    def read(self, name):
        _, dtype, shape, address = self.bound[name]
        return bytes_at(address, dtype, shape).view(dtype).reshape(shape)


@pytest.mark.parametrize("memory", [HostMemory(), CudaMemory(FakeCuda())], ids=["host", "cuda"])
def test_what_is_filled_in_later_is_read_where_it_was_bound(memory):
    inputs, binding = RowInputs(Arena(memory), 5), FakeBinding()
    inputs.bind(Binding(binding), 3, {"tokens", "lengths", "positions"})
    assert {name: place[:3] for name, place in binding.bound.items()} == {
        "tokens": (memory.device, np.int64, (3, 1)),
        "positions": (memory.device, np.int64, (3, 2)),
        "lengths": (memory.device, np.int32, (3,)),
    }
    for start in (0, 7):
        inputs["tokens"][:, 0] = np.arange(start, start + 5)
        inputs["lengths"][:] = start
        inputs.write()
        assert binding.read("tokens")[:, 0].tolist() == [start, start + 1, start + 2]
        assert binding.read("lengths").tolist() == [start] * 3
        assert binding.read("positions").tolist() == [[0, 0], [1, 0], [2, 0]]
