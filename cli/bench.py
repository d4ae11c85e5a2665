"""`glossa bench`: the flags of a load test. What is sent and measured is decided by `cli.load_test`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.connection import Connection, report_call_errors, with_connection
from cli.flags import ModelName, with_decoding_flags
from cli.terminal import AsJson, numbers, print_json

Texts = Annotated[
    Path, typer.Option("--input", help="texts to send, one a line; of a TSV the first column; may be .gz")
]
Concurrency = Annotated[
    str, typer.Option(help="closed loop instead: so many clients that each wait for their answers, such as 1,64")
]
FindMax = Annotated[
    bool, typer.Option("--find-max", help="search the highest rate that meets the objectives, from --rate or 1")
]
Streamed = Annotated[bool, typer.Option("--stream/--unary", help="unary calls have no token latencies")]
EndToEnd = Annotated[float, typer.Option(help="objective: time of a whole answer, milliseconds")]
Burstiness = Annotated[float, typer.Option(help="1: Poisson arrivals; below 1 bursts, above 1 even")]
Connections = Annotated[int, typer.Option(help="connections used in turn; each carries about 256 concurrent calls")]


@with_decoding_flags
@with_connection("connection")
def bench(
    texts: Texts,
    model: ModelName = "",
    rate: Annotated[str, typer.Option(help="requests/s, such as 5,10,20: one load after another")] = "",
    find_max: FindMax = False,
    concurrency: Concurrency = "",
    duration_s: Annotated[float, typer.Option(help="measured seconds of each load")] = 30.0,
    warm_up_s: Annotated[float, typer.Option(help="seconds of load before them")] = 5.0,
    wait_s: Annotated[float, typer.Option(help="seconds to wait for answers afterwards; later ones failed")] = 30.0,
    timeout_s: Annotated[float, typer.Option(help="deadline of each request")] = 60.0,
    stream: Streamed = True,
    slo_e2e_ms: EndToEnd = 1000.0,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="objective: time to first token")] = None,
    slo_itl_ms: Annotated[float | None, typer.Option(help="objective: inter-token latency")] = None,
    percentile: Annotated[float, typer.Option(help="percentage of requests that must meet the objectives")] = 99.0,
    burstiness: Burstiness = 1.0,
    within_s: Annotated[float, typer.Option(help="most seconds of --find-max")] = 600.0,
    precision: Annotated[float, typer.Option(help="--find-max ends when the rate is known so precisely")] = 0.05,
    connections: Connections = 4,
    seed: Annotated[int, typer.Option(help="of arrivals and texts; of sampling: --option seed=N")] = 0,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="plot of latency over load to write, .png or .svg")] = None,
    *,
    connection: Connection,
    options: dict[str, Any],
) -> None:
    """Load a running server as independent users would: latencies, goodput, highest sustained rate.

    Requests are sent at random times, whatever the answers; every latency counts from the scheduled time.
    """
    from cli.load_generator import Window
    from cli.load_report import Objectives, ReportError, check_plot, draw
    from cli.load_test import Bench, BenchError, read_texts, run

    with report_call_errors(connection, BenchError, ReportError):
        check_plot(plot)
        settings = Bench(
            connection=connection,
            texts=read_texts(texts),
            model=model,
            rates=numbers("--rate", rate, float),
            concurrencies=numbers("--concurrency", concurrency, int),
            is_search=find_max,
            precision=precision,
            within_s=within_s,
            window=Window(warm_up_s=warm_up_s, duration_s=duration_s),
            wait_s=wait_s,
            timeout_s=timeout_s,
            is_streamed=stream,
            objectives=Objectives.from_ms(slo_e2e_ms, slo_ttft_ms, slo_itl_ms, percentile=percentile),
            burstiness=burstiness,
            connections=connections,
            seed=seed,
            options=options,
        )
        report = run(settings, functools.partial(typer.echo, err=as_json))
        if plot is not None:
            draw(plot, f"{report.model.name} at {connection.address}", report.loads, settings.objectives)
    if as_json:
        print_json(report.as_json())
