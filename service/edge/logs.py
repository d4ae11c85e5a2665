"""The log: one line per request and per event on stderr, JSON for machines, coloured text on a terminal.

A thread of its own writes the lines, because a full pipe must not block the event loop; lines above a limit are dropped
and counted. Not logging.handlers.QueueListener: it writes and flushes line by line, and its stop() waits for a blocked
reader without a limit. Texts of users are logged only with `log_text`.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal, TextIO

ERROR, WARNING = logging.ERROR, logging.WARNING
LOGGER = logging.getLogger("glossa")
COLOURS = {"WARNING": 33, "ERROR": 31, "CRITICAL": 31}
MAX_WAITING = 10_000  # lines, some 5 MB
CLOSE_S = 2.0
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
        event = f"\x1b[{COLOURS.get(record.levelname, 32)}m{record.getMessage()}\x1b[0m"
        exception = _exception(self, record)
        return f"{moment} {event} {fields}" + (f"\n{exception}" if exception else "")


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback of a record; one that comes from another process has text only."""
    return formatter.formatException(record.exc_info) if record.exc_info else record.exc_text or ""


def _plain(value: object) -> str:
    """A value without line ends and escape sequences, which could control the operator's terminal."""
    return str(value) if str(value).isprintable() else repr(value)


class LogWriter(logging.Handler):
    """Writes all log records from construction until `close`; records above MAX_WAITING are dropped and counted."""

    def __init__(self, style: Literal["auto", "json", "pretty"] = "auto", stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr
        is_pretty = style == "pretty" or (style == "auto" and self._stream.isatty())
        self.setFormatter(PrettyFormatter() if is_pretty else JsonFormatter())
        self.dropped = 0
        self._is_closed = False
        self._is_closing = threading.Event()
        self._held = 0  # lines that are being written
        self._waiting: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
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

    def close(self) -> None:
        """Writes the waiting lines, for at most CLOSE_S: a blocked reader must not keep the process alive."""
        logging.getLogger().removeHandler(self)
        if self._is_closed:  # logging closes all handlers once more at exit
            return
        self._is_closed = True
        self._is_closing.set()
        self._waiting.put(None)
        self._thread.join(CLOSE_S)
        super().close()

    def _write(self) -> None:
        is_open = True
        while is_open:
            records = self._take()
            is_open = records[-1] is not None
            lines = [record for record in records if record is not None]
            try:
                self._stream.write("".join([self.format(record) + "\n" for record in lines]))
                self._stream.flush()
            except (OSError, ValueError):  # the reader has gone: serving continues
                self.dropped += len(lines)
            self._held = 0

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


def event(
    name: str,
    fields: Mapping[str, object] | None = None,
    *,
    level: int = logging.INFO,
    exception: BaseException | None = None,
) -> None:
    """Logs one line: the event's name and its fields."""
    if not LOGGER.isEnabledFor(level):
        return
    # As LOGGER.log, without the search for the caller on the stack, which takes half the time.
    raised = (type(exception), exception, exception.__traceback__) if exception else None
    extra = {"fields": fields or {}}
    LOGGER.handle(LOGGER.makeRecord(LOGGER.name, level, "", 0, name, (), raised, extra=extra))


def forward(logger: str, level: int, text: str, fields: Mapping[str, object], exception: str) -> None:
    """Logs a record of another process. exception: its traceback, as text."""
    record = logging.getLogger(logger).makeRecord(logger, level, "", 0, text, (), None, extra={"fields": fields})
    record.exc_text = exception or None
    logging.getLogger().handle(record)
