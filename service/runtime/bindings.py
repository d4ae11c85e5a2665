"""Bindings of ONNX Runtime, and the memory that they point into.

An IOBinding holds raw addresses: it keeps no memory alive and does not notice when a buffer moves. Hence bound memory
has one owner, an `Arena`, which starts a new generation with every allocation. A buffer cannot move without one, so
explicit invalidation is unnecessary: a `BindingCache` drops its bindings when the generation has changed. A binding to
memory of another owner is refused.

This module knows no graph, session or buffer.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np

from service.runtime.memory import Block, Memory

MAX_BINDINGS = 256
"""Capacity of a cache. A binding of a decode step takes some 10 KB and is made in 0.3 ms."""

Place = tuple[str, int, np.dtype[Any], tuple[int, ...], int]
"""Device, its number, dtype, shape and address: the arguments of IOBinding.bind_input and bind_output."""


class Arena:
    """Memory that bindings may point into. One thread uses it.

    generation: number of allocations so far; a binding is valid in the generation in which it was made.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory, self.generation = memory, 0
        self._blocks: weakref.WeakSet[Any] = weakref.WeakSet()

    def allocate(self, size: int) -> Block:
        """A block of `size` bytes that may be bound. Copies need no such block: use `memory` for them."""
        block = self.memory.allocate(size)
        self._blocks.add(block)
        self.generation += 1
        return block

    def place(self, block: Block, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Place:
        """Where an array lies, for a binding."""
        assert block in self._blocks, "bound memory must come from the arena of its binding cache"
        return self.memory.device, 0, dtype, shape, block.address + offset


class Binding:
    """An IOBinding and the arrays in main memory that it reads, by input. They live as long as it does and may be
    refilled for each run."""

    def __init__(self, session: Any, options: Any = None) -> None:
        """options: run options, see `service.runtime.sessions.run_options`."""
        self.session, self.io, self.options = session, session.io_binding(), options
        self.arrays: dict[str, np.ndarray] = {}

    def read_array(self, name: str, array: np.ndarray) -> None:
        """Binds an array in main memory as an input, which every run reads there. On other devices only inputs that
        operators read in main memory can be bound so."""
        self.io.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self.arrays[name] = array

    def upload(self, name: str, array: np.ndarray, memory: Memory) -> None:
        """Binds an array in main memory as an input of the next run, and of no later one."""
        self.io.bind_input(name, memory.device, 0, array.dtype, array.shape, memory.upload(array))
        self.arrays[name] = array

    def read(self, name: str, place: Place) -> None:
        """Binds an input."""
        self.io.bind_input(name, *place)

    def write(self, name: str, place: Place) -> None:
        """Binds an output."""
        self.io.bind_output(name, *place)

    def run(self) -> None:
        """Runs the session with what is bound now."""
        self.session.run_with_iobinding(self.io, self.options)


class BindingCache:
    """Bindings by key, at most MAX_BINDINGS. The key contains everything that determines shapes and offsets; addresses
    are valid for one generation of each arena."""

    def __init__(self, *arenas: Arena) -> None:
        self._arenas = arenas
        self._generations = self._current()
        self._bindings: dict[Hashable, Binding] = {}

    def _current(self) -> list[int]:
        return [arena.generation for arena in self._arenas]

    def __len__(self) -> int:
        return len(self._bindings)

    def get(self, key: Hashable) -> Binding | None:
        """The binding of this key, unless memory has moved since it was made."""
        if self._generations != (current := self._current()):
            self._bindings.clear()
            self._generations = current
            return None
        return self._bindings.get(key)

    def add(self, key: Hashable, binding: Binding) -> Binding:
        """Keeps a binding that was made after `get` found none."""
        assert self._generations == self._current(), "memory moved while a binding to it was made"
        if len(self._bindings) >= MAX_BINDINGS:
            self._bindings.clear()
        self._bindings[key] = binding
        return binding
