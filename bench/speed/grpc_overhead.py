"""Processor time of a server's edge process for each request, of one checkout or several, and of gRPC alone.

All checkouts serve a bundle concurrently and are asked in random order; a bare service of grpc.aio, which parses the
same messages and answers them at once, is asked beside them. The client writes HTTP/2 frames itself. What counts is the
processor time of the edge process, without its engines: of its main thread, which runs the event loop, and of all.

    unary    closed loop of --callers callers
    batch    all requests as items of one TranslateBatch call, for each item

CHECKOUT: a directory with its stubs generated, such as one that `git worktree add` made.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.load.calls import UNARY
from bench.load.lean_client import LeanConnection, closed_loop
from bench.load.peer_server import glossa_server
from bench.measure import Spread, report
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb

BATCH = f"{UNARY}Batch"
BARE = "grpc.aio alone"
ITEMS = 1000  # of a batch: what one message may have


class Side(NamedTuple):
    """A server that is measured. pid: of its edge process."""

    name: str
    pid: int
    connection: LeanConnection


def used_s(pid: int) -> tuple[float, float]:
    """Processor time of a process's main thread, and of all its threads (proc(5), schedstat)."""
    tasks = Path(f"/proc/{pid}/task").glob("*")
    spent = {int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}
    return spent[pid], sum(spent.values())


async def _bare(ready: Connection) -> None:
    """A service that answers each request with the same response, as gRPC for Python does it by itself."""
    import grpc

    answer = pb.TranslateResponse(text="eine kleine Antwort", finish_reason=pb.FINISH_REASON_LENGTH)

    async def translate(_request: pb.TranslateRequest, context: Any) -> pb.TranslateResponse:
        context.set_trailing_metadata((("x-request-id", "0123456789abcdef"),))
        return answer

    handler = grpc.unary_unary_rpc_method_handler(
        translate, pb.TranslateRequest.FromString, pb.TranslateResponse.SerializeToString
    )
    server = grpc.aio.server()
    service, _, method = UNARY[1:].partition("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    ready.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()


def _serve_bare(ready: Connection) -> None:
    asyncio.run(_bare(ready))


@contextmanager
def bare_server() -> Iterator[tuple[str, int]]:
    """The address and the process id of a service without Glossa."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_bare, args=(theirs,), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield f"127.0.0.1:{ours.recv()}", process.pid
    finally:
        process.terminate()
        process.join()


@case(
    checkouts=Flag([], type=Path, positional=True),
    bundle=Flag(type=Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    callers=64,
    seconds=1.0,
    rounds=10,
    max_tokens=4,
)
def grpc_overhead(options: argparse.Namespace) -> None:
    texts = [source for source, _ in sentence_pairs(options.data, 64)]
    decoding = pb.DecodingOptions(max_tokens=options.max_tokens)
    requests = [pb.TranslateRequest(text=text, options=decoding) for text in texts]
    messages = [request.SerializeToString() for request in requests]
    items = [pb.TranslateBatchItem(request=requests[place % len(requests)]) for place in range(ITEMS)]
    batch = pb.TranslateBatchRequest(items=items).SerializeToString()
    draw, spent = random.Random(1), dict[str, list[float]]()

    def measured(side: Side, mode: str) -> None:
        before = used_s(side.pid)
        if mode == "unary":
            count = len(closed_loop([side.connection], UNARY, messages, options.callers, options.seconds))
        else:
            side.connection.call(BATCH, [batch])
            count = ITEMS
        for part, one, other in zip(("event loop", "edge"), before, used_s(side.pid), strict=True):
            spent.setdefault(f"{mode}, {part}, us, {side.name}", []).append(1e6 * (other - one) / count)

    with ExitStack() as stack:
        sides = []
        for checkout in options.checkouts:
            server = glossa_server(options.bundle.resolve(), checkout=checkout.resolve())
            address, pid = stack.enter_context(server)
            sides.append(Side(str(checkout), pid, stack.enter_context(LeanConnection(address))))
        address, pid = stack.enter_context(bare_server())
        sides.append(Side(BARE, pid, stack.enter_context(LeanConnection(address))))
        for number in range(-1, options.rounds):
            if not number:
                spent.clear()
            for side in draw.sample(sides, len(sides)):
                for other in sides:
                    other.connection.answer_pings()
                measured(side, "unary")
                if side.name != BARE:
                    measured(side, "batch")
    report({name: Spread.of(figures) for name, figures in sorted(spent.items())}, [], as_json=options.json)
