"""Renders docs/lectures.md and its plots from stored measurements. Measures nothing.

A claim without a measurement keeps the section, verdict and conditions that the page has already, so that a clone that
lacks some measurements can still measure or render a claim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from lectures.claim import Claim, Finding, Measured, Verdict
from model.checkpoints.atomic_write import write_file

INTRODUCTION = """# Claims of lectures, measured

Claims of lectures on attention and Transformers, tested on models small enough for two cores. A result proves or
refutes nothing about models a thousand times larger.

`make lectures` repeats all measurements and rewrites this page; `FAST=1 make lectures` is a smoke test that writes
elsewhere, `python -m lectures --only NAME` measures one claim, `--render` renders the stored measurements
(`docs/lectures/NAME.json`). Losses are in nats per token."""

CLOSING = "## Measurement conditions"
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class Section(NamedTuple):
    """What the page shows of one claim. conditions: see `described`; seconds: of its measurement."""

    text: str
    verdict: Verdict
    conditions: str
    seconds: int


def write_page(page: Path, claims: Sequence[Claim], measured: Mapping[str, Measured]) -> None:
    """Writes `page` and, in a directory of the same name, a plot and a table (tab-separated) for each measured claim.
    measured: the figures of claims with their "seconds" and "conditions" (`described`); others must be on the page
    (`present_sections`)."""
    figures = page.with_suffix("")
    figures.mkdir(parents=True, exist_ok=True)
    sections = present_sections(page, claims)
    for claim in claims:
        if claim.name in measured:
            draw(claim, measured[claim.name], figures / f"{claim.name}.svg")
            write_file(figures / f"{claim.name}.tsv", figures_of(claim.judge(measured[claim.name])).encode())
            sections[claim.name] = section(claim, measured[claim.name], f"{figures.name}/{claim.name}")
    write_file(page, page_of(claims, sections).encode())


def page_of(claims: Sequence[Claim], sections: Mapping[str, Section]) -> str:
    parts = [INTRODUCTION, verdicts(claims, sections), *(sections[claim.name].text for claim in claims)]
    return "\n\n".join((*parts, closing(claims, sections))) + "\n"


def present_sections(page: Path, claims: Sequence[Claim]) -> dict[str, Section]:
    """The sections of an existing page by claim; without those that it lacks, or that are incomplete."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    body, _, closing = text.partition(f"\n{CLOSING}\n")
    places = {
        name: (conditions, int(seconds))
        for conditions, listed in re.findall(r"(?m)^(On .+)\. Seconds: (.+)\.$", closing)
        for name, seconds in re.findall(r"(\w+) (\d+)", listed)
    }
    found = {}
    for claim in claims:
        parts = re.findall(rf"(?ms)^(## {re.escape(claim.title)}\n.+?)\n\n(?=## |\Z)", f"{body}\n")
        verdict = re.findall(rf"\*\*Result: the claim ({'|'.join(VERDICTS)})\.\*\*", "".join(parts))
        if len(parts) == len(verdict) == 1 and claim.name in places:
            found[claim.name] = Section(parts[0], cast("Verdict", verdict[0]), *places[claim.name])
    return found


def section(claim: Claim, measured: Measured, figure: str) -> Section:
    """figure: path of the plot and the table, without their endings."""
    finding = claim.judge(measured)
    parts = (
        f"## {claim.title}",
        f"**Claim.** {claim.statement}",
        f"![{claim.name}]({figure}.svg)",
        f"[Experiment](../lectures/claims/{claim.name}.py), [all figures]({figure}.tsv)",
        f"**Result: the claim {finding.verdict}.** {finding.explanation}",
    )
    return Section("\n\n".join(parts), finding.verdict, described(measured["conditions"]), round(measured["seconds"]))


def figures_of(finding: Finding) -> str:
    """The figures as tab-separated values, under a line of names."""
    return "".join("\t".join(cells) + "\n" for cells in (finding.header, *finding.rows))


def verdicts(claims: Sequence[Claim], sections: Mapping[str, Section]) -> str:
    """How many claims held, held in part and did not hold, with links to the latter."""
    named = {verdict: [claim for claim in claims if sections[claim.name].verdict == verdict] for verdict in VERDICTS}
    parts = [f"{len(found)} {verdict}{_links(found) if verdict != 'held' else ''}" for verdict, found in named.items()]
    return f"Of {len(sections)} claims {', '.join(parts)}."


def _links(claims: Sequence[Claim]) -> str:
    links = ", ".join(f"[{claim.name}](#{anchor(claim.title)})" for claim in claims)
    return f" ({links})" if links else ""


def closing(claims: Sequence[Claim], sections: Mapping[str, Section]) -> str:
    """The conditions of the measurements, and the claims and seconds that each of them applies to."""
    groups: dict[str, list[str]] = {}
    for claim in claims:
        groups.setdefault(sections[claim.name].conditions, []).append(claim.name)
    paragraphs = [
        f"{conditions}. Seconds: {', '.join(f'{name} {sections[name].seconds}' for name in names)}."
        for conditions, names in groups.items()
    ]
    total = f"{sum(sections[claim.name].seconds for claim in claims) / 60:.0f} minutes in all."
    return "\n\n".join([CLOSING, *paragraphs, total])


def described(conditions: Mapping[str, Any]) -> str:
    """conditions: the machine, its processors, whether it was idle before the measurements, and the versions of the
    packages."""
    versions = ", ".join(f"{name} {version}" for name, version in conditions["versions"].items())
    state = "otherwise idle" if conditions["is_idle"] else "shared with other work"
    return f"On {conditions['machine']} with {conditions['processors']} processors, {state}; {versions}"


def anchor(title: str) -> str:
    """The anchor that Markdown viewers derive from a heading."""
    kept = [letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_"]
    return "".join(kept)


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
