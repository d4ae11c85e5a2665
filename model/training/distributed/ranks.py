"""The processes of one training run, its ranks: how they divide batches, agree and share results.

`Ranks` is a run of a single process, which has nothing to agree on; `process_group.JoinedRanks` connects several.
Every rank calls the same methods in the same order. The first rank alone reads and writes the checkpoint directory
and prints, so the ranks need no common file system.

    RanksError    all ranks end for the same reason, and the first one reports it
    RankLost      a rank no longer answers; those that are left report it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from model.config import TrainConfig

T = TypeVar("T")


class RanksError(Exception):
    """The ranks disagree, or one of them failed where the others wait for it. Raised by all of them."""


class RankLost(Exception):
    """Another rank ended, or did not answer in time."""


class Ranks:
    """The one rank of a run of a single process.

    seeds_batches: dropout draws from a generator that is seeded for each batch, so that the number of ranks does not
    matter; otherwise from one stream over the whole run.
    """

    rank = 0
    size = 1
    seeds_batches = False

    @property
    def is_first(self) -> bool:
        """Whether this rank reads, writes and prints for all."""
        return self.rank == 0

    def part(self, items: Sequence[T]) -> Sequence[T]:
        """The items of this rank; every rank has as many if `size` divides their number."""
        return items[self.rank :: self.size]

    def in_order(self, values: Sequence[float]) -> list[float]:
        """The figures of all ranks, one for each item of their `part`s, in the order of the items.

        values: of this rank, as many on every rank. Sums over them do not depend on the number of ranks.
        """
        return [figure for figures in zip(*self.gathered(*values), strict=True) for figure in figures]

    def gathered(self, *values: float) -> list[tuple[float, ...]]:
        """The figures of each rank, by rank."""
        return [values]

    def everywhere(self, make: Callable[[], T], *errors: type[Exception]) -> T:
        """This rank's result of `make`, which every rank calls. If one of `errors` ends it on some rank, RanksError
        quotes it on all."""
        return make()

    def from_first(self, make: Callable[[], T], *errors: type[Exception]) -> T:
        """The first rank's result of `make`, which no other calls. `errors` are raised there, RanksError elsewhere."""
        return make()

    def check_same(self, values: Mapping[str, object]) -> None:
        """Raises RanksError on all ranks, with the value of each, unless these values are the same everywhere."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Turns a failure of communication in this context into RankLost."""
        yield

    def leave(self) -> None:
        """Called where all ranks end with one error: the others wait for the first to have reported it."""


def check_division(
    config: TrainConfig, ranks: Ranks, identity: Mapping[str, Any], *, resume: bool, shard: bool
) -> None:
    """Raises RanksError on all ranks unless they have the same run before them, and can divide it.

    identity: of the run: its configurations and the digests of its data.
    """
    fields = {
        f"{part}.{name}" if name else part: field
        for part, value in identity.items()
        for name, field in (value.items() if isinstance(value, Mapping) else [("", value)])
    }
    ranks.check_same({**fields, "--resume": resume, "--shard": shard})
    if shard and ranks.size == 1:
        raise RanksError("--shard: needs at least 2 processes, got 1; start them with torchrun")
    if config.accumulate % ranks.size:
        whole = config.accumulate * config.batch_tokens
        raise RanksError(
            f"accumulate: must be a multiple of the {ranks.size} processes, got {config.accumulate}; accumulate "
            f"{ranks.size} with batch_tokens {max(1, whole // ranks.size)} makes a step of as many tokens"
        )
