"""A process that answers each line of JSON on its standard input with one on its standard output."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self


class PipeFailed(Exception):
    """The process ended, or reported an error."""


class Pipe:
    """Starts the process; `close`, or leaving the block, ends it."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """name: in errors. environment: all variables of the process; None: those of this one."""
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # `close` closes it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )

    def __call__(self, **order: Any) -> dict[str, Any]:
        """The answer to one order. Raises PipeFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            raise PipeFailed(f"{self.name}: ended with status {status} on {order}: {self._log.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PipeFailed(f"{self.name}: {order} failed: {answer['error']}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
