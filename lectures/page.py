"""docs/lectures.md and its figures, from what the experiments have measured. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lectures.claim import Claim, Finding, Measured

INTRODUCTION = """# What the lectures say, measured

Lectures on attention and Transformers make claims that are easy to repeat and seldom tried. Here each is tried on
models of this project, small enough for two cores, by its own trainer, exporter and graphs: what is said, what was
done, what came out, and whether it held *here*. A claim about models a thousand times larger is neither proved nor
refuted by that.

`make lectures` measures everything anew and rewrites this page; `FAST=1 make lectures` only tries that it all works,
and writes elsewhere; `python -m lectures --only NAME` measures one claim. Times are of the machine named at the
end, while it was otherwise quiet; losses are in nats per token."""


def write_page(
    page: Path, claims: Sequence[Claim], measured: Mapping[str, Measured], origin: Mapping[str, Any]
) -> None:
    """Writes `page` and, in the folder of its name beside it, a figure for each claim. origin: machine and versions."""
    figures = page.with_suffix("")
    figures.mkdir(parents=True, exist_ok=True)
    findings = {claim.name: claim.judge(measured[claim.name]) for claim in claims}
    for claim in claims:
        draw(claim, measured[claim.name], figures / f"{claim.name}.svg")
    parts = [INTRODUCTION, summary(claims, findings)]
    parts += [section(claim, findings[claim.name], f"{figures.name}/{claim.name}.svg") for claim in claims]
    parts.append(closing(claims, measured, origin))
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def summary(claims: Sequence[Claim], findings: Mapping[str, Finding]) -> str:
    rows = [(f"[{claim.title}](#{anchor(claim.title)})", findings[claim.name].verdict) for claim in claims]
    return table(("claim", "here it"), rows)


def section(claim: Claim, finding: Finding, figure: str) -> str:
    return "\n\n".join(
        (
            f"## {claim.title}",
            f"**Said.** {claim.said}",
            f"**Tried.** {claim.tried}",
            f"![{claim.title}]({figure})",
            table(finding.header, finding.rows),
            f"**Found: it {finding.verdict}.** {finding.says}",
        )
    )


def closing(claims: Sequence[Claim], measured: Mapping[str, Measured], origin: Mapping[str, Any]) -> str:
    times = ", ".join(f"{claim.name} {measured[claim.name]['seconds']:.0f}" for claim in claims)
    total_s = sum(measured[claim.name]["seconds"] for claim in claims)
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    return (
        f"## How it was measured\n\nOn {origin['machine']} with {origin['processors']} processors; {versions}. "
        f"Seconds of each experiment: {times}; {total_s / 60:.0f} minutes in all."
    )


def anchor(title: str) -> str:
    """Of a heading, as Markdown viewers make it."""
    kept = [letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_"]
    return "".join(kept)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def draw(claim: Claim, measured: Measured, file: Path) -> None:
    """The same figures make the same file, byte for byte; text stays text."""
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
    """Whether plain numbers can be read on a logarithmic axis: at most five decades."""
    low, high = interval
    return high / low < 1e5
