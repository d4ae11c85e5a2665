"""Export errors.

ExportError          the model cannot be exported, or its trace has the wrong structure
├── ParityError      the graphs do not compute what the model computes; `report` holds every check
├── FullDiskError    there is no room for the bundle
├── DiskError        a file of the bundle could not be written
└── NoGoldenError    no sample input has an answer that PyTorch and all precisions give
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class ExportError(Exception):
    """A model cannot be exported."""


def describe_failure(check: Mapping[str, Any]) -> str:
    """Return a failed check of a report as a phrase: its name, its error and limit, and where."""
    return f"{check['name']}: error {check['max_error']:g} over {check['tolerance']:g} ({check['note']})"


class ParityError(ExportError):
    """The graphs do not compute what the model computes."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        lines = [describe_failure(check) for check in report["checks"] if not check["passed"]]
        super().__init__("verification refused the graphs; nothing was written; " + "; ".join(lines))
        self.report = report


class FullDiskError(ExportError):
    """There is no room for the bundle. needed_bytes: at least so many; free_bytes: those that there are."""

    def __init__(self, path: Path, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"{path}: no room for the bundle: at least {needed_bytes} bytes are needed, {free_bytes} are free there; "
            "nothing was written; fix: free some, or choose a path on another disk"
        )


class DiskError(ExportError):
    """A file of the bundle could not be written, synced, renamed or deleted."""

    def __init__(self, path: Path, error: OSError) -> None:
        file = f" at {error.filename}" if error.filename else ""
        super().__init__(
            f"{path}: cannot be written: {error.strerror or error}{file}; what is there is the bundle of before, if "
            "there was one, or the whole new one; fix: check the disk and its permissions, and export again"
        )


class NoGoldenError(ExportError):
    """No sample input has an answer that PyTorch and all precisions give."""

    def __init__(self, precisions: Sequence[str]) -> None:
        fix = "export each precision to a bundle of its own" if len(precisions) > 1 else "train the model further"
        super().__init__(
            f"golden answer: no sample input has one that PyTorch, {' and '.join(precisions)} all give, so a server "
            f"could not check itself; nothing was written; fix: {fix}"
        )
