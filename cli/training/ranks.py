"""A verb in several processes that torchrun started: joins them, and reports an error that ends all of them once.

A single process stays without torch until its verb loads it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import typer

from cli.terminal import UsageError, describe, report_errors

if TYPE_CHECKING:
    from model.training.distributed.ranks import Ranks


@contextmanager
def joined_ranks(environment: Mapping[str, str], *, timeout_s: float) -> Iterator[Ranks]:
    """This process as one of the run's: the only one, unless torchrun's variables are in the environment. One of
    several ends with the context."""
    from model.training.distributed.ranks import RankLost, Ranks, RanksError

    with ExitStack() as stack:
        ranks = Ranks()
        if "RANK" in environment and "WORLD_SIZE" in environment:
            from model.training.distributed.process_group import joined

            stack.enter_context(_ending_the_process())
            with report_errors(RanksError, RankLost):
                ranks = stack.enter_context(joined(environment, timeout_s=timeout_s))
        yield ranks


@contextmanager
def _ending_the_process() -> Iterator[None]:
    """Ends the process with the context and its exit code, without the interpreter's finalisation.

    A thread of gloo releases the tensors of the last exchange some time after it. During finalisation Python would end
    that thread, which aborts the process, and torchrun would stop the other ranks (pytorch/pytorch#179291). Other
    exceptions pass: their process has failed anyway.
    """
    code = 0
    try:
        yield
    except typer.Exit as ended:
        code = ended.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def report_shared_errors(ranks: Ranks, *types: type[Exception]) -> Iterator[None]:
    """As `report_errors`. The named errors, a UsageError and a RanksError end all ranks, and the first one prints them;
    of a lost rank, or an error of its own file system, each reports itself."""
    from model.training.distributed.ranks import RankLost, RanksError

    shared: tuple[type[Exception], ...] = (UsageError, RanksError, *types)
    try:
        yield
    except shared as error:
        if ranks.is_first:
            typer.echo(f"error: {describe(error)}", err=True)
        ranks.leave()
        raise typer.Exit(1) from None
    except (RankLost, OSError) as error:
        where = f"rank {ranks.rank}: " if ranks.size > 1 and isinstance(error, OSError) else ""
        typer.echo(f"error: {where}{describe(error)}", err=True)
        raise typer.Exit(1) from None
