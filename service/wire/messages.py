"""What the edge and an engine process say to each other: typed messages, and their bytes.

msgspec instead of pickle, for three reasons. What an engine process sends is data: a process that a hostile bundle took
over cannot make the edge run code. Every message is checked against its type. And it takes 2 to 4 times less processor
time (0.22.0, Zen 3): a request 2 + 6 instead of 8 + 14 microseconds to write and read, an answer 1 + 4 instead of
10 + 11, the deltas of a turn of 32 rows 4 + 11 instead of 31 + 17.

Two programs that differ in VERSION do not understand each other; `Start` and `Opened` carry it.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

import msgspec
import numpy as np

from service.errors import ERRORS, InternalFailure, RequestError
from service.machine.execution_choice import ExecutionChoice
from service.measurements import Measurement
from service.progress import Progress
from service.request import Event, Finished, Request, TextDelta
from service.settings.engine_settings import EngineSettings

VERSION = 9
MAX_MESSAGE_BYTES = (1 << 28) + (1 << 26)  # all attention that one request may ask for, and 64 MiB for the rest of it
_ARRAY = 1  # extension type of float32 arrays

Data = bytes | mmap.mmap
"""The bytes of a message. Arrays of a large one stay views of it."""


log = logging.getLogger(__name__)


class WireError(Exception):
    """The other side sent what is not a message, or one of another version."""


class Start(msgspec.Struct, array_like=True, tag=1, kw_only=True):
    """The first message to an engine process: what to open.

    program: the version of Glossa. first_engine: the place of its engines in the table of busy engines.
    bundle_sha256: of the manifest that is served already, so that a restart cannot change the model; empty: any.
    checks_batches: whether to find out if answers depend on their batch; on one machine, one process of a model does.
    """

    version: int = VERSION
    program: str
    model: str
    path: str
    settings: EngineSettings
    first_engine: int
    bundle_sha256: str = ""
    checks_batches: bool = True


class Work(msgspec.Struct, array_like=True, tag=2):
    """New requests and cancellations of one turn of the event loop, each by ticket."""

    requests: list[tuple[int, Request]]
    cancels: list[int]


class Close(msgspec.Struct, array_like=True, tag=3):
    """Ends unfinished requests with ShuttingDown, and then the process."""


class Failure(msgspec.Struct, array_like=True):
    """A RequestError. reason: that of its class. fields: its attributes but `progress`."""

    reason: str
    message: str
    fields: dict[str, str | int | float | tuple[str, ...]]
    progress: Progress | None = None


class State(msgspec.Struct, array_like=True):
    """The state of one engine; see `Snapshot` and `Engine`."""

    rows: int
    queued: int
    kv_ratio: float
    heartbeat_s: float
    is_healthy: bool
    has_lost_device: bool
    hypotheses: int = 0
    kv_reserved_bytes: int = 0
    kv_limit_bytes: int = 0
    kv_used_bytes: int = 0


class Opened(msgspec.Struct, array_like=True, tag=4, kw_only=True):
    """The bundle is open, the golden decode is right, and requests are accepted."""

    version: int = VERSION
    bundle_sha256: str
    choice: ExecutionChoice
    engines: int
    is_batch_invariant: bool


class Refused(msgspec.Struct, array_like=True, tag=5):
    """The process cannot serve, for a reason that is safe to show; it ends."""

    message: str


class Turn(msgspec.Struct, array_like=True, tag=6):
    """The events and measurements of one turn of one engine, or a part. Deltas come before the ends of a message."""

    engine: int
    state: State
    deltas: list[tuple[int, TextDelta]]
    ends: list[tuple[int, Finished]]
    failures: list[tuple[int, Failure]]
    measurements: list[Measurement]


class Rejected(msgspec.Struct, array_like=True, tag=7):
    """A request that no engine accepted."""

    ticket: int
    failure: Failure


class Beat(msgspec.Struct, array_like=True, tag=8, kw_only=True):
    """The process lives. memory: bytes by kind. cpu_s: processor time used so far. resident_bytes: of the process."""

    states: list[State]
    measurements: list[Measurement]
    memory: dict[str, int]
    cpu_s: float
    resident_bytes: int


class Log(msgspec.Struct, array_like=True, tag=9):
    """A line for the server's log. exception: its traceback, or empty."""

    level: int
    logger: str
    text: str
    exception: str


ToEngine = Start | Work | Close
FromEngine = Opened | Refused | Turn | Rejected | Beat | Log


def encode(message: ToEngine | FromEngine) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def decode_to_engine(data: Data) -> ToEngine:
    """A message of the edge. Raises WireError."""
    message: ToEngine = _decode(_TO_ENGINE, data)
    return message


def decode_from_engine(data: Data) -> FromEngine:
    """A message of an engine process. Raises WireError."""
    message: FromEngine = _decode(_FROM_ENGINE, data)
    return message


def encode_finished(finished: Finished) -> bytes:
    """The bytes of an answer alone, as they are kept."""
    return _ENCODER.encode(finished)


def encode_plain(value: Any) -> bytes:
    """The bytes of plain data, the same for the same data: mappings in their order."""
    return _ENCODER.encode(value)


def decode_finished(data: bytes) -> Finished:
    """The answer of these bytes."""
    return _FINISHED.decode(data)


def failure_of(error: RequestError) -> Failure:
    """An error as data."""
    fields = {name: vars(error)[name] for name in _FIELDS[type(error)].__struct_fields__}
    return Failure(error.reason, error.args[0], fields, error.progress)


def error_of(failure: Failure) -> RequestError:
    """The error that `failure_of` was given. Raises WireError for an unknown class, and for fields that are not its."""
    kind = ERRORS.get(failure.reason)
    if kind is None:
        raise WireError(f"unknown reason of an error: {failure.reason[:80]!r}")
    try:
        fields = msgspec.convert(failure.fields, _FIELDS[kind])
    except msgspec.ValidationError as problem:
        raise WireError(f"not the fields of {kind.__name__}: {problem}") from None
    error = kind.__new__(kind, failure.message)
    vars(error).update(msgspec.structs.asdict(fields))
    if failure.progress is not None:
        error.progress = failure.progress
    return error


def split_events(events: list[tuple[int, Event]]) -> tuple[list[Any], list[Any], list[Any]]:
    """Deltas, ends and failures, each with its ticket. A turn has no event of a request after its end."""
    deltas: list[tuple[int, TextDelta]] = []
    ends: list[tuple[int, Finished]] = []
    failures: list[tuple[int, Failure]] = []
    for ticket, event in events:
        if type(event) is TextDelta:
            deltas.append((ticket, event))
        elif type(event) is Finished:
            ends.append((ticket, event))
        else:
            assert isinstance(event, RequestError)
            failures.append((ticket, failure_of(event)))
    return deltas, ends, failures


def turn_messages(turn: Turn, events: list[tuple[int, Event]], names: Mapping[int, str]) -> Iterator[bytes]:
    """The bytes of a turn with these events: one message, or several where one would have more than MAX_MESSAGE_BYTES.
    An answer that needs more by itself becomes an InternalFailure. turn: without events; the first message has its
    measurements. names: the request ids of the ends, by ticket.
    """
    deltas, ends, failures = split_events(events)
    data = encode(Turn(turn.engine, turn.state, deltas, ends, failures, turn.measurements))
    if (size := len(data)) <= MAX_MESSAGE_BYTES:
        yield data
        return
    del data  # it may be large: halves are encoded without it
    rest = Turn(turn.engine, turn.state, [], [], [], [])
    if (half := len(events) // 2) > 0:
        yield from turn_messages(turn, events[:half], names)
        yield from turn_messages(rest, events[half:], names)
        return
    ((ticket, event),) = events
    assert type(event) is Finished, f"{type(event).__name__} and measurements of {size} bytes"
    name = names[ticket]
    log.error("request %s: its answer has %d bytes, at most %d can be sent", name, size, MAX_MESSAGE_BYTES)
    yield from turn_messages(turn, [(ticket, InternalFailure(name))], names)


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: Data) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError, AssertionError) as error:  # a Request asserts its fields
        raise WireError(f"not a message: {error}") from None


def _from_array(value: Any) -> Any:
    """float32 arrays only: all that engines report."""
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"{type(value)} cannot be sent")
    assert value.dtype == np.float32, value.dtype
    return [value.shape, msgspec.msgpack.Ext(_ARRAY, np.ascontiguousarray(value).reshape(-1).data.cast("B"))]


def _to_array(kind: type[Any], value: Any) -> Any:
    assert kind is np.ndarray
    match value:
        case [list(shape), memoryview() as data] if all(isinstance(size, int) and size >= 0 for size in shape):
            return np.frombuffer(data, np.float32).reshape(shape)
    raise ValueError("not an array")


def _extension(code: int, data: memoryview) -> memoryview:
    if code != _ARRAY:
        raise ValueError(f"unknown extension type {code}")
    return data


def _fields(kind: type[RequestError]) -> type[msgspec.Struct]:
    """The fields of an error, as a type to check them by."""
    own = [(name, hint) for name, hint in get_type_hints(kind).items() if name not in get_type_hints(RequestError)]
    return msgspec.defstruct(kind.__name__, own, forbid_unknown_fields=True)


_FIELDS = {kind: _fields(kind) for kind in ERRORS.values()}
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_from_array)
_TO_ENGINE = msgspec.msgpack.Decoder(ToEngine, dec_hook=_to_array, ext_hook=_extension)
_FINISHED = msgspec.msgpack.Decoder(Finished, dec_hook=_to_array, ext_hook=_extension)
_FROM_ENGINE = msgspec.msgpack.Decoder(FromEngine, dec_hook=_to_array, ext_hook=_extension)
