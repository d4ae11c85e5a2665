"""The Aho-Corasick automaton (1975): matching of several patterns in a sequence that grows symbol by symbol.

Symbols are integers: bytes, characters, token ids. The state of a sequence is one integer, the node of the longest
pattern prefix that the sequence ends with, so forking a hypothesis copies an integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

ROOT = 0


class AhoCorasick:
    """The automaton of the patterns of one request. Immutable after construction.

    Node ROOT is the empty prefix. edges: by node, the children by symbol.
    ends[node]: indices in `patterns` of all patterns that a sequence in this node ends with.
    fall: the failure link, the node of the longest proper suffix of a node's prefix that is a prefix of a pattern.
    """

    def __init__(self, patterns: Iterable[Sequence[int]]) -> None:
        self.patterns = tuple(tuple(pattern) for pattern in patterns)
        assert all(self.patterns), "an empty pattern matches everywhere"
        self.edges: list[dict[int, int]] = [{}]
        self.ends: list[tuple[int, ...]] = [()]
        self.fall = [ROOT]
        for index, pattern in enumerate(self.patterns):
            node = ROOT
            for symbol in pattern:
                if symbol not in self.edges[node]:
                    self.edges[node][symbol] = len(self.edges)
                    self.edges.append({})
                    self.ends.append(())
                    self.fall.append(ROOT)
                node = self.edges[node][symbol]
            self.ends[node] = (*self.ends[node], index)
        self._link()

    def __len__(self) -> int:
        return len(self.edges)

    def step(self, node: int, symbol: int) -> int:
        """The node after `symbol`."""
        while node != ROOT and symbol not in self.edges[node]:
            node = self.fall[node]
        return self.edges[node].get(symbol, ROOT)

    def chain(self, node: int) -> Iterator[int]:
        """The node and all nodes on its failure links, the longest prefix first, without ROOT."""
        while node != ROOT:
            yield node
            node = self.fall[node]

    def path(self, index: int) -> Iterator[int]:
        """The nodes of the prefixes of a pattern, the shortest first, the whole pattern last."""
        node = ROOT
        for symbol in self.patterns[index]:
            node = self.edges[node][symbol]
            yield node

    def _link(self) -> None:
        """Breadth first, so that a node's failure link is known before those of its children."""
        todo = list(self.edges[ROOT].values())
        for node in todo:
            for symbol, child in self.edges[node].items():
                self.fall[child] = self.step(self.fall[node], symbol)
                self.ends[child] = (*self.ends[child], *self.ends[self.fall[child]])
                todo.append(child)
