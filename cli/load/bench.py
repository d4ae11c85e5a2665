"""`glossa bench`: a load test from the command line; `cli.load.load_settings` has its settings, `cli.load.load_test`
runs it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.connection import Connection, report_call_errors, with_connection
from cli.flags import DECODING, with_fields
from cli.load.load_settings import LoadTest
from cli.options_file import with_options_file
from cli.terminal import AsJson, numbers, print_json


@with_options_file({name: DECODING[name] for name in ("beam_size", "max_tokens")})
@with_connection("connection")
@with_fields("settings", LoadTest, dict)
def bench(
    texts: Annotated[
        Path, typer.Option("--input", help="texts to send, one a line; of a TSV the first column; may be .gz")
    ],
    rate: Annotated[str, typer.Option(help="requests/s, such as 5,10,20: one load after another")] = "",
    concurrency: Annotated[
        str, typer.Option(help="closed loop instead: so many clients that each wait for their answers, such as 1,64")
    ] = "",
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="plot of latency over load to write, .png or .svg")] = None,
    *,
    connection: Connection,
    settings: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Load a running server as independent users would: latencies, goodput, highest sustained rate.

    Requests are sent at random times, whatever the answers; every latency counts from the scheduled time.
    """
    from cli.load.load_report import check_plot, draw
    from cli.load.load_test import read_texts, run

    with report_call_errors(connection):
        check_plot(plot)
        test = LoadTest(
            connection=connection,
            texts=read_texts(texts),
            options=options,
            rate=numbers("--rate", rate, float),
            concurrency=numbers("--concurrency", concurrency, int),
            **settings,
        )
        report = run(test, functools.partial(typer.echo, err=as_json))
        if plot is not None:
            draw(plot, f"{report.model.name} at {connection.address}", report.loads, report.objectives)
    if as_json:
        print_json(report.as_json())
