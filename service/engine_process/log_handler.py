"""Log records of an engine process, sent to the edge: the server has one log."""

from __future__ import annotations

import logging
from collections.abc import Callable

from service.wire.messages import Log


class WireLogHandler(logging.Handler):
    """Sends every record as a `Log` message."""

    formatter_of_exceptions = logging.Formatter()

    def __init__(self, send: Callable[[Log], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            exception = self.formatter_of_exceptions.formatException(record.exc_info) if record.exc_info else ""
            self._send(Log(record.levelno, record.name, record.getMessage(), exception))
        except Exception:
            self.handleError(record)  # to standard error: what logs must not fail by it
