"""What hostile peers cost a server of grpc.aio alone, whose one method reads a message and answers: the floor of any
server in Python. Its limits are those of Glossa; the kinds of peers and the neighbour are those of `hostile-peers`.

- headers: nobody ends the calls, so each takes its memory until the end
- resets: the connection is closed after as many as Glossa allows
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc

from bench.case import case
from bench.hostile_peers import (
    AFTER_S,
    BEFORE_S,
    STREAMS,
    Memory,
    Peers,
    ask_for_ever,
    delays_between,
    reset,
    send_headers,
)
from bench.measure import report
from bench.open_loop import p99
from service.edge.admission.connections import shut_down
from service.server import server_options
from service.settings.config import load_settings

SERVICE, METHOD = "glossa.v1.TranslationService", "Translate"
HELD_S = 2.0  # of streams of headers, all of them open


def serve(end: Connection) -> None:
    """Sends its port, and how many calls have reached Python whenever it is asked."""
    settings = load_settings({"models": ["model=bundle"]})

    async def run() -> None:
        found = resets = 0

        async def answer(_messages: Any, context: Any) -> bytes:
            nonlocal found, resets
            found += 1
            try:
                await context.read()
            except asyncio.CancelledError:
                resets += 1
                if resets == settings.max_resets_per_s:
                    asyncio.get_running_loop().run_in_executor(None, shut_down, context.peer())
                raise
            return b""

        server = grpc.aio.server(options=server_options(settings))
        methods: Any = {METHOD: grpc.stream_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        end.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        while await asyncio.to_thread(end.recv):
            end.send(found)
        await server.stop(0)

    asyncio.run(run())


def hold_headers(address: str, count: int, seconds: float) -> None:
    """Streams of headers, which stay open for a while."""
    numbers = [min(STREAMS, count - first) for first in range(0, count, STREAMS)]
    with Peers(address, len(numbers)) as peers:
        send_headers(peers, numbers, seconds)
        time.sleep(HELD_S)


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def beside(name: str, attack: Callable[[str], object]) -> dict[str, str]:
    """An attack on a server of its own, with the neighbour beside it."""
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    pipe, others = context.Pipe()
    server = context.Process(target=serve, args=(other,))
    server.start()
    other.close()  # so that its end without a word ends the wait for one
    assert server.pid is not None
    address = f"127.0.0.1:{own.recv()}"
    neighbour = context.Process(target=ask_for_ever, args=(address, b"message", others), daemon=True)
    neighbour.start()
    others.close()
    pipe.recv()
    time.sleep(BEFORE_S)
    memory = Memory(server.pid)
    before_mb, before_s, began_s = memory.now_mb(), cpu_s(server.pid), time.monotonic()
    memory.start()
    attack(address)
    time.sleep(AFTER_S)
    used_s, over_s = cpu_s(server.pid) - before_s, time.monotonic()
    memory.stop()
    pipe.send(None)
    delays = delays_between(pipe.recv(), began_s, over_s)
    own.send(True)
    calls = own.recv()
    own.send(False)
    for process in (neighbour, server):
        process.join()
    most_mb = max(mb for _, mb in memory.found) - before_mb
    return {
        f"{name}: calls that reached Python, with the neighbour's": f"{calls}",
        f"{name}: processor time for each of them": f"{1e6 * used_s / calls:.0f} us",
        f"{name}: memory above the start": f"{most_mb:.0f} MB",
        f"{name}: neighbour, p99 and longest of {len(delays)}": f"{1e3 * p99(delays):.0f}, {1e3 * max(delays):.0f} ms",
    }


@case(headers=10_000, open_s=5.0, resets=50_000)
def grpc_peers(options: argparse.Namespace) -> None:
    os.environ["GRPC_VERBOSITY"] = "NONE"
    figures = beside("headers", lambda address: hold_headers(address, options.headers, options.open_s))
    figures |= beside("resets", lambda address: reset(address, options.resets))
    report(figures, [], as_json=options.json)
