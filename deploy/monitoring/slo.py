"""The service level objectives, and when too much of what they allow is used up too fast.

An objective allows a share of events to be bad, its budget, over 30 days. How fast it is used up is its burn rate: 1
uses it up in exactly 30 days. Windows and rates are those of "The Site Reliability Workbook", chapter 5: a long window
says that it is worth a reaction, a short one that it goes on. 14.4 for an hour uses 2 % of the budget, 6 for six hours
5 %, 3 for a day and 1 for three days 10 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# What a client cannot help. RESOURCE_EXHAUSTED is an overloaded server; other statuses are the request's own.
FAILURES = "Unknown|DeadlineExceeded|ResourceExhausted|Internal|Unavailable|DataLoss|Unimplemented"
RPCS = 'grpc_service=~"(glossa|inference|vllm)[.].*"'  # those of the adaptors, too


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A promise on a share of events.

    budget: the share of events that may be bad; good, all: counters of events, as selectors; by: labels beside the job.
    """

    key: str
    title: str
    text: str
    budget: float
    good: str
    all: str
    by: tuple[str, ...] = ()
    limit_s: float = 0.0  # of a latency: what is slower is bad

    @property
    def matchers(self) -> str:
        """What selects the series of the models that a panel shows."""
        return '{model=~"$model"}' if "model" in self.by else ""

    @property
    def legend(self) -> str:
        """The labels of a series."""
        return " ".join(f"{{{{{label}}}}}" for label in ("job", *self.by))

    def record(self, window: str) -> str:
        """The name of the recorded share of bad events."""
        return f"{'_'.join(('job', *self.by))}:glossa_{self.key}_errors:ratio_rate{window}"

    def errors(self, window: str) -> str:
        """The expression of the share of bad events within a window, 0..1; not a number without events. Before
        the first good event there may be no counter of them, so it counts as 0."""
        by = ", ".join(("job", *self.by))
        good, total = (f"sum by ({by}) (rate({events}[{window}]))" for events in (self.good, self.all))
        return f"1 - ({good} or 0 * {total}) / {total}"


class Burn(NamedTuple):
    """A burn rate that is too high when two windows show it."""

    rate: float
    long: str
    short: str


FAST = (Burn(14.4, "1h", "5m"), Burn(6, "6h", "30m"))
SLOW = (Burn(3, "1d", "2h"), Burn(1, "3d", "6h"))
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


def _latency(key: str, title: str, text: str, metric: str, limit_s: float, after: str = "") -> Objective:
    """Text: what 99 % of events do within the limit."""
    return Objective(
        key=key,
        title=title,
        text=f"99 % of {text} {limit_s:g} s{after}.",
        budget=0.01,
        good=f'{metric}_bucket{{le="{limit_s:g}"}}',
        all=f"{metric}_count",
        by=("model",),
        limit_s=limit_s,
    )


AVAILABILITY = Objective(
    key="availability",
    title="Availability",
    text="99.9 % of RPCs do not fail through the server's fault.",
    budget=0.001,
    good=f'grpc_server_handled_total{{{RPCS},grpc_code!~"{FAILURES}"}}',
    all=f"grpc_server_handled_total{{{RPCS}}}",
)
FIRST_TOKEN = _latency(
    *("first_token", "Time to first token", "requests get their first token within"),
    *("glossa_time_to_first_token_seconds", 0.5),
)
INTER_TOKEN = _latency(
    *("inter_token", "Inter-token latency", "tokens come within"),
    *("glossa_inter_token_latency_seconds", 0.1, " of the one before"),
)
OBJECTIVES = (AVAILABILITY, FIRST_TOKEN, INTER_TOKEN)
