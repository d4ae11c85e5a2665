"""Messages that no honest client sends, over the wire to every method, health and reflection included.

Every scalar field of every request, those of nested messages too, gets hostile values of its type: NaN, infinities,
negative zero, a denormal, -1, 0, least and largest, one that does not fit, huge text, NUL, bytes that are no UTF-8, an
unknown enum value. The fields come from the descriptors, so a new one is included. The rest of the messages are such
ones with random damage, or random bytes. They come in a closed loop; every answer must have a declared status.

Shown are the statuses, how long the event loop was away (the longest answer of a health check that is asked every few
milliseconds), and the edge's memory.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import math
import multiprocessing
import random
import select
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from bench.case import Flag, case
from bench.hostile.hostile_peers import Memory
from bench.load.lean_client import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    RST_STREAM,
    CallFailed,
    LeanConnection,
    frame,
)
from bench.load.open_loop import p99
from bench.load.peer_server import glossa_server
from bench.load.status_connection import NAMES, STATUS, number_of
from bench.measure import Verdict, report
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb

HEALTH, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = [f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")]
DECLARED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
CANCEL = struct.pack(">I", 8)
CONNECTIONS, CALLERS = 8, 32
MOST_MB, MOST_MS = 64.0, 20.0
HUGE = 200_000
RESET = "RST_STREAM"

_FLOATS = {FieldDescriptor.TYPE_FLOAT: ("<f", 5), FieldDescriptor.TYPE_DOUBLE: ("<d", 1)}
_LARGEST = {FieldDescriptor.TYPE_FLOAT: 3.4028234e38, FieldDescriptor.TYPE_DOUBLE: sys.float_info.max}
_BYTES = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
TEXTS = (b"", b"\0", b"a\0b", b"x" * HUGE, b"\xed\xa0\x80", b"\xff\xfe", "\u202e\ufeff\U0010ffff".encode())


class Message(NamedTuple):
    """What is sent, to which method."""

    path: str
    data: bytes


def varint(value: int) -> bytes:
    """Of an integer, negative ones in 64 bits."""
    value, found = value % (1 << 64), b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def field(number: int, kind: int, data: bytes) -> bytes:
    """A field on the wire. kind: its wire type; a length is added where it needs one."""
    return varint(number << 3 | kind) + (varint(len(data)) if kind == 2 else b"") + data


def hostile_values(scalar: FieldDescriptor) -> list[bytes]:
    """The field with each hostile value of its type, on the wire."""
    kind, number = scalar.type, scalar.number
    if kind in _BYTES:
        return [field(number, 2, text) for text in TEXTS]
    if kind in _FLOATS:
        form, wire = _FLOATS[kind]
        most = _LARGEST[kind]
        values = (math.nan, math.inf, -math.inf, -0.0, 1e-42, -1.0, 0.0, most, -most)
        return [field(number, wire, struct.pack(form, value)) for value in values]
    integers = [-1, 0, 1, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**63 - 1, -(2**63), 2**64 - 1, 999]
    return [field(number, 0, varint(value)) for value in integers]


def scalars(message: Any, outside: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], FieldDescriptor]]:
    """Scalar fields of a message and of those in it: numbers of the fields around each, and the field."""
    for each in message.fields:
        if each.message_type is None:
            yield outside, each
        elif len(outside) < 4:
            yield from scalars(each.message_type, (*outside, each.number))


def matrix(base: Message, message: Any) -> Iterator[Message]:
    """A valid message with every scalar field set to every hostile value: of a field twice in it, the last counts."""
    for outside, scalar in scalars(message):
        for data in hostile_values(scalar):
            for number in reversed(outside):
                data = field(number, 2, data)
            yield Message(base.path, base.data + data)


def damaged(message: Message, rng: random.Random) -> Message:
    """The message with some bits flipped, cut, repeated or replaced."""
    data = bytearray(message.data[:4096])
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                data += data[at : at + 16]
            case _:
                data = bytearray(rng.randbytes(rng.randint(0, 64)))
    return Message(message.path, bytes(data))


def bases(text: str) -> list[tuple[Message, Any]]:
    """A valid message for each method of the API, with its descriptor."""
    found = []
    options = pb.DecodingOptions(max_tokens=2)
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            kind = method.input_type
            given = {"text": text, "target": text, "options": options}
            message = getattr(pb, kind.name)(**{name: given[name] for name in given if name in kind.fields_by_name})
            found.append((Message(f"/{service.full_name}/{method.name}", message.SerializeToString()), kind))
    return found


def messages(text: str, count: int, seed: int) -> list[Message]:
    """The whole matrix, and damaged messages up to `count`, in random order."""
    rng, valid = random.Random(seed), bases(text)
    found = [message for base, kind in valid for message in matrix(base, kind)]
    others = [Message(path, b"\x0a\x04name") for path in (HEALTH, WATCH)]
    others += [Message(path, data) for path in REFLECTION for data in (b"\x3a\x00", b"\x22\x08glossa.v1")]
    sources = [*(base for base, _ in valid), *others, *found]
    by_path = {path: [each for each in sources if each.path == path] for path in {each.path for each in sources}}
    paths = sorted(by_path)
    while len(found) < count:
        found.append(damaged(rng.choice(by_path[rng.choice(paths)]), rng))
    rng.shuffle(found)
    return found


class StatusConnection(LeanConnection):
    """Calls whose statuses count. The server may not compress headers by a table."""

    settings = LeanConnection.settings + struct.pack(">HI", HEADER_TABLE_SIZE, 0)

    def begin(self, key: int, message: Message) -> None:
        self.start(message.path, [(key, message.data)])

    def statuses(self, all_messages: list[Message]) -> list[tuple[int, str]]:
        """(key, status) of the calls that have ended with what came. Watching ends with its first answer."""
        found = []
        for kind, flags, stream, payload in self.frames():
            if kind == GOAWAY:
                raise CallFailed(f"the server ended the connection: {payload!r}")
            if stream not in self._keys:
                continue
            status = ""
            if kind == RST_STREAM:
                status = RESET
            elif kind == HEADERS and flags & END_STREAM:
                number = number_of(payload, STATUS)
                assert number is not None, payload
                status = NAMES[number]
            elif kind == DATA and all_messages[self._keys[stream]].path == WATCH:
                status = "OK"
                self.send(frame(RST_STREAM, 0, stream, CANCEL))
            if status:
                del self._bodies[stream]
                found.append((self._keys.pop(stream), status))
        return found


def send_all(address: str, asked: list[Message]) -> list[str]:
    """Sends all messages in a closed loop. Returns their statuses."""
    found, places = [""] * len(asked), itertools.count()
    connections = [StatusConnection(address) for _ in range(CONNECTIONS)]
    by_file, poll, left = {each.fileno(): each for each in connections}, select.poll(), len(asked)

    def begin(connection: StatusConnection) -> None:
        if (place := next(places)) < len(asked):
            connection.begin(place, asked[place])

    for connection in connections:
        connection.call(HEALTH, [b""])  # the server's windows are known then: large messages may be among the first
        poll.register(connection, select.POLLIN)
        for _ in range(CALLERS // CONNECTIONS):
            begin(connection)
    while left:
        for file, _ in poll.poll():
            for place, status in by_file[file].statuses(asked):
                found[place], left = status, left - 1
                begin(by_file[file])
    for connection in connections:
        connection.close()
    return found


def check_health(address: str, pipe: Any) -> None:
    """In a process of its own: seconds of each answer."""
    found = []
    with LeanConnection(address) as connection:
        while not pipe.poll(0.003):
            began_s = time.perf_counter()
            connection.call(HEALTH, [b""])
            found.append(time.perf_counter() - began_s)
    pipe.send(found)


def measure(address: str, pid: int, asked: list[Message]) -> tuple[dict[str, Any], list[Verdict]]:
    """Sends the messages, with health checks beside them."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    checks = context.Process(target=check_health, args=(address, other), daemon=True)
    checks.start()
    other.close()  # so that its end without a word ends the wait for one
    memory = Memory(pid)
    before_mb, began_s = memory.now_mb(), time.monotonic()
    memory.start()
    statuses = send_all(address, asked)
    seconds = time.monotonic() - began_s
    memory.stop()
    pipe.send(None)
    delays = pipe.recv()
    checks.join()
    most_mb = max((mb for _, mb in memory.found), default=before_mb) - before_mb
    counts = collections.Counter(statuses)
    wrong = collections.Counter(
        f"{message.path} {status}" for message, status in zip(asked, statuses, strict=True) if status not in DECLARED
    )
    figures = {
        "messages": f"{len(asked)} to {len({message.path for message in asked})} methods in {seconds:.1f} s",
        "statuses": ", ".join(f"{count} {name}" for name, count in counts.most_common()),
        "p99 of health checks": f"{1e3 * p99(delays):.1f} ms",
        **{f"not declared: {name}": count for name, count in wrong.most_common()},
    }
    longest_ms = round(1e3 * max(delays, default=0.0), 1)
    return figures, [
        Verdict("answers without a declared status", wrong.total(), 0, "", is_limit=True),
        Verdict("UNKNOWN and INTERNAL", counts["UNKNOWN"] + counts["INTERNAL"], 0, "", is_limit=True),
        Verdict("longest answer of a health check", longest_ms, MOST_MS, "ms", is_limit=True),
        Verdict("memory above the start", round(most_mb, 1), MOST_MB, "MB", is_limit=True),
    ]


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    messages=Flag(50_000, "in all; at least every scalar field with every hostile value"),
    seed=0,
)
def hostile_messages(options: argparse.Namespace) -> None:
    text = next(source for source, _ in sentence_pairs(options.data, 1))
    asked = messages(text, options.messages, options.seed)
    flags = ["--engines", "1", "--default-deadline-s", "5"]
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "log")
        with glossa_server(options.bundle.resolve(), flags=flags, log=log) as (address, pid):
            figures, verdicts = measure(address, pid, asked)
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
