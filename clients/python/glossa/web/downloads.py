"""Translated files until they are fetched: in memory, for minutes, under names that nobody guesses."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict

from glossa.web.refusals import Refused

KEPT_S = 600.0
MAX_BYTES = 64 << 20  # of all files; the oldest go first


class Downloads:
    """The files of one process."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    def keep(self, data: bytes) -> str:
        """The key under which a file can be found from now on."""
        key = secrets.token_urlsafe(24)
        self._files[key] = time.monotonic(), data
        self._bytes += len(data)
        self._drop()
        return key

    def find(self, key: str) -> bytes:
        """Raises Refused for a file that is not here, or no longer."""
        self._drop()
        if key not in self._files:
            raise Refused(f"no such file; it is kept for {KEPT_S / 60:g} minutes", 404)
        return self._files[key][1]

    def _drop(self) -> None:
        old_s = time.monotonic() - KEPT_S
        while self._files and (self._bytes > MAX_BYTES or next(iter(self._files.values()))[0] < old_s):
            self._bytes -= len(self._files.popitem(last=False)[1][1])
