"""Clients that hold on to a server: what they cost its memory and a neighbour, and how soon they are closed.

One server, with short time limits, serves a neighbour that asks for a short translation again and again. Meanwhile
come, one kind after the other:

- headers: streams of headers without a message, opened over some seconds, at most 256 on each connection
- resets: one connection that opens streams and resets them at once, for as long as it is not closed
- readers: streams whose clients open no window, and so read no message; they answer pings
- half-open: connections whose peers have vanished; a socket filter drops all that comes to them, acknowledgements are
  not sent
- tarpits: connections whose kernel acknowledges everything while nobody reads or answers pings

Shown are the neighbour's delay and the edge's memory while each kind is there, and the seconds until the server has
ended the last of them, beside the bound that its settings state.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import select
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.load.lean_client import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MESSAGE_HEADER,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    CallFailed,
    LeanConnection,
    frame,
    request_headers,
)
from bench.load.open_loop import p99
from bench.load.peer_server import glossa_server, http_address
from bench.measure import Verdict, report
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb

UNARY, STREAM = (f"/glossa.v1.TranslationService/{name}" for name in ("Translate", "StreamTranslate"))
STREAMS = 256  # on a connection
MESSAGE_S, STALL_S, KEEPALIVE_S, PING_S = 3.0, 3.0, 2.0, 1.0  # limits of the server
SLACK_S = 2.0  # until what a limit has ended is seen to have ended
BEFORE_S = 1.0  # of the neighbour alone
AFTER_S = 0.5  # that still belong to a kind: calls of the neighbour wait behind what it has left
MOST_MB, LEFT_MB, MOST_MS = 64.0, 32.0, 100.0
SETTLE_S = 2.0
NOTHING = struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)
CANCEL = struct.pack(">I", 8)
SO_ATTACH_FILTER, DROP = 26, struct.pack("=HBBI", 6, 0, 0, 0)  # socket(7); the program `ret 0` of classic BPF
ESTABLISHED = "01"


class Outcome(NamedTuple):
    """What came of one kind of peer. refused_to_end: how many the server had not ended within the bound."""

    ended_s: float
    bound_s: float
    refused_to_end: int


class Peers:
    """Connections to a server that write frames of their own. A thread reads what comes, unless they are silent."""

    def __init__(
        self, address: str, count: int, settings: bytes = b"", *, streams: Sequence[int] = (), silent: bool = False
    ) -> None:
        """settings: of each, in the HTTP/2 form. streams: on each, which end with their connection. silent: nothing is
        read, and no ping answered."""
        host, _, port = address.rpartition(":")
        hello = PREFACE + frame(SETTINGS, 0, 0, settings) + frame(SETTINGS, ACK, 0)
        self.ended = 0  # streams, with a status or with their connection
        self._streams = streams
        self._over, self._reader = threading.Event(), threading.Thread(target=self._read, daemon=True)
        self.sockets = []
        for _ in range(count):
            connection = socket.create_connection((host, int(port)), timeout=10)
            connection.sendall(hello)
            self.sockets.append(connection)
        if not silent:
            self._reader.start()

    def wait_for(self, count: int, until_s: float) -> int:
        """Returns how many streams have ended, once it is `count` or it is `until_s`."""
        while self.ended < count and time.monotonic() < until_s:
            time.sleep(0.02)
        return self.ended

    def _read(self) -> None:
        parts = {connection.fileno(): (connection, bytearray()) for connection in self.sockets}
        left = dict(zip(parts, self._streams, strict=False))
        poll = select.poll()
        for file in parts:
            poll.register(file, select.POLLIN)
        while not self._over.is_set():
            for file, _ in poll.poll(50):
                connection, received = parts[file]
                with contextlib.suppress(OSError):
                    if chunk := connection.recv(1 << 18):
                        received += chunk
                        ended, pings = read_frames(received)
                        self.ended += ended
                        if file in left:
                            left[file] -= ended
                        if pings:
                            connection.sendall(b"".join(frame(PING, ACK, 0, ping) for ping in pings))
                        continue
                poll.unregister(file)  # the server has closed it
                self.ended += left.pop(file, 0)

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._reader.is_alive():
            self._reader.join()
        for connection in self.sockets:
            connection.close()


def read_frames(received: bytearray) -> tuple[int, list[bytes]]:
    """Streams that end with a status in these frames, and the pings to be answered. Removes whole frames."""
    at, ended, pings = 0, 0, []
    while len(received) - at >= FRAME_HEADER:
        high, low, kind, flags = struct.unpack_from(">BHBB", received, at)
        end = at + FRAME_HEADER + (high << 16) + low
        if end > len(received):
            break
        ended += kind == HEADERS and bool(flags & END_STREAM)
        if kind == PING and not flags & ACK:
            pings.append(bytes(received[at + FRAME_HEADER : end]))
        at = end
    del received[:at]
    return ended, pings


def open_headers(address: str, count: int, seconds: float) -> Outcome:
    """Streams of headers. All of them end, with a status or with their connection."""
    numbers = [min(STREAMS, count - first) for first in range(0, count, STREAMS)]
    with Peers(address, len(numbers), streams=numbers) as peers:
        send_headers(peers, numbers, seconds)
        opened_s = time.monotonic()
        found = peers.wait_for(count, opened_s + MESSAGE_S + SLACK_S)
        return Outcome(time.monotonic() - opened_s, MESSAGE_S + SLACK_S, count - found)


def send_headers(peers: Peers, numbers: Sequence[int], seconds: float) -> None:
    """Opens so many streams on each connection, one connection after the other."""
    headers = request_headers(UNARY, "localhost")
    for number, connection in zip(numbers, peers.sockets, strict=True):
        streams = range(1, 2 * number, 2)
        with contextlib.suppress(OSError):  # the server has closed it
            connection.sendall(b"".join(frame(HEADERS, END_HEADERS, stream, headers) for stream in streams))
        time.sleep(seconds / len(numbers))


def reset(address: str, count: int) -> Outcome:
    """One connection, which the server closes."""
    headers, began_s = request_headers(UNARY, "localhost"), time.monotonic()
    with LeanConnection(address) as connection:
        reader = threading.Thread(target=_read_all, args=(connection,))
        reader.start()
        with contextlib.suppress(OSError):
            for first in range(1, 2 * count, 200):
                streams = range(first, min(first + 200, 2 * count), 2)
                connection.send(
                    b"".join(
                        frame(HEADERS, END_HEADERS, stream, headers) + frame(RST_STREAM, 0, stream, CANCEL)
                        for stream in streams
                    )
                )
        reader.join(SLACK_S)
        ended_s, is_open = time.monotonic() - began_s, reader.is_alive()
        connection.shut_down()
        reader.join()
    return Outcome(ended_s, SLACK_S, int(is_open))


def _read_all(connection: LeanConnection) -> None:
    with contextlib.suppress(CallFailed, OSError):
        while True:
            connection.frames()


def read_nothing(address: str, count: int, message: bytes, ended: Callable[[], float]) -> Outcome:
    """Streams without a window. The server ends them; once they read, they get their status."""
    before, began_s = ended(), time.monotonic()
    call = frame(HEADERS, END_HEADERS, 1, request_headers(STREAM, "localhost"))
    call += frame(DATA, END_STREAM, 1, MESSAGE_HEADER.pack(False, len(message)) + message)
    with Peers(address, count, NOTHING) as peers:
        for connection in peers.sockets:
            connection.sendall(call)
        bound_s = STALL_S + SLACK_S
        while ended() - before < count and time.monotonic() - began_s < bound_s:
            time.sleep(0.05)
        ended_s = time.monotonic() - began_s
        for connection in peers.sockets:
            connection.sendall(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1 << 30)))
        return Outcome(ended_s, bound_s, count - peers.wait_for(count, time.monotonic() + SLACK_S))


def fall_silent(address: str, count: int, *, acknowledges: bool) -> Outcome:
    """Connections that answer nothing. acknowledges: but their kernel does."""
    port, began_s = int(address.rpartition(":")[2]), time.monotonic()
    with Peers(address, count, silent=True) as peers:
        mine = {connection.getsockname()[1] for connection in peers.sockets}
        if not acknowledges:
            for connection in peers.sockets:
                drop_all(connection)
        bound_s = KEEPALIVE_S + PING_S + SLACK_S
        while (left := len(mine & connected(port))) and time.monotonic() - began_s < bound_s:
            time.sleep(0.05)
        return Outcome(time.monotonic() - began_s, bound_s, left)


def drop_all(connection: socket.socket) -> None:
    """From now on the kernel drops what comes to this socket, unseen and not acknowledged."""
    program = ctypes.create_string_buffer(DROP, len(DROP))
    connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def connected(port: int) -> set[int]:
    """Ports of the peers of a local port's connections."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, remote, state, *_ = line.split()
            if state == ESTABLISHED and int(local.rpartition(":")[2], 16) == port:
                found.add(int(remote.rpartition(":")[2], 16))
    return found


def ask_for_ever(address: str, message: bytes, pipe: Any) -> None:
    """The neighbour, in a process of its own. A failed call counts as one of ten times MOST_MS.

    pipe: gets None after the first answer, and after a message from its other end the others: (when, seconds) of each.
    """
    found: list[tuple[float, float]] = []
    connection = LeanConnection(address)
    connection.call(UNARY, [message])
    pipe.send(None)
    while not pipe.poll(0.005):
        began_s = time.monotonic()
        try:
            connection.call(UNARY, [message])
            found.append((began_s, time.monotonic() - began_s))
        except (CallFailed, OSError):
            found.append((began_s, 10 * MOST_MS / 1000))
            connection = LeanConnection(address)
    pipe.send(found)


def delays_between(answers: Sequence[tuple[float, float]], began_s: float, over_s: float) -> list[float]:
    """Those of the neighbour's calls that were open at any time between two moments."""
    return [seconds for at_s, seconds in answers if began_s - seconds <= at_s < over_s]


class Memory(threading.Thread):
    """Samples the resident memory of a process: (when, MB)."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.found: list[tuple[float, float]] = []
        self._file, self._over = Path(f"/proc/{pid}/statm"), threading.Event()

    def now_mb(self) -> float:
        return int(self._file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def run(self) -> None:
        while not self._over.wait(0.02):
            self.found.append((time.monotonic(), self.now_mb()))

    def stop(self) -> None:
        self._over.set()
        self.join()


def stalled(http: str) -> float:
    """Streams that the server has ended because their clients read nothing."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    words = ("grpc_server_handled_total", '"DeadlineExceeded"', '"StreamTranslate"')
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(word in line for word in words))


def attacks(address: str, http: str, message: bytes, options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Each kind by name, to be run in this order."""
    yield "headers", lambda: open_headers(address, options.headers, options.open_s)
    yield "resets", lambda: reset(address, options.resets)
    yield "readers", lambda: read_nothing(address, options.readers, message, lambda: stalled(http))
    yield "half-open", lambda: fall_silent(address, options.half_open, acknowledges=False)
    yield "tarpits", lambda: fall_silent(address, options.tarpits, acknowledges=True)


def measure(
    address: str, http: str, pid: int, message: bytes, options: argparse.Namespace
) -> tuple[dict[str, Any], list[Verdict]]:
    """All kinds, with the neighbour beside them."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    neighbour = context.Process(target=ask_for_ever, args=(address, message, other), daemon=True)
    neighbour.start()
    other.close()  # so that its end without a word ends the wait for one
    pipe.recv()
    time.sleep(BEFORE_S)
    memory = Memory(pid)
    before_mb = memory.now_mb()
    memory.start()
    found: dict[str, tuple[float, float, Outcome]] = {}
    for name, attack in attacks(address, http, message, options):
        began_s = time.monotonic()
        outcome = attack()
        time.sleep(AFTER_S)
        found[name] = began_s, time.monotonic(), outcome
    time.sleep(SETTLE_S)
    memory.stop()
    pipe.send(None)
    answers = pipe.recv()
    neighbour.join()
    figures: dict[str, Any] = {"memory before": f"{before_mb:.0f} MB", "answers of the neighbour": len(answers)}
    verdicts = []
    for name, (began_s, over_s, outcome) in found.items():
        delays = delays_between(answers, began_s, over_s)
        most_mb = max((mb for at_s, mb in memory.found if began_s <= at_s < over_s), default=before_mb) - before_mb
        ended_s, bound_s = round(outcome.ended_s, 2), outcome.bound_s
        figures[f"{name}: longest of {len(delays)} answers of the neighbour"] = f"{1e3 * max(delays, default=0):.1f} ms"
        verdicts += [
            Verdict(f"{name}: not ended within the bound", outcome.refused_to_end, 0, "", is_limit=True),
            Verdict(f"{name}: until the last was ended", ended_s, bound_s, "s", is_limit=True),
            Verdict(f"{name}: p99 of the neighbour", round(1e3 * p99(delays), 1), MOST_MS, "ms", is_limit=True),
            Verdict(f"{name}: memory above the start", round(most_mb, 1), MOST_MB, "MB", is_limit=True),
        ]
    left_mb = round(memory.now_mb() - before_mb, 1)
    verdicts.append(Verdict("memory above the start, after all", left_mb, LEFT_MB, "MB", is_limit=True))
    return figures, verdicts


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    headers=Flag(10_000, "streams of headers without a message"),
    open_s=Flag(5.0, "seconds over which they are opened"),
    resets=Flag(50_000, "streams that are opened and reset at once"),
    readers=Flag(200, "streams whose clients read nothing"),
    half_open=Flag(50, "connections whose peers have vanished"),
    tarpits=Flag(50, "connections whose peers answer nothing"),
)
def hostile_peers(options: argparse.Namespace) -> None:
    text = next(source for source, _ in sentence_pairs(options.data, 1))
    message = pb.TranslateRequest(text=text, options=pb.DecodingOptions(max_tokens=4)).SerializeToString()
    flags = ["--engines", "1", "--max-concurrent-streams", str(STREAMS), "--max-requests", "1024", "--max-queue", "256"]
    limits = {"message-timeout-s": MESSAGE_S, "stall-timeout-s": STALL_S}
    limits |= {"keepalive-time-s": KEEPALIVE_S, "keepalive-timeout-s": PING_S}
    for name, seconds in limits.items():
        flags += [f"--{name}", str(seconds)]
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "log")
        with glossa_server(options.bundle.resolve(), flags=flags, log=log) as (
            address,
            pid,
        ):
            figures, verdicts = measure(address, http_address(log), pid, message, options)
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
