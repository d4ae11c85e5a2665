"""Clients over gRPC beside the page: what 50 tabs of `glossa web` cost them, on one machine.

Neighbours call `Translate` one after the other, with a pause of 50 ms. Beside them nothing happens, or each tab
translates a sentence every five seconds: by way of the page, or, for comparison, by the same calls over gRPC. The
rounds of the three alternate; figures are medians of rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.load.peer_server import glossa_server, http_address
from bench.load.web_process import web_process
from bench.load.web_tabs import MODEL, tabs
from bench.measure import Verdict, report
from glossa.client import AsyncClient

PAUSE_S = 0.05
BAR = 1.2  # of the 99th percentile without tabs


async def neighbours(address: str, text: str, count: int, tabs_of: list[str] | None, seconds: float) -> Any:
    """Seconds of each call, ascending, and those until the first words of the tabs. tabs_of: the command's words."""
    times = list[float]()

    async def neighbour(client: AsyncClient, until: float) -> None:
        while time.monotonic() < until:
            began = time.perf_counter()
            await client.translate(text, model=MODEL)
            times.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_S)

    loading = None
    if tabs_of is not None:
        command = [sys.executable, "-m", tabs.__module__, *tabs_of, str(seconds), text]
        loading = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert loading.stdout is not None
        await loading.stdout.readline()
    async with AsyncClient(address) as client:
        until = time.monotonic() + seconds
        await asyncio.gather(*(neighbour(client, until) for _ in range(count)))
    firsts = [] if loading is None else json.loads((await loading.communicate())[0])
    return sorted(times), firsts


@case(
    bundle=Flag(required=True, help="of a model that translates", type=Path),
    text="I would like a cup of coffee, please.",
    tabs=50,
    neighbours=4,
    seconds=12.0,
    rounds=5,
)
def web_neighbours(args: argparse.Namespace) -> None:
    kinds = {"none": None, "gRPC": "-", "page": ""}
    found = {kind: list[dict[str, float]]() for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with (
            glossa_server(args.bundle.resolve(), log=log) as (address, _),
            web_process(address, "--ops", http_address(log)) as page,
        ):
            kinds["page"] = page.removeprefix("http://")
            asyncio.run(neighbours(address, args.text, args.neighbours, None, 1.0))  # warm
            for _ in range(args.rounds):
                for kind, way in kinds.items():
                    words = None if way is None else [address, way, str(args.tabs)]
                    times, firsts = asyncio.run(neighbours(address, args.text, args.neighbours, words, args.seconds))
                    found[kind].append(
                        {
                            "calls": len(times),
                            "p50_ms": 1000 * times[len(times) // 2],
                            "p99_ms": 1000 * times[int(0.99 * (len(times) - 1))],
                            **({"tabs": len(firsts), "first_ms": 1000 * statistics.median(firsts)} if firsts else {}),
                        }
                    )
    medians = {
        kind: {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        for kind, rounds in found.items()
    }
    figures = {f"{kind}: {name}": round(value, 1) for kind, values in medians.items() for name, value in values.items()}
    ratio = medians["page"]["p99_ms"] / medians["none"]["p99_ms"]
    other = medians["gRPC"]["p99_ms"] / medians["none"]["p99_ms"]
    note = f"{other:.2f} beside the same calls by gRPC"
    verdict = Verdict(f"p99 of neighbours beside {args.tabs} tabs", ratio, BAR, is_limit=True, note=note)
    report(figures, [verdict], as_json=args.json)
