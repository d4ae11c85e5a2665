"""shortlist.json: the target tokens among which an answer is chosen, given its source. Standard library only."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from export.bundle.manifest import LEAST_WORDS, MOST_WORDS


@dataclass(frozen=True, kw_only=True)
class Shortlist:
    """shortlist.json: the candidate target tokens, given the source.

    A response restricted to them is chosen among hundreds of tokens instead of the whole vocabulary.
    """

    always: tuple[int, ...]
    by_source: dict[int, tuple[int, ...]]  # of a source token, best first
    is_ranked: bool = True  # False: lists have no order, so that a source needs all of them, as those of Marian
    copies: bool = True  # a source's own tokens are allowed; False: their ids are of another vocabulary. In no file

    @property
    def longest(self) -> int:
        """The most tokens that one more token of a source can add; 0 if they are ranked, and `allowed` bounds them."""
        return 0 if self.is_ranked else 1 + max(map(len, self.by_source.values()), default=0)

    def allowed(self, source: Sequence[int], given: Iterable[int] = (), most: int = MOST_WORDS) -> frozenset[int]:
        """Return the target tokens allowed for `source`.

        The result holds the always allowed tokens, `given`, and, if `copies`, the source's own tokens, because names
        and numbers are copied. It then adds candidates of the source tokens by rank, the best of each first, then the
        second best of each, …, while it has fewer than `most` tokens; long sources get at least LEAST_WORDS candidates
        for each token. Of lists without an order it adds all.
        """
        found = {*self.always, *given, *(source if self.copies else ())}
        lists = [self.by_source[token] for token in dict.fromkeys(source) if token in self.by_source]
        if not self.is_ranked:
            return frozenset(found.union(*lists))
        for rank, ranked in enumerate(itertools.zip_longest(*lists)):
            for target in ranked:
                if len(found) >= most and rank >= LEAST_WORDS:
                    return frozenset(found)
                if target is not None:
                    found.add(target)
        return frozenset(found)

    def to_json(self) -> str:
        by_source = {str(token): ids for token, ids in self.by_source.items()}
        values = {"always": self.always, "by_source": by_source, **({} if self.is_ranked else {"is_ranked": False})}
        return json.dumps(values, separators=(",", ":")) + "\n"
