"""A server with the engine processes that it started, as the system sees them: processor time and memory of all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class ProcessState(NamedTuple):
    """state: a letter as in proc(5). parent: its process id. started: a number that later processes exceed."""

    state: str
    parent: int
    cpu_s: float
    started: int


def process_state(pid: int) -> ProcessState | None:
    """None: there is no such process, or it has ended and nobody has asked how."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in "ZX":
            return ProcessState(fields[0], int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS, int(fields[19]))
    return None


def children(pid: int) -> list[int]:
    """Processes that this one started and that run, oldest first."""
    states = {int(path.name): process_state(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    own = {child: state for child, state in states.items() if state and state.parent == pid}
    return sorted(own, key=lambda child: own[child].started)


def process_tree(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(below for child in children(pid) for below in process_tree(child))]


def cpu_seconds(pid: int) -> float:
    """Processor time that a process and all below it have used; ended ones do not count."""
    return sum(state.cpu_s for each in process_tree(pid) if (state := process_state(each)))


def memory_mb(pid: int) -> float:
    """Memory of a process and all below it. PSS: of what several processes share, each counts its part."""
    return sum(_pss_kb(each) for each in process_tree(pid)) / 1e3


def _pss_kb(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        return int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
    return 0


class Peak(NamedTuple):
    """Bytes. processes: the largest resident memory that each had so far, by process id. total: of all, where files
    that several have mapped count once: no less than they had at any time together."""

    processes: dict[int, int]
    total: int


def peak_bytes(pid: int) -> Peak:
    """The peak of a process and all below it."""
    processes, files, mapped = {}, dict[str, int](), 0
    for each in process_tree(pid):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            status = Path(f"/proc/{each}/status").read_text()
            own = _file_bytes(each)
            processes[each] = int(status.partition("VmHWM:")[2].split()[0]) << 10
            mapped += sum(own.values())
            files = {name: max(files.get(name, 0), own.get(name, 0)) for name in files | own}
    return Peak(processes, sum(processes.values()) - mapped + sum(files.values()))


def _file_bytes(pid: int) -> dict[str, int]:
    """Resident bytes of each file that a process has mapped, without pages that it has changed."""
    found: dict[str, int] = {}
    inode = "0"
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            inode = f"{words[3]} {words[4]}"
        elif words[0] == "Rss:":
            size = int(words[1]) << 10
        elif words[0] == "Anonymous:" and not inode.endswith(" 0"):
            found[inode] = found.get(inode, 0) + size - (int(words[1]) << 10)
    return found
