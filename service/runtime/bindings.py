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
    refilled for each run. runs: how often a decode step ran, counted where steps are captured."""

    def __init__(self, session: Any, options: Any = None) -> None:
        """options: the run options of a session that captures CUDA graphs."""
        self.session, self.io = session, session.io_binding()
        self.arrays: dict[str, np.ndarray] = {}
        self.runs, self.options = 0, options

    def read_array(self, name: str, array: np.ndarray) -> None:
        """Binds an array in main memory as an input. The CPU reads it in every run, other devices copy it now."""
        self.io.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self.arrays[name] = array

    def copy_arrays(self) -> None:
        """Lets devices copy what the arrays hold now."""
        for name, array in self.arrays.items():
            self.read_array(name, array)

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
    are valid for one generation of the arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena, self._generation = arena, arena.generation
        self._bindings: dict[Hashable, Binding] = {}

    def __len__(self) -> int:
        return len(self._bindings)

    def get(self, key: Hashable) -> Binding | None:
        """The binding of this key, unless memory has moved since it was made."""
        if self._generation != self._arena.generation:
            self._bindings.clear()
            self._generation = self._arena.generation
            return None
        return self._bindings.get(key)

    def add(self, key: Hashable, binding: Binding) -> Binding:
        """Keeps a binding that was made after `get` found none."""
        assert self._generation == self._arena.generation, "memory moved while a binding to it was made"
        if len(self._bindings) >= MAX_BINDINGS:
            self._bindings.clear()
        self._bindings[key] = binding
        return binding
