"""Beginnings of prompts whose keys and values are kept, so that prompts which begin alike need not be read again.

A prompt is read in blocks of one size from position 0 on, whatever the load, and what is kept is whole blocks: a block
that is copied holds the bits that reading it would have written. The index says which blocks are kept in which slots;
it is pure, and the runner holds the memory. What a model has written itself is not kept: steps are other computations
than blocks, and their last bits are not those of a prompt that repeats the answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = 0
"""The serial of the empty prefix."""


@dataclass(frozen=True, slots=True)
class _Kept:
    serial: int  # of the prefix that ends with this block; never used again for another one
    slot: int


class PrefixCache:
    """Which blocks are in which of `slots` slots; the one that was not used for longest makes place."""

    def __init__(self, slots: int, block: int) -> None:
        self.slots, self.block = slots, block
        self._kept: OrderedDict[tuple[int, tuple[int, ...]], _Kept] = OrderedDict()  # least recently used first
        self._serial = ROOT

    def find(self, prompt: tuple[int, ...]) -> list[int]:
        """The slots of the longest beginning that is kept, block by block. The last token is never part of it: what the
        model says behind it is still to be computed."""
        path = list(self._path(prompt[:-1]))
        slots = [self._kept[key].slot for key in path]
        self._touch(path)
        return slots

    def keep(self, prompt: tuple[int, ...], start: int) -> int | None:
        """The slot for the block that begins at `start`. None: it is kept already, or what precedes it is not."""
        assert start % self.block == 0, start
        stop = start + self.block
        path = list(self._path(prompt[:stop]))
        if not self.slots or len(path) * self.block != start:
            return None
        parent = self._kept[path[-1]].serial if path else ROOT
        slot = len(self._kept) if len(self._kept) < self.slots else self._kept.popitem(last=False)[1].slot
        self._serial += 1
        key = parent, prompt[start:stop]
        self._kept[key] = _Kept(self._serial, slot)
        self._touch([*(known for known in path if known in self._kept), key])
        return slot

    def clear(self) -> None:
        """Forgets everything."""
        self._kept.clear()

    def _path(self, tokens: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The keys of the kept blocks that `tokens` begin with."""
        parent = ROOT
        for start in range(0, len(tokens) - self.block + 1, self.block):
            key = parent, tokens[start : start + self.block]
            kept = self._kept.get(key)
            if kept is None:
                return
            yield key
            parent = kept.serial

    def _touch(self, path: list[tuple[int, tuple[int, ...]]]) -> None:
        """These were used. A block goes before the one that it continues: without that one it could not be found."""
        for key in reversed(path):
            self._kept.move_to_end(key)
