"""Export errors.

ExportError          the model cannot be exported, or its trace has the wrong structure
└── ParityError      the graphs do not compute what the model computes; `report` holds every check
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ExportError(Exception):
    """A model cannot be exported."""


class ParityError(ExportError):
    """The graphs do not compute what the model computes."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        failed = [check for check in report["checks"] if not check["passed"]]
        lines = [f"{c['name']}: error {c['max_error']:g} over {c['tolerance']:g} ({c['note']})" for c in failed]
        super().__init__("verification refused the graphs; nothing was written; " + "; ".join(lines))
        self.report = report
