"""The settings of a load test, each of which is a flag of `glossa bench`, and their limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from cli.connection import Connection
from cli.flags import ModelName
from cli.terminal import UsageError

MAX_RATE = 100_000.0
LIMITS = {
    "rate": (0.01, MAX_RATE),
    "concurrency": (1, 100_000),
    "duration_s": (0.01, 86400),
    "warm_up_s": (0, 86400),
    "wait_s": (0, 86400),
    "timeout_s": (0.001, 86400),
    "burstiness": (0.01, 1000),
    "connections": (1, 1000),
    "precision": (0.001, 1),
    "percentile": (1, 100),
    "within_s": (0.001, math.inf),
    "slo_e2e_ms": (1e-6, math.inf),
    "slo_ttft_ms": (1e-6, math.inf),
    "slo_itl_ms": (1e-6, math.inf),
}


@dataclass(frozen=True, kw_only=True)
class LoadTest:
    """A load test: exactly one of rates, concurrencies and a search. Raises UsageError."""

    connection: Connection
    texts: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)  # of decoding
    rate: Sequence[float] = ()  # requests/s, one load each; of a search: its start
    concurrency: Sequence[int] = ()  # clients of closed loops, one load each

    model: ModelName = ""
    find_max: Annotated[
        bool, typer.Option("--find-max", help="search the highest rate that meets the objectives, from --rate or 1")
    ] = False
    duration_s: Annotated[float, typer.Option(help="measured seconds of each load")] = 30.0
    warm_up_s: Annotated[float, typer.Option(help="seconds of load before them")] = 5.0
    wait_s: Annotated[float, typer.Option(help="seconds to wait for answers afterwards; later ones failed")] = 30.0
    timeout_s: Annotated[float, typer.Option(help="deadline of each request")] = 60.0
    stream: Annotated[bool, typer.Option("--stream/--unary", help="unary calls have no token latencies")] = True
    slo_e2e_ms: Annotated[float, typer.Option(help="objective: time of a whole answer, milliseconds")] = 1000.0
    slo_ttft_ms: Annotated[float | None, typer.Option(help="objective: time to first token")] = None
    slo_itl_ms: Annotated[float | None, typer.Option(help="objective: inter-token latency")] = None
    percentile: Annotated[float, typer.Option(help="percentage of requests that must meet the objectives")] = 99.0
    burstiness: Annotated[float, typer.Option(help="1: Poisson arrivals; below 1 bursts, above 1 even")] = 1.0
    within_s: Annotated[float, typer.Option(help="most seconds of --find-max")] = 600.0
    precision: Annotated[float, typer.Option(help="--find-max ends when the rate is known so precisely")] = 0.05
    connections: Annotated[
        int, typer.Option(help="connections used in turn; each carries about 256 concurrent calls")
    ] = 4
    seed: Annotated[int, typer.Option(help="of arrivals and texts; of sampling: the option seed")] = 0

    def __post_init__(self) -> None:
        if bool(self.concurrency) + (self.find_max or bool(self.rate)) != 1:
            raise UsageError("give either --rate R,…, --find-max or --concurrency K,…")
        if self.find_max and len(self.rate) > 1:
            raise UsageError(f"--find-max begins at one --rate, got {len(self.rate)}")
        if not self.texts:
            raise UsageError("--input: has no text; give a file with a text on each line")
        for name, (low, high) in LIMITS.items():
            given = getattr(self, name)
            for value in given if isinstance(given, Sequence) else (given,):
                if value is not None and not low <= value <= high:  # NaN is in no range
                    raise UsageError(f"--{name.replace('_', '-')}: must be {low:g}..{high:g}, got {value:g}")
        if not self.stream and (self.slo_ttft_ms is not None or self.slo_itl_ms is not None):
            raise UsageError("--slo-ttft-ms and --slo-itl-ms: unary calls have no token latencies; use --stream")
        if self.find_max and self.longest_load_s > self.within_s:
            raise UsageError(
                f"--within-s: must be at least {self.longest_load_s:g}, the length of one load, got {self.within_s:g}"
            )

    @property
    def longest_load_s(self) -> float:
        """Seconds of a load whose last answers do not arrive."""
        return self.warm_up_s + self.duration_s + self.wait_s
