"""Writes the list of gates that a request passes into docs/RELIABILITY.md.

python -m codegen.gates [--check]   --check fails if the page is out of date, and changes nothing
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen.generated_files import ROOT, between, update
from service.edge.admission.admission import GATES, Gate, Stage

PAGE = ROOT / "docs" / "RELIABILITY.md"
BEGIN, END = "<!-- gates -->\n", "<!-- /gates -->\n"
STAGES: dict[Stage, str] = {
    "call": "before its message is read",
    "caller": "then, by its caller",
    "message": "before parsing",
    "preparation": "before preparation",
    "answer": "before an engine gets it",
    "queue": "at the queue",
}


def table() -> str:
    """One row a gate, in the order in which a request passes them."""
    rows = "".join(f"| {number} | {_row(gate)} |\n" for number, gate in enumerate(GATES, 1))
    return f"| | moment | refused when | reason |\n|---|---|---|---|\n{rows}"


def _row(gate: Gate) -> str:
    return f"{STAGES[gate.stage]} | {gate.rule} | {', '.join(f'`{error.reason}`' for error in gate.errors)}"


def page() -> str:
    """The page with the list in place of what stands between its marks."""
    return between(PAGE, BEGIN, END, table())


def main(arguments: Sequence[str] | None = None) -> None:
    """Rewrite the page if it is out of date, or with --check fail if it is."""
    update({PAGE: page()}, arguments, target="gates", description="Write the list of gates into docs/RELIABILITY.md.")


if __name__ == "__main__":
    main()
