"""Several ranks, connected by torch.distributed: NCCL between GPUs, gloo between CPUs and for all that is agreed.

torchrun starts the ranks, names them in environment variables and ends all when one fails.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from model.training.distributed.ranks import RankLost, Ranks, RanksError

T = TypeVar("T")

LEAVE_S = 10.0  # for the first rank to print an error
LOST = ("gloo/transport", "nccl", "connection", "timed out")  # in those errors of torch that have no class of their own


@contextmanager
def joined(environment: Mapping[str, str], *, timeout_s: float) -> Iterator[Ranks]:
    """This process as a rank of the run that the variables of torchrun describe, until the context ends.

    environment: RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; torch itself reads the address of the first rank.
    timeout_s: a rank that does not answer for so long is lost. Raises RanksError, and RankLost without a connection.
    """
    rank, size, local_rank, local_size = _places(environment)
    backend = "gloo"
    if torch.cuda.is_available():
        if local_size > torch.cuda.device_count():
            raise RanksError(
                f"--nproc-per-node: must be at most the {torch.cuda.device_count()} CUDA devices, got {local_size}"
            )
        torch.cuda.set_device(local_rank)
        backend = "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=timeout_s)
    with _watched(rank):
        store, _, _ = next(rendezvous("env://", timeout=timeout))
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    ranks = JoinedRanks(rank, size, store)
    try:
        with _held(signal.SIGTERM, lambda: ranks.has_lost):
            yield ranks
    finally:
        distributed.destroy_process_group()


@contextmanager
def _held(number: signal.Signals, holds: Callable[[], bool]) -> Iterator[None]:
    """In this context a signal is ignored while `holds` is true: torchrun ends the ranks that are left when one is
    lost, but they have to save and report first. It waits 30 s."""

    def handle(*_: object) -> None:
        if not holds():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    previous = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, previous)


def _places(environment: Mapping[str, str]) -> tuple[int, int, int, int]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        rank, size, local_rank, local_size = (int(environment[name]) for name in names)
    except (KeyError, ValueError) as error:
        raise RanksError(f"{', '.join(names)}: must be numbers, as torchrun sets them; {error!r}") from None
    return rank, size, local_rank, local_size


class JoinedRanks(Ranks):
    """One of the ranks of a process group. Figures travel as float64, results pickled, as torch does between ranks."""

    seeds_batches = True

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.rank, self.size = rank, size
        self.has_lost = False  # the connection to another rank
        self._store = store

    def gathered(self, *values: float) -> list[tuple[float, ...]]:
        own = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        with self.watched():
            distributed.all_gather(rows, own)
        return [tuple(row.tolist()) for row in rows]

    def everywhere(self, make: Callable[[], T], *errors: type[Exception]) -> T:
        result, problem = list[T](), ""
        try:
            result.append(make())
        except errors as error:
            problem = str(error)
        problems = self._gathered_objects(problem)
        if any(problems):
            raise RanksError(_by_rank(problems))
        return result[0]

    def from_first(self, make: Callable[[], T], *errors: type[Exception]) -> T:
        shared: list[Any] = [None, ""]
        failure: Exception | None = None
        if self.is_first:
            try:
                shared[0] = make()
            except errors as error:
                failure, shared[1] = error, str(error)
        with self.watched():
            distributed.broadcast_object_list(shared, src=0)
        if failure is not None:
            raise failure
        if shared[1]:
            raise RanksError(shared[1])
        result: T = shared[0]
        return result

    def check_same(self, values: Mapping[str, object]) -> None:
        held: Sequence[dict[str, str]] = self._gathered_objects(
            {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
        )
        found = {name: [one.get(name, "nothing") for one in held] for name in dict.fromkeys(chain(*held))}
        different = {name: shown for name, shown in found.items() if len(set(shown)) > 1}
        if different:
            listed = "; ".join(
                f"{name} is " + ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(shown))
                for name, shown in different.items()
            )
            raise RanksError(
                f"the processes were started with different runs: {listed}; give all of them the same configuration "
                "and the same files"
            )

    @contextmanager
    def watched(self) -> Iterator[None]:
        try:
            with _watched(self.rank):
                yield
        except RankLost:
            self.has_lost = True
            raise

    def leave(self) -> None:
        try:
            if self.is_first:
                self._store.set("reported", "1")
            else:
                self._store.wait(["reported"], timedelta(seconds=LEAVE_S))
        except RuntimeError:
            pass  # torchrun, which holds the store, has ended: nothing is left to wait for

    def _gathered_objects(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        with self.watched():
            distributed.all_gather_object(values, value)
        return values


@contextmanager
def _watched(rank: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo raises no narrower class
        text = str(error).strip().splitlines()[0]
        if not isinstance(error, distributed.DistError) and not any(word in text.lower() for word in LOST):
            raise
        reason = re.sub(r".*\.cc:\d+\] ", "", text).partition(". ")[
            0
        ]  # without the place in torch's source, and advice
        raise RankLost(f"rank {rank} lost the connection to another rank: {reason:.300}") from error


def _by_rank(values: Sequence[str]) -> str:
    """`rank 0: a; rank 1: b` without the ranks that have nothing; without ranks where all are the same."""
    if len(set(values)) == 1:
        return values[0]
    return "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(values) if value)
