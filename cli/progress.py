"""The progress of a long verb: one line on stderr with what is done and how long is left, on a terminal only. It goes
when the verb ends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Tell = Callable[[str, int, int], object]
"""Called with what is being done, and with how much of how much is done; 0 of 0 if that is unknown."""

WIDTH = 20  # of the bar: with the longest text, counts and times, the line has 80 columns


@contextlib.contextmanager
def progress() -> Iterator[Tell]:
    """Shows what it is told."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(WIDTH),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("starting", total=None)

        def tell(what: str, done: int, total: int) -> None:
            if shown.tasks[0].description != what:
                shown.reset(task, description=what, total=None)
            shown.update(task, completed=done, total=total or None)

        yield tell
