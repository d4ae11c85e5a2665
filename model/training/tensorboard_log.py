"""The scalars of a training run as a TensorBoard event file: those of metrics.csv, under the names of its columns.

A state holds the whole history of its run, so a resumed run writes the file again from the beginning and deletes the
earlier one, whose name ends with the run's id: no step is missing or there twice, wherever the run was interrupted. The
package `tensorboard` is imported here alone, and only if a run wants events. Events are a copy of metrics.csv: a
training outlives the disk they are on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model.training.training_state import TrainError

EVENTS = "events.out.tfevents.*"  # what TensorBoard reads
SUFFIX = ".glossa"  # ends the names of files written here, after the id of the run

Row = Mapping[str, float]
"""A row of a run's history: `model.training.training_state.Progress`."""


def check_events(directory: Path, run: str) -> None:
    """Before a run writes anything; nor is anything written here. Raises TrainError if the package is missing, if
    there can be no such directory, or if it holds the events of another run, with which those of this one would mix.

    run: the `run_id` of a run that resumes, or "" of one that starts.
    """
    try:
        from torch.utils import tensorboard  # noqa: F401
    except ModuleNotFoundError as error:
        raise TrainError(
            f"tensorboard: needs the package tensorboard, which is not installed ({error}); "
            "fix: pip install 'glossa[tensorboard]', or leave the option out"
        ) from error
    try:
        nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        others = sorted(path.name for path in set(directory.glob(EVENTS)) - (_own(directory, run) if run else set()))
    except OSError as error:
        raise TrainError(f"{directory}: cannot hold events: {error.strerror}; choose another directory") from error
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        problem = "cannot be written" if nearest.is_dir() else "is not a directory"
        raise TrainError(f"{directory}: cannot hold events: {nearest} {problem}; choose another directory")
    if others:
        raise TrainError(f"{directory} holds the events of another run, {others[0]}; choose another directory")


def _own(directory: Path, run: str) -> set[Path]:
    """The event files of a run."""
    return set(directory.glob(f"{EVENTS}.{run}{SUFFIX}"))


@contextmanager
def event_log(
    directory: Path | None, run: str, history: Sequence[Row], report: Callable[[str], None]
) -> Iterator[Callable[[Row], None]]:
    """In this context, the function that writes a row of the history. It does nothing without a directory.

    run: its `run_id`. history: the rows so far. report: receives the message that events can no longer be written.
    """
    if directory is None:
        yield lambda row: None
        return
    log = _EventLog(directory, run, history, report)
    try:
        yield lambda row: log.write([row])
    finally:
        log.close()


class _EventLog:
    """An event file that holds each step of a scalar once."""

    def __init__(self, directory: Path, run: str, history: Sequence[Row], report: Callable[[str], None]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._directory, self._report = directory, report
        self._writer: Any = None  # none after an error
        self._steps: dict[str, float] = {}  # the last step of each scalar
        self._started_s = time.time() - (history[-1]["seconds"] if history else 0.0)
        with self._errors_reported():
            earlier = _own(directory, run)
            # A TensorBoard that shows the earlier file forgets its steps from `purge_step` on.
            self._writer = SummaryWriter(directory, purge_step=0, filename_suffix=f".{run}{SUFFIX}")
            self.write(history)
            for path in earlier:
                path.unlink(missing_ok=True)

    def write(self, rows: Sequence[Row]) -> None:
        """Writes rows to the file system: a killed process leaves whole events."""
        with self._errors_reported():
            for row in rows:
                self._add(row)
            if self._writer is not None:
                self._writer.flush()

    def _add(self, row: Row) -> None:
        for name, value in row.items():
            # The rows of a log line and of a validation at one step have some columns in common.
            if self._writer is not None and name != "step" and self._steps.get(name) != row["step"]:
                self._writer.add_scalar(name, value, row["step"], walltime=self._started_s + row["seconds"])
                self._steps[name] = row["step"]

    def close(self) -> None:
        with self._errors_reported():
            if self._writer is not None:
                self._writer.close()

    @contextmanager
    def _errors_reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writer = None
            reason = error.strerror or error
            self._report(f"{self._directory}: events cannot be written: {reason}; the training goes on without them")
