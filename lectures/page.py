"""Renders docs/lectures.md and its plots from stored measurements. Measures nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from lectures.claim import Claim, Finding, Measured, Verdict

INTRODUCTION = """# Claims of lectures, measured

Lectures on attention and Transformers make claims that are easy to repeat and seldom tested. This page tests each claim
on models of this project, small enough for two cores, with its own trainer, exporter and graphs: the claim, the
experiment, the figures, and whether the claim held *here*. This neither proves nor refutes a claim about models a
thousand times larger.

`make lectures` repeats all measurements and rewrites this page. `FAST=1 make lectures` is a smoke test that writes
elsewhere. `python -m lectures --only NAME` measures one claim. Times are those of the conditions that the end of the
page names for each claim; losses are in nats per token."""


def write_page(page: Path, claims: Sequence[Claim], measured: Mapping[str, Measured]) -> None:
    """Writes `page` and, in a directory of the same name, a plot for each claim. measured: the figures of each claim
    with their "seconds" and "conditions", see `closing`."""
    figures = page.with_suffix("")
    figures.mkdir(parents=True, exist_ok=True)
    findings = {claim.name: claim.judge(measured[claim.name]) for claim in claims}
    for claim in claims:
        draw(claim, measured[claim.name], figures / f"{claim.name}.svg")
    parts = [INTRODUCTION, summary(claims, findings)]
    parts += [section(claim, findings[claim.name], f"{figures.name}/{claim.name}.svg") for claim in claims]
    parts += [verdicts(findings), closing(claims, measured)]
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def summary(claims: Sequence[Claim], findings: Mapping[str, Finding]) -> str:
    rows = [(f"[{claim.title}](#{anchor(claim.title)})", findings[claim.name].verdict) for claim in claims]
    return table(("claim", "result here"), rows)


def section(claim: Claim, finding: Finding, figure: str) -> str:
    return "\n\n".join(
        (
            f"## {claim.title}",
            f"**Claim.** {claim.statement}",
            f"**Experiment.** {claim.experiment}",
            f"![{claim.title}]({figure})",
            table(finding.header, finding.rows),
            f"**Result: the claim {finding.verdict}.** {finding.explanation}",
        )
    )


def verdicts(findings: Mapping[str, Finding]) -> str:
    """How many claims held, held in part and did not hold."""
    counts = Counter(finding.verdict for finding in findings.values())
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict))
    return f"## How many claims held\n\nOf {len(findings)} claims {words}."


def closing(claims: Sequence[Claim], measured: Mapping[str, Measured]) -> str:
    """The conditions of the measurements, and the claims and seconds that each of them applies to. Conditions: the
    machine, its processors, whether it was idle before the measurements, and the versions of the packages."""
    groups: dict[str, list[str]] = {}
    for claim in claims:
        groups.setdefault(described(measured[claim.name]["conditions"]), []).append(claim.name)
    seconds = {claim.name: measured[claim.name]["seconds"] for claim in claims}
    paragraphs = [
        f"{conditions}. Seconds: {', '.join(f'{name} {seconds[name]:.0f}' for name in names)}."
        for conditions, names in groups.items()
    ]
    total = f"{sum(seconds.values()) / 60:.0f} minutes in all."
    return "\n\n".join(["## Measurement conditions", *paragraphs, total])


def described(conditions: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in conditions["versions"].items())
    state = "otherwise idle" if conditions["is_idle"] else "shared with other work, so that times are noisy"
    return f"On {conditions['machine']} with {conditions['processors']} processors, {state}; {versions}"


def anchor(title: str) -> str:
    """The anchor that Markdown viewers derive from a heading."""
    kept = [letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_"]
    return "".join(kept)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def draw(claim: Claim, measured: Measured, file: Path) -> None:
    """Writes the plot; equal measurements give byte-identical files, and text stays text."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    with mpl.rc_context({"svg.hashsalt": claim.name, "svg.fonttype": "none", "font.size": 9, "axes.grid": False}):
        figure = Figure(figsize=claim.size, layout="constrained")
        FigureCanvasAgg(figure)
        claim.draw(measured, figure)
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                if axis.get_scale() == "log" and _is_narrow(axis.get_view_interval()):
                    axis.set_major_formatter(StrMethodFormatter("{x:g}"))  # 0.1, 1, 10 instead of powers
        figure.savefig(file, metadata={"Date": None})


def _is_narrow(interval: Sequence[float]) -> bool:
    """Whether plain numbers are readable on a logarithmic axis: at most five decades."""
    low, high = interval
    return high / low < 1e5
