"""What engines measure (`Measurement`), and the series of a model that these measurements change (`EngineSeries`).

A measurement is made by an engine, sent by its process and applied by the edge. Nothing here counts: an engine process
loads no library for it, and `service.edge.observability.metric_series` makes metrics of the definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

# 1-2-5 from 100 µs to 60 s: a small model's steps take less than the 10 ms where default buckets start.
LATENCY_BUCKETS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0),
)
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class MetricDefinition(NamedTuple):
    """A metric, before its series are bound to label values."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    labels: tuple[str, ...] = ()  # after those of the whole class; the bound attribute is a function of their values
    buckets: Sequence[float] = ()


def counter(name: str, text: str, *labels: str) -> Any:
    """The definition of a counter."""
    return MetricDefinition("counter", name, text, labels)


def histogram(name: str, text: str, *, buckets: Sequence[float] = LATENCY_BUCKETS) -> Any:
    """The definition of a histogram."""
    return MetricDefinition("histogram", name, text, buckets=buckets)


class CounterSeries(Protocol):
    """A counter of one model."""

    def inc(self, amount: float = 1) -> None: ...


class HistogramSeries(Protocol):
    """A histogram of one model."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None: ...

    def observe_many(self, value: float, times: int) -> None: ...


class EngineSeries:
    """The series of a model that its engines' measurements change; each attribute has a line in docs/metrics.md."""

    queue: HistogramSeries = histogram("glossa_queue_seconds", "Queue time of a request.")
    first_token: HistogramSeries = histogram(
        "glossa_time_to_first_token_seconds", "Time to the first token of a request."
    )
    inter_token: HistogramSeries = histogram(
        "glossa_inter_token_latency_seconds", "Time between two tokens of a request."
    )
    prefill: HistogramSeries = histogram("glossa_prefill_seconds", "Encoder and prefill time of an engine turn.")
    step: HistogramSeries = histogram("glossa_decode_step_seconds", "Time of one decode step of an engine.")
    rows: HistogramSeries = histogram("glossa_decode_step_rows", "Rows in a decode step.", buckets=ROW_BUCKETS)
    preemptions: CounterSeries = counter("glossa_preemptions", "Times that a request left its rows to others.")
    prompt_tokens: CounterSeries = counter("glossa_prompt_tokens", "Tokens of admitted sources and prompts.")
    prefill_tokens: CounterSeries = counter(
        "glossa_prefill_tokens", "Tokens that encoder and prefill computed, padding included."
    )
    padding_tokens: CounterSeries = counter("glossa_padding_tokens", "Padding among these tokens.")
    prefix_queried: CounterSeries = counter("glossa_prefix_cache_queried_tokens", "Prompt tokens looked up.")
    prefix_hits: CounterSeries = counter("glossa_prefix_cache_hits", "Prompts with a cached prefix.")
    prefix_reused: CounterSeries = counter("glossa_prefix_cache_hit_tokens", "Prompt tokens copied, not computed.")
    drafted: CounterSeries = counter("glossa_speculation_draft_tokens", "Draft tokens verified by the model.")
    accepted: CounterSeries = counter("glossa_speculation_accepted_tokens", "Draft tokens accepted.")
    generated: CounterSeries = counter("glossa_generated_tokens", "Tokens generated.")
    wasted: CounterSeries = counter(
        "glossa_wasted_tokens",
        "Tokens of cancelled, late and failed requests, and of answers that came too late.",
    )
    turns_failed: CounterSeries = counter(
        "glossa_engine_turns_failed", "Engine turns that failed, with all their requests."
    )
    finished: Callable[[str], CounterSeries] = counter(
        "glossa_requests_finished", "Accepted requests that ended, by reason.", "reason"
    )


class Admitted(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=1):
    """A request of `prompt_tokens` source and prompt tokens was admitted after `queue_s` seconds."""

    queue_s: float
    prompt_tokens: int

    def apply(self, series: EngineSeries) -> None:
        """Changes the series of the engine's model, as in all measurements. Raises ValueError for negative counts."""
        series.queue.observe(self.queue_s)
        series.prompt_tokens.inc(self.prompt_tokens)


class Preempted(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=2):
    """So many live requests gave their rows to others in a turn, and wait for new ones."""

    count: int

    def apply(self, series: EngineSeries) -> None:
        series.preemptions.inc(self.count)


class Prefilled(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=3):
    """The encoder and prefill of a turn took so long, for `tokens` tokens of which `padding` only fill a batch."""

    seconds: float
    tokens: int
    padding: int

    def apply(self, series: EngineSeries) -> None:
        series.prefill.observe(self.seconds)
        series.prefill_tokens.inc(self.tokens)
        series.padding_tokens.inc(self.padding)


class LookedUp(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=4):
    """The prefix cache was queried for new prompts of `tokens` tokens: `hits` prompts and `reused` tokens hit."""

    tokens: int
    hits: int
    reused: int

    def apply(self, series: EngineSeries) -> None:
        series.prefix_queried.inc(self.tokens)
        series.prefix_hits.inc(self.hits)
        series.prefix_reused.inc(self.reused)


class Stepped(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=5):
    """`steps` decode steps of `rows` rows took so many seconds each."""

    seconds: float
    rows: int
    steps: int

    def apply(self, series: EngineSeries) -> None:
        series.step.observe_many(self.seconds, self.steps)
        series.rows.observe_many(self.rows, self.steps)


class Speculated(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=6):
    """A turn verified `drafted` draft tokens and accepted `accepted` of them."""

    drafted: int
    accepted: int

    def apply(self, series: EngineSeries) -> None:
        series.drafted.inc(self.drafted)
        series.accepted.inc(self.accepted)


class FirstToken(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=7):
    """A request got its first token so many seconds after its arrival."""

    seconds: float

    def apply(self, series: EngineSeries) -> None:
        series.first_token.observe(self.seconds)


class NextTokens(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=8):
    """`rows` sequences got another token, `gap_s` seconds after their last one."""

    gap_s: float
    rows: int

    def apply(self, series: EngineSeries) -> None:
        series.inter_token.observe_many(self.gap_s, self.rows)


class Generated(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=9):
    """A turn generated so many tokens."""

    tokens: int

    def apply(self, series: EngineSeries) -> None:
        series.generated.inc(self.tokens)


class RequestEnded(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=10):
    """A request ended. reason: a FinishReason's value, or an error's reason in lower case. wasted_tokens: generated for
    a request that failed or was cancelled."""

    reason: str
    wasted_tokens: int

    def apply(self, series: EngineSeries) -> None:
        """Raises KeyError for an unknown reason."""
        series.finished(self.reason).inc()
        series.wasted.inc(self.wasted_tokens)


class TurnFailed(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=11):
    """A turn failed. Its requests end, each with a measurement of its own."""

    def apply(self, series: EngineSeries) -> None:
        series.turns_failed.inc()


Measurement = (
    Admitted
    | Preempted
    | Prefilled
    | LookedUp
    | Stepped
    | Speculated
    | FirstToken
    | NextTokens
    | Generated
    | RequestEnded
    | TurnFailed
)
Measure = Callable[[Measurement], object]
"""Takes the measurements of an engine, a few in each turn, on the engine's thread."""


def not_measured(measurement: Measurement) -> None:
    """Drops a measurement."""
