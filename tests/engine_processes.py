"""Engine processes that are none: a link without a socket, a program that does not run, a scripted end of a socket."""

import asyncio
import os
import socket
from typing import Any

from service.answer_pace import AnswerPace
from service.edge.admission.tenant_paces import TenantPaces
from service.edge.admission.tenant_shares import TenantShares
from service.edge.models.child_process import Progress
from service.errors import StartupError
from service.machine.execution_choice import ExecutionChoice
from service.wire.channel import receive, send
from service.wire.messages import Beat, Opened, State, decode_to_engine, encode

WITHIN_S = 60  # for what must happen, on a loaded machine
CHOICE = ExecutionChoice("CPUExecutionProvider", "cpu", False, "", "fp32")
DIGEST = "ab" * 32


def opened(**changes):
    fields = {"bundle_sha256": DIGEST, "choice": CHOICE, "engines": 1, "is_batch_invariant": True}
    return Opened(**{**fields, **changes})


def state(**changes):
    fields = {"rows": 0, "queued": 0, "kv_ratio": 0.0, "heartbeat_s": 0.0, "is_healthy": True, "has_lost_device": False}
    return State(**{**fields, **changes})


def beat(*states, **changes):
    fields = {"measurements": [], "memory": {}, "cpu_s": 0.0, "resident_bytes": 0}
    return Beat(states=list(states), **{**fields, **changes})


class FakeChild:
    """A program that does not run. shown: what the system shows of it."""

    def __init__(self, pid=4711):
        self.pid, self.was_killed, self.is_waited_for = pid, False, False
        self.shown = Progress("S", 0)

    def progress(self):
        return self.shown

    def kill(self):
        self.was_killed = True

    async def wait(self, timeout_s):
        self.is_waited_for = True
        return "killed by SIGKILL" if self.was_killed else "exit status 1"


class FakeLink:
    """An `EngineLink` to nobody. Opens with `outcome`: an Opened, a StartupError, or nothing until a test opens it."""

    def __init__(self, name, outcome=None):
        loop = asyncio.get_running_loop()
        self.name, self.child = name, FakeChild()
        self.receivers, self.requests, self.cancelled = {}, [], []
        self.pace, self.beat, self.heard_s = AnswerPace(loop.time()), None, loop.time()
        self.shares, self.tenant_paces = TenantShares(0.5), TenantPaces(self.pace)
        self.end_reason, self.ended, self.is_asked_to_close = None, asyncio.Event(), False
        self.opening = loop.create_future()
        if outcome is not None:
            self.open(outcome)

    def open(self, outcome):
        if isinstance(outcome, StartupError):
            self.opening.set_exception(outcome)
            self.opening.exception()
        else:
            self.opening.set_result(outcome)

    @property
    def is_open(self):
        return self.end_reason is None and self.opening.done() and not self.opening.exception()

    @property
    def engines(self):
        return self.opening.result().engines if self.is_open else 0

    async def wait_opened(self, timeout_s):
        return await asyncio.shield(self.opening)

    def submit(self, ticket, request, sink):
        self.receivers[ticket] = sink
        self.shares.enter(request.caller)
        self.requests.append(request)

    def answers(self):
        """The end of the request that it got last."""
        self.receivers.popitem()
        self.shares.leave(self.requests[-1].caller)

    def cancel(self, ticket):
        self.cancelled.append(ticket)

    def close(self):
        self.is_asked_to_close = True
        self.end("exited")

    def end(self, reason):
        if self.end_reason is None:
            self.end_reason = reason
            if reason not in ("exited", "closed"):
                self.child.kill()
            self.ended.set()

    def dies(self):
        """What SIGKILL does."""
        self.child.was_killed = True
        self.end("exited")

    def beats(self, *states):
        """A message, now."""
        self.beat, self.heard_s = beat(*states), asyncio.get_running_loop().time()


class FakeStart:
    """Starts fake links, whose outcomes are those given, then `opened()`. calls: (time, place, digest)."""

    def __init__(self, *outcomes):
        self.outcomes, self.calls, self.links = list(outcomes), [], []

    def __call__(self, place, digest):
        self.calls.append((asyncio.get_running_loop().time(), place, digest))
        outcome = self.outcomes.pop(0) if self.outcomes else opened()
        if outcome == "no start":
            raise StartupError("its engine process cannot be started; fix: free memory")
        self.links.append(FakeLink(f"m-{place}", None if outcome == "waits" else outcome))
        return self.links[-1]


class ScriptedPeer:
    """The engines' end of a link's connection; a test says what it sends."""

    def __init__(self):
        self.child = FakeChild()
        self.arguments: tuple[Any, ...] = ()

    def start_child(self, name, module, arguments, files, environment):
        self.arguments = (name, module, arguments, files)
        self.end = socket.socket(fileno=os.dup(files[0]))
        self.end.setblocking(False)
        return self.child

    def send(self, *messages):
        for message in messages:
            send(self.end, encode(message))

    async def received(self):
        """The next message of the edge."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    return decode_to_engine(receive(self.end))
                except BlockingIOError:
                    readable = asyncio.Event()
                    loop.add_reader(self.end, readable.set)
                    await readable.wait()
                    loop.remove_reader(self.end)

    def close(self):
        self.end.close()
