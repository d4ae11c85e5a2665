"""Export errors.

ExportError          the model cannot be exported, or its trace has the wrong structure
├── ParityError      the graphs do not compute what the model computes; `report` holds every check
└── NoGoldenError    no sample input has an answer that PyTorch and all precisions give
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class NoGoldenError(ExportError):
    """No sample input has an answer that PyTorch and all precisions give."""

    def __init__(self, precisions: Sequence[str]) -> None:
        fix = "export each precision to a bundle of its own" if len(precisions) > 1 else "train the model further"
        super().__init__(
            f"golden answer: no sample input has one that PyTorch, {' and '.join(precisions)} all give, so a server "
            f"could not check itself; nothing was written; fix: {fix}"
        )
