"""The log: one line per request and per event on stderr, JSON for machines, coloured text on a terminal.

A thread of its own writes the lines, and only when the pipe has room: neither a full pipe nor a reader that has stopped
delays anything but the log. Lines above a limit are dropped and counted. Not logging.handlers.QueueListener: it writes
line by line, and its stop() waits for a blocked reader without a limit. Texts of users are logged only with `log_text`,
metadata of clients never. gRPC's core writes to stderr by itself, so it is silenced.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, TextIO

ERROR, WARNING, INFO = logging.ERROR, logging.WARNING, logging.INFO
LOGGER = logging.getLogger("glossa")
COLOURS = {"WARNING": 33, "ERROR": 31, "CRITICAL": 31}
MAX_WAITING = 10_000  # lines, some 5 MB
CLOSE_S = 1.0  # for the waiting lines, at the end
ROOM_S = 0.05  # between two looks whether the process ends, while the pipe is full
STDERR = 2
GRPC_LINES_S = 10  # lines of gRPC's own a second: clients can cause any number of them
GATHER_S = 0.02  # for further lines, before one write: to write each by itself took an event loop 40 us a request more
_JSON = json.JSONEncoder(ensure_ascii=False, default=str)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, event, then the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if exception := _exception(self, record):
            line["exception"] = exception
        return _JSON.encode(line)


class PrettyFormatter(logging.Formatter):
    """For a terminal: time, event coloured by level, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = " ".join(
            f"\x1b[2m{key}=\x1b[0m{_plain(value)}" for key, value in getattr(record, "fields", {}).items()
        )
        event = f"\x1b[{COLOURS.get(record.levelname, 32)}m{_plain(record.getMessage())}\x1b[0m"
        exception = "\n".join(map(_plain, _exception(self, record).splitlines()))
        return f"{moment} {event} {fields}" + (f"\n{exception}" if exception else "")


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback of a record; one that comes from another process has text only."""
    return formatter.formatException(record.exc_info) if record.exc_info else record.exc_text or ""


def _plain(value: object) -> str:
    """A value without line ends and escape sequences, which could control the operator's terminal."""
    return str(value) if str(value).isprintable() else repr(value)


class LogWriter(logging.Handler):
    """Writes all log records from construction until `close`; records above MAX_WAITING are dropped and counted."""

    def __init__(self, style: Literal["auto", "json", "pretty"] = "auto", descriptor: int = STDERR) -> None:
        """descriptor: what the lines are written to; it stays the caller's."""
        super().__init__()
        self._descriptor = descriptor
        self.is_pretty = style == "pretty" or (style == "auto" and os.isatty(descriptor))
        self.setFormatter(PrettyFormatter() if self.is_pretty else JsonFormatter())
        self.addFilter(_GrpcLines())
        self.dropped = 0
        self._told = 0  # of these, how many the log has told of
        self._is_closed = False
        self._until_s = float("inf")  # when the rest is dropped
        self._is_closing = threading.Event()
        self._held = 0  # lines that are being written
        self._waiting: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()
        logging.getLogger().addHandler(self)  # libraries' warnings go to the same stream
        LOGGER.setLevel(logging.INFO)
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no line shows them

    def emit(self, record: logging.LogRecord) -> None:
        if self._waiting.qsize() + self._held < MAX_WAITING:
            self._waiting.put(record)
        else:
            self.dropped += 1

    @property
    def is_writing(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Writes the waiting lines, for at most CLOSE_S: a blocked reader must not keep the process alive."""
        logging.getLogger().removeHandler(self)
        if self._is_closed:  # logging closes all handlers once more at exit
            return
        self._is_closed = True
        self._until_s = time.monotonic() + CLOSE_S
        self._is_closing.set()
        self._waiting.put(None)
        self._thread.join(CLOSE_S + 10 * ROOM_S)
        super().close()

    def _write(self) -> None:
        is_open = True
        while is_open:
            records = self._take()
            is_open = records[-1] is not None
            lines = [self._line(record) for record in records if record is not None]
            if (lost := self.dropped - self._told) > 0:
                lines.insert(0, self._line(_record("log_lines_dropped", {"count": lost}, WARNING)))
            try:
                is_written = self._send(b"".join(lines))
            except OSError:  # the reader has gone: serving continues
                is_written = False
            if is_written:
                self._told += max(0, lost)
            else:
                self.dropped += len(lines) - (lost > 0)
            self._held = 0

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except Exception as error:  # a library's arguments that do not fit its text must not end this thread
            fields = {"logger": record.name, "text": str(record.msg), "problem": str(error)}
            text = self.format(_record("malformed_record", fields, WARNING))
        return text.encode(errors="replace") + b"\n"

    def _send(self, data: bytes) -> bool:
        """Writes when there is room, until it is time to end. Returns whether all is written."""
        at = 0
        while at < len(data):
            if self._room.poll(1000 * ROOM_S):  # then a pipe takes PIPE_BUF bytes at once
                at += os.write(self._descriptor, data[at : at + select.PIPE_BUF])
            elif time.monotonic() >= self._until_s:
                return False
        return True

    def _take(self) -> list[logging.LogRecord | None]:
        """All waiting records, at least one. Those of finished requests wait GATHER_S for others."""
        records = [self._waiting.get()]
        self._held = 1
        if records[0] is not None and records[0].levelno < WARNING:
            self._is_closing.wait(GATHER_S)
        while records[-1] is not None and not self._waiting.empty():
            self._held += 1  # before it leaves the queue: the sum of both is never too small
            records.append(self._waiting.get())
        return records


class _GrpcLines(logging.Filter):
    """Lines of gRPC for Python: a few of each second, and without what clients have sent. Of clients that have left
    there is one each second."""

    def __init__(self) -> None:
        super().__init__()
        self._count, self._suppressed, self._since_s, self._has_left = 0, 0, 0.0, False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged. gRPC logs on the event loop's thread."""
        if not record.name.startswith("grpc"):
            return True
        if record.created - self._since_s >= 1.0:
            self._count, self._since_s, self._has_left = 0, record.created, False
        has_left = "ExecuteBatchError" in str(record.msg)  # gRPC was writing an answer
        if self._count >= GRPC_LINES_S or (has_left and self._has_left):
            self._suppressed += 1
            return False
        self._count += 1
        if has_left:
            self._has_left = True
            record.msg, record.args = "a client left before its answer", ()
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.exc_info = record.exc_text = None
        if "encoding" in str(record.msg):  # of metadata, which it shows in full
            record.msg, record.args = "a client's metadata is not UTF-8", ()
            record.exc_info = record.exc_text = None
        record.fields = {"logger": record.name, "suppressed": self._suppressed}
        self._suppressed = 0
        return True


def silence_grpc() -> None:
    """Call it before the first import of grpc. Its core would write what clients send to stderr as it comes, and block
    when no one reads; its errors that matter are exceptions, too. Whoever looks for a defect in it sets it."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def take_over_stderr() -> None:
    """What Python prints to stderr by itself becomes lines of the log: warnings, and exceptions that no one can catch.
    A full pipe would block whoever causes them."""

    def failed(at: str) -> Callable[[Any], None]:
        def log(failure: Any) -> None:
            event("unhandled_error", {"at": at}, level=ERROR, exception=failure.exc_value)

        return log

    def warned(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        event("warning", {"warning": f"{category.__name__}: {message}", "at": f"{filename}:{lineno}"}, level=WARNING)

    sys.unraisablehook = failed("a destructor or a callback")
    threading.excepthook = failed("a thread")
    warnings.showwarning = warned


def event(
    name: str,
    fields: Mapping[str, object] | None = None,
    *,
    level: int = logging.INFO,
    exception: BaseException | None = None,
) -> None:
    """Logs one line: the event's name and its fields."""
    if LOGGER.isEnabledFor(level):
        LOGGER.handle(_record(name, fields or {}, level, exception))


def _record(
    name: str, fields: Mapping[str, object], level: int, exception: BaseException | None = None
) -> logging.LogRecord:
    # As LOGGER.log, without the search for the caller on the stack, which takes half the time.
    raised = (type(exception), exception, exception.__traceback__) if exception else None
    return LOGGER.makeRecord(LOGGER.name, level, "", 0, name, (), raised, extra={"fields": fields})


def forward(logger: str, level: int, text: str, fields: Mapping[str, object], exception: str) -> None:
    """Logs a record of another process. exception: its traceback, as text."""
    record = logging.getLogger(logger).makeRecord(logger, level, "", 0, text, (), None, extra={"fields": fields})
    record.exc_text = exception or None
    logging.getLogger().handle(record)
