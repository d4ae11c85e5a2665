"""Many patterns looked for at once in a sequence that grows symbol by symbol (Aho & Corasick 1975).

Symbols are numbers: bytes, characters, token ids. All that is remembered of a sequence is one more number, the node: it
stands for the longest beginning of a pattern that the sequence ends with. So a hypothesis forks by copying a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

ROOT = 0


class AhoCorasick:
    """The patterns of one request. Never changed once made.

    Node ROOT stands for the empty beginning. `ends[node]` are the places, in `patterns`, of those that a sequence
    in this node ends with; shorter ones inside longer ones count.
    """

    def __init__(self, patterns: Iterable[Sequence[int]]) -> None:
        self.patterns = tuple(tuple(pattern) for pattern in patterns)
        assert all(self.patterns), "an empty pattern is everywhere"
        self.edges: list[dict[int, int]] = [{}]
        self.depth = [0]
        self.ends: list[tuple[int, ...]] = [()]
        self.fall = [ROOT]  # the node of the longest proper end of a node's beginning that begins a pattern
        for place, pattern in enumerate(self.patterns):
            self._add(place, pattern)
        self._link()

    def __len__(self) -> int:
        return len(self.edges)

    def step(self, node: int, symbol: int) -> int:
        """The node when `symbol` follows."""
        while node != ROOT and symbol not in self.edges[node]:
            node = self.fall[node]
        return self.edges[node].get(symbol, ROOT)

    def chain(self, node: int) -> Iterator[int]:
        """The node and all that it can fall to, the longest first, ROOT left out."""
        while node != ROOT:
            yield node
            node = self.fall[node]

    def path(self, place: int) -> Iterator[int]:
        """The nodes of a pattern's beginnings, the shortest first, the whole pattern last."""
        node = ROOT
        for symbol in self.patterns[place]:
            node = self.edges[node][symbol]
            yield node

    def _add(self, place: int, pattern: Sequence[int]) -> None:
        node = ROOT
        for symbol in pattern:
            if symbol not in self.edges[node]:
                self.edges[node][symbol] = len(self.edges)
                self.edges.append({})
                self.depth.append(self.depth[node] + 1)
                self.ends.append(())
                self.fall.append(ROOT)
            node = self.edges[node][symbol]
        self.ends[node] = (*self.ends[node], place)

    def _link(self) -> None:
        """Breadth first: where a node falls to is known before its children ask."""
        todo = list(self.edges[ROOT].values())
        for node in todo:
            for symbol, child in self.edges[node].items():
                self.fall[child] = self.step(self.fall[node], symbol)
                self.ends[child] = (*self.ends[child], *self.ends[self.fall[child]])
                todo.append(child)
