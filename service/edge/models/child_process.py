"""A program that the server started: its standard error goes to the server's log, its end has a cause.

Event-loop thread only. The program ends with the thread that started it (`engine_process.limits.end_with`), so it is
started on the event loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from service.edge.observability import logs
from service.errors import StartupError

CRASH = "Fatal Python error"  # how faulthandler's report of a crash begins; of an exception, the last line counts
LINE_BYTES = 4096
READS_AT_ONCE = 16  # of up to READ_BYTES, before the event loop looks at others; together what a pipe holds at most
READ_BYTES = 1 << 16


class Progress(NamedTuple):
    """What the system knows of a process. state: as in proc(5), T stopped, S sleeping; R: any of its threads runs, or
    waits for nothing but a processor; else D: any of them waits for a disk. cpu_ticks: used by all threads."""

    state: str
    cpu_ticks: int


class ChildProcess:
    """A Python module that runs as a program. Inherits `files` and the search path of modules of this process."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], files: Sequence[int], environment: Mapping[str, str]
    ) -> None:
        """Raises StartupError."""
        self.name = name
        self._loop = asyncio.get_running_loop()
        try:
            self._errors, write = os.pipe()
        except OSError as error:
            raise not_started(error) from error
        self._last_words = ""
        self._partial = b""
        environment = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-P", "-m", module, *arguments]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=write, pass_fds=files, env=environment
            )
        except OSError as error:
            os.close(self._errors)
            raise not_started(error) from error
        finally:
            os.close(write)
        os.set_blocking(self._errors, False)
        self._loop.add_reader(self._errors, self._read_errors)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def progress(self) -> Progress | None:
        """Its state; None once it has ended."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = _stat(Path(f"/proc/{self.pid}"))
            threads = [_stat(thread)[0] for thread in Path(f"/proc/{self.pid}/task").iterdir()]
            state = next((state for state in "RD" if state in threads), fields[0])
            return Progress(state, int(fields[11]) + int(fields[12]))
        return None

    def kill(self) -> None:
        """Ends it immediately, whatever it does."""
        self._process.kill()

    async def wait(self, timeout_s: float) -> str:
        """Waits until it has ended, and kills it after `timeout_s`. Returns how it ended, with its last words."""
        try:
            await asyncio.to_thread(self._process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            await asyncio.to_thread(self._process.wait)
        self._read_errors()
        self._close_errors()
        status = self._process.returncode
        how = f"exit status {status}" if status >= 0 else f"killed by {_name(-status)}"
        return f"{how}: {self._last_words}" if self._last_words else how

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it."""
        return (self._process.returncode or 0) < 0

    def _read_errors(self) -> None:
        for _ in range(READS_AT_ONCE if self._errors >= 0 else 0):
            try:
                data = os.read(self._errors, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close_errors()
                return
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._partial = self._partial[:LINE_BYTES]
            for line in lines:
                self._log(line)

    def _close_errors(self) -> None:
        if self._errors >= 0:
            self._loop.remove_reader(self._errors)
            os.close(self._errors)
            self._errors = -1
            if self._partial:
                self._log(self._partial)

    def _log(self, line: bytes) -> None:
        if text := line[:LINE_BYTES].decode(errors="replace").rstrip():
            if not self._last_words.startswith(CRASH):
                self._last_words = text
            logs.event("engine_process_stderr", {"process": self.name, "line": text}, level=logs.WARNING)


def not_started(error: OSError) -> StartupError:
    """Why no program runs: the system has no more processes, open files or memory for it."""
    fix = "raise the limits of processes and of open files, or free memory"
    return StartupError(f"its engine process cannot be started: {error}; fix: {fix}")


def _stat(process: Path) -> list[str]:
    """The fields of proc(5) from the state on."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"
