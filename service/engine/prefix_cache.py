"""Prefix cache: the beginnings of recent prompts, whose keys and values are copied instead of computed again.

Prompts are computed in chunks of one size from position 0 on, whatever the load, and whole chunks are cached: a copied
chunk holds the bits that computing it would have given. The index maps chunks to slots; it is pure, and
the runner holds the memory. Generated tokens are not cached: decode steps are other computations than chunks, and their
last bits are not those of a prompt that repeats the answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

ROOT = 0  # the serial of the empty prefix


class _Entry(NamedTuple):
    serial: int  # of the prefix that ends with this chunk; never used again for another one
    slot: int


class PrefixCache:
    """Which chunks of `chunk_tokens` tokens are in which of `slots` slots. Evicts the least recently used one."""

    def __init__(self, slots: int, chunk_tokens: int) -> None:
        self.slots, self.chunk_tokens = slots, chunk_tokens
        self._entries: OrderedDict[tuple[int, tuple[int, ...]], _Entry] = OrderedDict()  # least recently used first
        self._serial = ROOT

    def find(self, prompt: tuple[int, ...]) -> list[int]:
        """The slots of the longest cached prefix, chunk by chunk. The last token is never part of it, because the
        output after it is still needed."""
        path = list(self._path(prompt[:-1]))
        slots = [self._entries[key].slot for key in path]
        self._touch(path)
        return slots

    def count(self, prompt: tuple[int, ...]) -> int:
        """How many chunks of a prompt are cached. Any thread may ask; the answer may be old by a turn."""
        return sum(1 for _ in self._path(prompt[:-1])) if self._entries else 0

    def store(self, prompt: tuple[int, ...], start: int) -> int | None:
        """The slot for the chunk that begins at `start`. None: it is cached already, or what precedes it is not, or
        takes all slots: the beginning of a prompt is worth more than what follows it."""
        assert start % self.chunk_tokens == 0, start
        stop = start + self.chunk_tokens
        path = list(self._path(prompt[:stop]))
        if not self.slots or len(path) * self.chunk_tokens != start:
            return None
        self._touch(path)
        slot = len(self._entries)
        if slot == self.slots:
            if (oldest := next(iter(self._entries))) in path:
                return None
            slot = self._entries.pop(oldest).slot
        parent = self._entries[path[-1]].serial if path else ROOT
        self._serial += 1
        key = parent, prompt[start:stop]
        self._entries[key] = _Entry(self._serial, slot)
        self._touch([*path, key])
        return slot

    def clear(self) -> None:
        """Forgets all chunks."""
        self._entries.clear()

    def _path(self, tokens: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The keys of the cached chunks that `tokens` begin with."""
        parent = ROOT
        for start in range(0, len(tokens) - self.chunk_tokens + 1, self.chunk_tokens):
            key = parent, tokens[start : start + self.chunk_tokens]
            entry = self._entries.get(key)
            if entry is None:
                return
            yield key
            parent = entry.serial

    def _touch(self, path: list[tuple[int, tuple[int, ...]]]) -> None:
        """Marks chunks as used. A chunk is evicted before the one it continues: without that one it is unreachable."""
        for key in reversed(path):
            self._entries.move_to_end(key)
