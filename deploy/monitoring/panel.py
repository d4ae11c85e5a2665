"""What a panel is, and the expressions that many of them have.

An expression is PromQL with three variables, as Grafana writes them: `$model` and `$instance`, alternatives of a
regular expression, and `$__rate_interval`, at least four scrapes. Nothing here knows how a panel is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["lines", "heat_map", "numbers", "labels"]  # the last two: of now; labels: values are all 1
Unit = Literal["s", "bytes", "percentunit", "reqps", "cps", "suffix: tokens/s", "short", "d"]  # as Grafana names them

SERVER = 'instance=~"$instance"'
MODEL = f'{SERVER},model=~"$model"'
WINDOW = "[$__rate_interval]"
ANSWERS = "end_of_sequence|length|stop_string|encoded|attention"
# Of accepted requests and of rejected ones: what is the server's fault or lack of room, and not the request's.
FAULTS = "internal|engine_unavailable|deadline_exceeded|deadline_too_soon"
REFUSALS = "queue_full|tenant_limit|memory_limit|deadline_too_soon|engine_unavailable"
QUANTILES = (0.5, 0.95, 0.99)
FULL = ((0.8, "orange"), (1.0, "red"))


class Query(NamedTuple):
    """An expression, and the text of each of its series: `{{label}}` is replaced by the value of the label."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A picture of some queries. text: what it shows, and what to make of it; unit: of all values. limits: from where
    on values have a colour, ascending: below them they are well; a line for each."""

    title: str
    text: str
    queries: tuple[Query, ...]
    unit: Unit = "short"
    kind: Kind = "lines"
    limits: tuple[tuple[float, str], ...] = ()

    @property
    def hides_zeros(self) -> bool:
        """Whether series that were always 0 only take up room: those of rates."""
        return self.unit in ("reqps", "cps", "suffix: tokens/s")


class Section(NamedTuple):
    """Panels under one heading, so many in a line."""

    title: str
    panels: tuple[Panel, ...]
    columns: int = 3


class Annotation(NamedTuple):
    """Marks in all panels where a query is 1, with its legend as text."""

    name: str
    colour: str
    query: Query


class Variable(NamedTuple):
    """A choice above the panels: the values of a label of a metric."""

    name: str
    label: str
    metric: str


def panel(
    title: str,
    text: str,
    *queries: Query,
    unit: Unit = "short",
    kind: Kind = "lines",
    limits: tuple[tuple[float, str], ...] = (),
) -> Panel:
    """A panel of these queries."""
    return Panel(title=title, text=text, queries=queries, unit=unit, kind=kind, limits=limits)


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


def errors(*by: str) -> str:
    """The share of failed and refused requests in all requests, 0..1, by these labels."""
    finished, rejected = "glossa_requests_finished_total", "glossa_requests_rejected_total"
    failed = rate(finished, f'{MODEL},reason=~"{FAULTS}"', *by)
    refused = rate(rejected, f'{MODEL},reason=~"{REFUSALS}"', *by)
    return f"({failed} + {refused}) / ({rate(finished, MODEL, *by)} + {rate(rejected, MODEL, *by)})"


def p95(metric: str, *by: str) -> str:
    """The 95th percentile of a histogram of models, by these labels."""
    return f"histogram_quantile(0.95, {rate(f'{metric}_bucket', MODEL, *by, 'le')})"


def distribution(
    title: str, metric: str, text: str, unit: Unit = "s", limits: tuple[tuple[float, str], ...] = ()
) -> tuple[Panel, Panel]:
    """Quantiles of a histogram by model, and its heat map over all models that are shown."""
    buckets = Query(f"sum by (le) (increase({metric}_bucket{{{MODEL}}}{WINDOW}))", "{{le}}")
    return (
        panel(f"{title}: quantiles", text, *quantiles(metric), unit=unit, limits=limits),
        panel(f"{title}: heat map", text, buckets, unit=unit, kind="heat_map"),
    )
