"""The log: one line per request and per event on stderr, JSON for machines, coloured text on a terminal.

Lines are written by a thread of their own: a full pipe must not stop the event loop. When nobody reads, lines are
dropped and counted, never piled up. Texts of users are not logged unless the operator asks for it.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import queue
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal, TextIO

ERROR, WARNING = logging.ERROR, logging.WARNING
LOGGER = logging.getLogger("glossa")
COLOURS = {"WARNING": 33, "ERROR": 31, "CRITICAL": 31}
MAX_WAITING = 10_000  # lines, some 5 MB


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
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class PrettyFormatter(logging.Formatter):
    """For eyes: time, level, event, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = " ".join(f"\x1b[2m{key}=\x1b[0m{value}" for key, value in getattr(record, "fields", {}).items())
        event = f"\x1b[{COLOURS.get(record.levelname, 32)}m{record.getMessage()}\x1b[0m"
        exception = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return f"{moment} {event} {fields}{exception}"


class _Dropping(logging.handlers.QueueHandler):
    """Hands records to the writing thread; counts those that find its queue full."""

    dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # formatting is the writing thread's work; nothing leaves this process

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class LogWriter:
    """Writes what `event` is told; from construction until `close`."""

    def __init__(self, style: Literal["auto", "json", "pretty"] = "auto", stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        pretty = style == "pretty" or (style == "auto" and stream.isatty())
        writer = logging.StreamHandler(stream)
        writer.setFormatter(PrettyFormatter() if pretty else JsonFormatter())
        waiting: queue.Queue[logging.LogRecord] = queue.Queue(MAX_WAITING)
        self._handler = _Dropping(waiting)
        self._listener = logging.handlers.QueueListener(waiting, writer)
        self._listener.start()
        logging.getLogger().addHandler(self._handler)  # warnings of libraries belong into the same stream
        LOGGER.setLevel(logging.INFO)

    @property
    def dropped(self) -> int:
        """Lines that nobody read in time."""
        return self._handler.dropped

    def close(self) -> None:
        """Writes what is waiting, then stops."""
        logging.getLogger().removeHandler(self._handler)
        self._listener.stop()


def event(
    name: str,
    fields: Mapping[str, object] | None = None,
    *,
    level: int = logging.INFO,
    exception: BaseException | None = None,
) -> None:
    """One line: what happened, and its fields."""
    LOGGER.log(level, name, extra={"fields": fields or {}}, exc_info=exception)
