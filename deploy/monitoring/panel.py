"""What a panel is, and the expressions that many of them have.

An expression is PromQL with three variables, as Grafana writes them: `$model` and `$instance`, alternatives of a
regular expression, and `$__rate_interval`, at least four scrapes. Nothing here knows how a panel is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["lines", "heat_map", "numbers", "labels"]  # the last two: of now; labels: values are all 1
Unit = Literal["s", "bytes", "percentunit", "reqps", "cps", "short", "d"]  # as Grafana names them; cps: a second

SERVER = 'instance=~"$instance"'
MODEL = f'{SERVER},model=~"$model"'
WINDOW = "[$__rate_interval]"
ANSWERS = "end_of_sequence|length|stop_string|encoded|attention"
QUANTILES = (0.5, 0.95, 0.99)


class Query(NamedTuple):
    """An expression, and the text of each of its series: `{{label}}` is replaced by the value of the label."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A picture of some queries. text: what it shows, and what to make of it; unit: of all values."""

    title: str
    text: str
    queries: tuple[Query, ...]
    unit: Unit = "short"
    kind: Kind = "lines"


class Section(NamedTuple):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Variable(NamedTuple):
    """A choice above the panels: the values of a label of a metric."""

    name: str
    label: str
    metric: str


def panel(title: str, text: str, *queries: Query, unit: Unit = "short", kind: Kind = "lines") -> Panel:
    """A panel of these queries."""
    return Panel(title=title, text=text, queries=queries, unit=unit, kind=kind)


def rate(metric: str, matched: str, *by: str) -> str:
    """Events in a second of a counter, in sums by these labels. matched: of its series."""
    return f"sum by ({', '.join(by)}) (rate({metric}{{{matched}}}{WINDOW}))"


def ratio(part: str, whole: str, by: str = "model") -> str:
    """How many events of one counter there are for each of another."""
    return f"{rate(part, MODEL, by)} / {rate(whole, MODEL, by)}"


def quantiles(metric: str, matched: str = MODEL, by: str = "model") -> tuple[Query, ...]:
    """The QUANTILES of a histogram, by a label."""
    return tuple(
        Query(
            f"histogram_quantile({quantile}, {rate(f'{metric}_bucket', matched, by, 'le')})",
            f"{{{{{by}}}}} p{100 * quantile:g}",
        )
        for quantile in QUANTILES
    )


def distribution(title: str, metric: str, text: str, unit: Unit = "s") -> tuple[Panel, Panel]:
    """Quantiles of a histogram by model, and its heat map over all models that are shown."""
    buckets = Query(f"sum by (le) (increase({metric}_bucket{{{MODEL}}}{WINDOW}))", "{{le}}")
    return (
        panel(f"{title}: quantiles", text, *quantiles(metric), unit=unit),
        panel(f"{title}: heat map", text, buckets, unit=unit, kind="heat_map"),
    )
