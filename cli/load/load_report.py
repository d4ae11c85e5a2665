"""Figures of a load: percentiles, goodput, whether a rate is sustained; as text, JSON and a plot.

Latency percentiles cover answered requests. For the objectives every failure counts as an infinite latency, so that
rejecting requests never improves them. All times are measured at the client.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.load.load_generator import OK, UNFINISHED, Load, Outcome
from cli.terminal import UsageError

LAG_LIMIT_MS = 10.0  # a generator that is later than this …
LAG_SHARE = 0.05  # … and than this share of the median latency distorts the measurement
CPU_LIMIT = 0.9  # share of one core, which is all that the event loop can use
STREAMS_PER_CONNECTION = 256  # default of the server's max_concurrent_streams
PLOTS = (".png", ".svg")
MS = 1000.0

LATENCIES = {
    "end_to_end_ms": "end-to-end",
    "first_token_ms": "first token",
    "inter_token_ms": "between tokens",
    "per_token_ms": "per token",
}
"""Figures of latencies and their labels; all but the first exist for streamed answers only."""


def latencies_ms(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    """The values of each of LATENCIES in answered requests, milliseconds."""
    answered = [outcome for outcome in outcomes if outcome.is_answered]
    return {
        "end_to_end_ms": [outcome.end_to_end_s * MS for outcome in answered],
        "first_token_ms": [outcome.first_token_s * MS for outcome in answered if outcome.first_token_s is not None],
        "inter_token_ms": [gap_s * MS for outcome in answered for gap_s in outcome.gaps_s],
        "per_token_ms": [outcome.per_token_s * MS for outcome in answered if outcome.per_token_s is not None],
    }


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """Service-level objectives: `percentile` percent of the requests within these limits; None: no limit."""

    end_to_end_ms: float = 1000.0
    first_token_ms: float | None = None
    inter_token_ms: float | None = None
    percentile: float = 99.0

    @property
    def limits_ms(self) -> dict[str, float]:
        """The latencies that have a limit."""
        return {name: limit for name in LATENCIES if (limit := getattr(self, name, None)) is not None}

    def reached_ms(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """The percentile of each latency with a limit; a request without an answer or a token counts as infinite."""
        values = latencies_ms(outcomes)
        for name in ("end_to_end_ms", "first_token_ms"):
            values[name] += [math.inf] * (len(outcomes) - len(values[name]))
        return {name: percentile(values[name] or [0.0], self.percentile) for name in self.limits_ms if outcomes}

    def are_met_by(self, outcome: Outcome) -> bool:
        """Whether a request is within all limits; of its inter-token latencies, `percentile` percent."""
        return outcome.is_answered and self.include(self.reached_ms([outcome]))

    def include(self, reached_ms: Mapping[str, float]) -> bool:
        """Whether these percentiles are within their limits."""
        return all(value <= self.limits_ms[name] for name, value in reached_ms.items())


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Distribution of a latency, milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One load in figures. The names are the keys of the JSON report; all times in milliseconds."""

    rate: float | None  # scheduled requests/s; null in a closed loop
    concurrency: int | None  # clients of a closed loop; null in an open one
    requests: int  # scheduled within the measured time; the figures below cover these, except for the next two
    achieved_rps: float  # answers completed within the measured time, warm-up requests included, per second
    tokens_per_s: float  # generated tokens that arrived within the measured time, per second
    offered_rps: float  # requests per second of the measured time
    goodput_rps: float  # requests that met all objectives, per second of the measured time
    good_share: float  # of the requests
    answered: int
    failed: int
    statuses: dict[str, int]  # gRPC status → requests; UNFINISHED: not answered at the end of the wait
    failures: dict[str, str]  # gRPC status → its first message
    tokens: int  # in their answers
    end_to_end_ms: Spread | None  # null without answers
    first_token_ms: Spread | None  # null for unary calls, as the three below
    inter_token_ms: Spread | None  # times between pieces of an answer
    per_token_ms: Spread | None  # TPOT: time after the first piece per token after it
    objective_ms: dict[str, float | None]  # latency with a limit → its percentile, failures included; null: infinite
    sustained: bool  # each of objective_ms is within its limit
    cut_short: bool  # a search ended the load because it could no longer be sustained
    lag_p99_ms: float  # delay of the generator
    lag_max_ms: float
    cpu_share: float  # processor time of the generator, in cores
    most_outstanding: int  # requests at once
    warnings: tuple[str, ...] = ()  # why the figures may not describe the server

    @property
    def load(self) -> str:
        return f"{self.concurrency} clients" if self.concurrency else f"{self.rate:g}/s"


def percentile(values: Iterable[float], q: float) -> float:
    """The q-th percentile, linearly interpolated as by numpy's default; values: not empty, may be infinite."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    below = math.floor(place)
    share = place - below
    return ordered[below] if not share else ordered[below] * (1 - share) + ordered[below + 1] * share


def spread(values_ms: Iterable[float]) -> Spread | None:
    """The distribution of latencies; None without values."""
    ordered = sorted(values_ms)
    if not ordered:
        return None
    points = {f"p{q}": percentile(ordered, q) for q in (50, 90, 95, 99)}
    return Spread(mean=math.fsum(ordered) / len(ordered), max=ordered[-1], **points)


def figures(
    load: Load,
    objectives: Objectives,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    is_streamed: bool = True,
    connections: int = 1,
) -> Figures:
    """Figures of a load at a rate or with a number of clients; connections: how many the requests used."""
    counted = load.counted
    answered = sum(outcome.is_answered for outcome in counted)
    starts_s = load.window.warm_up_s
    # A load that is cut short in the warm-up measures nothing; the length must still not be 0.
    ends_s = min(load.window.ends_s, load.wall_s) if load.is_cut_short else load.window.ends_s
    measured_s = max(ends_s - starts_s, 1e-9)
    good = sum(objectives.are_met_by(outcome) for outcome in counted)
    reached = objectives.reached_ms(counted)
    lags_ms = [outcome.lag_s * MS for outcome in counted]
    spreads: dict[str, Any] = {
        name: spread(values) if is_streamed or name == "end_to_end_ms" else None
        for name, values in latencies_ms(counted).items()
    }
    found = Figures(
        rate=rate,
        concurrency=concurrency,
        requests=len(counted),
        achieved_rps=sum(o.is_answered and starts_s <= o.ended_s < ends_s for o in load.outcomes) / measured_s,
        tokens_per_s=sum(n for o in load.outcomes for at_s, n in o.pieces if starts_s <= at_s < ends_s) / measured_s,
        offered_rps=len(counted) / measured_s,
        goodput_rps=good / measured_s,
        good_share=good / len(counted) if counted else 0.0,
        answered=answered,
        failed=len(counted) - answered,
        statuses=dict(Counter(outcome.status for outcome in counted).most_common()),
        failures={outcome.status: outcome.message for outcome in reversed(counted) if outcome.message},
        tokens=sum(outcome.tokens for outcome in counted if outcome.is_answered),
        **spreads,
        objective_ms={name: finite(value) for name, value in reached.items()},
        sustained=bool(counted) and not load.is_cut_short and objectives.include(reached),
        cut_short=load.is_cut_short,
        lag_p99_ms=percentile(lags_ms, 99) if lags_ms else 0.0,
        lag_max_ms=max(lags_ms, default=0.0),
        cpu_share=load.cpu_s / load.wall_s if load.wall_s else 0.0,
        most_outstanding=load.most_outstanding,
    )
    return dataclasses.replace(found, warnings=tuple(_warnings(found, objectives, connections)))


def finite(value: float) -> float | None:
    """A number as JSON can represent it; None: infinite."""
    return value if math.isfinite(value) else None


def _warnings(load: Figures, objectives: Objectives, connections: int) -> Iterable[str]:
    if not load.requests:
        yield "no request was scheduled in the measured time; choose a longer duration or a higher rate"
        return
    late_ms, answers = load.lag_p99_ms, load.end_to_end_ms
    if late_ms > LAG_LIMIT_MS and (answers is None or late_ms > LAG_SHARE * answers.p50):
        yield (
            f"the generator itself was {late_ms:.0f} ms late (p99), which is part of all latencies: the bottleneck "
            "may be the generator; use another machine, a higher priority (nice -n -10) or a lower rate"
        )
    if load.cpu_share > CPU_LIMIT:
        yield (
            f"the generator used {load.cpu_share:.2f} of the one core that it can use: the bottleneck may be "
            "the generator; use --unary, a lower rate, or several generators"
        )
    if load.most_outstanding > connections * STREAMS_PER_CONNECTION:
        yield (
            f"{load.most_outstanding} concurrent requests on {connections} connections: a server accepts "
            f"{STREAMS_PER_CONNECTION} on each by default, the others waited in the generator; use more --connections"
        )
    if load.requests * (100 - objectives.percentile) < 100:
        share = f"p{objectives.percentile:g} of {load.requests} requests"
        yield f"{share} is close to the maximum; choose a longer duration"
    if UNFINISHED in load.statuses and not load.cut_short:
        yield "some requests were still running at the end of the wait; they count as failures"


def fewest_misses(requests: int, objectives: Objectives) -> int:
    """The number of failed or late requests that puts the percentile of end-to-end latency beyond its limit, whatever
    the others do."""
    return requests - math.floor((requests - 1) * objectives.percentile / 100)


def highest_sustained(loads: Iterable[Figures]) -> float | None:
    """The highest rate that is sustained together with all lower ones."""
    tried = [(load.rate, load.sustained) for load in loads if load.rate is not None]
    lowest_failed = min((rate for rate, sustained in tried if not sustained), default=math.inf)
    return max((rate for rate, sustained in tried if sustained and rate < lowest_failed), default=None)


def by_load(loads: Iterable[Figures]) -> list[Figures]:
    """The lightest first."""
    return sorted(loads, key=lambda load: load.rate or load.concurrency or 0)


def block(load: Figures) -> str:
    """The text of one load."""
    verdict = "sustained" if load.sustained else "NOT sustained"
    verdict += ", cut short" if load.cut_short else ""
    lines = [
        f"{load.load}: {verdict}",
        f"  offered {load.offered_rps:.1f}/s, achieved {load.achieved_rps:.1f}/s, goodput {load.goodput_rps:.1f}/s "
        f"({load.good_share:.1%}), {load.tokens_per_s:.0f} tokens/s; {load.answered} answered, {load.failed} failed",
    ]
    for status, count in load.statuses.items():
        if status != OK:
            lines.append(f"  {status}: {count}  {load.failures.get(status, '')}".rstrip())
    spreads = {label: getattr(load, name) for name, label in LATENCIES.items() if getattr(load, name) is not None}
    if spreads:
        lines.append(f"  {'ms':16}" + "".join(f"{item.name:>10}" for item in dataclasses.fields(Spread)))
    for label, values in spreads.items():
        lines.append(f"  {label:16}" + "".join(f"{value:10.1f}" for value in dataclasses.astuple(values)))
    lines.append(
        f"  generator: late by {load.lag_p99_ms:.1f} ms (p99), {load.lag_max_ms:.1f} ms (max), "
        f"{load.cpu_share:.2f} cores, at most {load.most_outstanding} concurrent requests"
    )
    return "\n".join([*lines, *(f"  warning: {warning}" for warning in load.warnings)])


def summary(loads: Sequence[Figures]) -> str:
    """A table of several loads, a line each; latencies in milliseconds."""
    titles = ("load", "achieved", "goodput", "tokens/s", "failed", "e2e p50", "e2e p95", "e2e p99", "TTFT p99")
    lines = ["".join(f"{title:>10}" for title in titles)]
    for load in by_load(loads):
        end, first = load.end_to_end_ms, load.first_token_ms
        cells = [load.load, f"{load.achieved_rps:.1f}", f"{load.goodput_rps:.1f}", f"{load.tokens_per_s:.0f}"]
        cells += [f"{load.failed}", *((f"{end.p50:.0f}", f"{end.p95:.0f}", f"{end.p99:.0f}") if end else "---")]
        cells.append(f"{first.p99:.0f}" if first else "-")
        mark = "  cut short" if load.cut_short else "  sustained" if load.sustained else ""
        lines.append("".join(f"{cell:>10}" for cell in cells) + mark)
    return "\n".join(lines)


def check_plot(path: Path | None) -> None:
    """Raises UsageError if `draw` could not write there. Called before anything is measured."""
    if path is None:
        return
    if path.suffix.lower() not in PLOTS:
        raise UsageError(f"--plot {path}: must end in {' or '.join(PLOTS)}, got {path.suffix!r}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: {path.absolute().parent} is not a directory; make it first")
    try:
        import matplotlib  # noqa: F401  # takes half a second to import, and only training requires it
    except ImportError:
        raise UsageError(f"--plot {path}: needs matplotlib; fix: pip install matplotlib") from None


def draw(path: Path, title: str, loads: Sequence[Figures], objectives: Objectives) -> None:
    """Plot p50, p95 and p99 of end-to-end and first-token latency over the offered load.

    A load that was cut short has only its fast answers, so it is a vertical line instead of a point.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    is_open = all(load.rate is not None for load in loads)
    whole = [load for load in by_load(loads) if not load.cut_short]
    for name, style in (("end_to_end_ms", "-"), ("first_token_ms", "--")):
        answered = [load for load in whole if getattr(load, name) is not None]
        xs = [load.offered_rps if is_open else load.concurrency or 0 for load in answered]
        for colour, quantile in zip(("C0", "C1", "C3"), ("p50", "p95", "p99"), strict=True):
            if answered:
                ys = [getattr(getattr(load, name), quantile) for load in answered]
                axes.plot(xs, ys, style, color=colour, marker=".", label=f"{LATENCIES[name]} {quantile}")
    label = "cut short, not sustained"
    for load in loads:
        if load.cut_short:
            axes.axvline(load.offered_rps, color="C3", linewidth=1, linestyle=":", label=label)
            label = "_"  # once in the legend
    if math.isfinite(objectives.end_to_end_ms):
        label = f"objective of end-to-end p{objectives.percentile:g}"
        axes.axhline(objectives.end_to_end_ms, color="0.5", linewidth=1, linestyle=":", label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("offered load, requests/s" if is_open else "concurrent clients (closed loop)")
    axes.set_ylabel("latency, ms")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=100)
