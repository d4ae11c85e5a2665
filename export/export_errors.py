"""The errors of an export.

ExportError          the model cannot be exported, or the trace is not what it must be
└── ParityError      the graphs do not compute what the model does; `report` holds every check
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ExportError(Exception):
    """A model cannot be exported."""


class ParityError(ExportError):
    """The graphs do not compute what the model does."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        failed = [check for check in report["checks"] if not check["passed"]]
        lines = [f"{c['name']}: error {c['max_error']:g} over {c['tolerance']:g} ({c['note']})" for c in failed]
        super().__init__("verification refused the graphs; nothing was written; " + "; ".join(lines))
        self.report = report
