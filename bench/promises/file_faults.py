"""Fails the n-th file operation of a function, below Python and every library: by the kernel's seccomp notifications.

The function runs in a forked child, whose system calls that change files wait for the parent's decision. Only those on
paths below one folder count; all others go on. It needs Linux 5.9 on x86-64, and no privileges.

Not covered: operations that only read, and pages of mapped files, which nothing here writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import os
import platform
import select
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

AT_FDCWD = -100 & 0xFFFFFFFF
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
HANDLE = {"open": (2, 1), "openat": (257, 2)}
"""Opening calls: their numbers, and which argument has the flags; those that only read are not asked about."""
ON_PATHS = {
    **{"truncate": (76, None, 0), "rename": (82, None, 0), "mkdir": (83, None, 0), "rmdir": (84, None, 0)},
    **{"creat": (85, None, 0), "link": (86, None, 1), "unlink": (87, None, 0), "symlink": (88, None, 1)},
    **{"chmod": (90, None, 0), "mkdirat": (258, 0, 1), "unlinkat": (263, 0, 1), "renameat": (264, 0, 1)},
    **{"linkat": (265, 2, 3), "symlinkat": (266, 1, 2), "fchmodat": (268, 0, 1), "renameat2": (316, 0, 1)},
    **{"openat2": (437, 0, 1), "open": (2, None, 0), "openat": (257, 0, 1)},
}
"""Calls that name a file: number, the argument with a directory's descriptor, the argument with the path."""
ON_FILES = {
    **{"write": 1, "close": 3, "pwrite64": 18, "writev": 20, "fsync": 74, "fdatasync": 75, "ftruncate": 77},
    **{"fchmod": 91, "sync_file_range": 277, "fallocate": 285, "pwritev": 296, "pwritev2": 328},
}
"""Calls whose first argument is an open file."""
TAKE_NO_ROOM = (
    "close",
    "unlink",
    "unlinkat",
    "rmdir",
    "rename",
    "renameat",
    "renameat2",
    "chmod",
    "fchmodat",
    "fchmod",
)
"""What a full disk still does; deleting, above all."""
NAMES = {number: name for name, number in ON_FILES.items()} | {call[0]: name for name, call in ON_PATHS.items()}

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS, _SECCOMP, _PIDFD_GETFD = 38, 317, 438
_SET_FILTER, _NEW_LISTENER = 1, 8
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1


class Fault(NamedTuple):
    """The number of an operation, from 1, and how it fails: errno.EIO once, or errno.ENOSPC on a disk that stays full,
    on which a failing write leaves half of its data behind."""

    number: int
    code: int


class Ended(NamedTuple):
    """How a run ended: its exit status, what it wrote to stdout and stderr, and its file operations in order."""

    status: int
    output: str
    operations: list[str]


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def is_supported() -> bool:
    """Whether this machine can do it."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def run(action: Callable[[], int], folder: Path, fault: Fault | None = None) -> Ended:
    """Calls `action` in a forked child, whose `fault.number`-th operation on a file below `folder` fails. Its result is
    the exit status; 70 after an exception, whose traceback is in the output."""
    ours, theirs = socket.socketpair()
    output = os.memfd_create("output")
    child = os.fork()
    if not child:
        gc.disable()  # what the parent left behind may wait, when it is collected, for threads that are not here
        status = 70
        try:
            os.dup2(output, 1)
            os.dup2(output, 2)
            socket.send_fds(theirs, [b"\0"], [_listen()])
            status = action()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    theirs.close()
    with ours, os.fdopen(output, "rb") as written, open(os.pidfd_open(child), "rb", closefd=True) as process:
        _, files, *_ = socket.recv_fds(ours, 1, 1)
        try:
            operations = _Supervisor(files[0], process.fileno(), str(folder.resolve()), fault).watch() if files else []
        finally:
            for file in files:
                os.close(file)
            _, status = os.waitpid(child, 0)
        written.seek(0)
        return Ended(os.waitstatus_to_exitcode(status), written.read().decode(errors="replace"), operations)


def _listen() -> int:
    """Makes this process's calls wait for whoever holds the returned descriptor."""
    load, equal, any_bit, give = 0x20, 0x15, 0x45, 0x06
    steps = [(load, 0, 0, 0)]  # the number of the call
    for number in sorted({*ON_FILES.values(), *(call[0] for call in ON_PATHS.values())} - {2, 257}):
        steps += [(equal, 0, 1, number), (give, 0, 0, _NOTIFY)]
    for number, flags in HANDLE.values():
        steps += [(equal, 0, 4, number), (load, 0, 0, 16 + 8 * flags), (any_bit, 0, 1, WRITING)]
        steps += [(give, 0, 0, _NOTIFY), (give, 0, 0, _ALLOW)]
    steps.append((give, 0, 0, _ALLOW))
    program = _Program(len(steps), (_Instruction * len(steps))(*(_Instruction(*step) for step in steps)))
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    listener = int(_LIBC.syscall(_SECCOMP, _SET_FILTER, _NEW_LISTENER, ctypes.byref(program)))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp notifications are not available")
    return listener


class _Supervisor:
    """Decides about the calls of one child, in the order in which they come."""

    def __init__(self, listener: int, process: int, folder: str, fault: Fault | None) -> None:
        self._listener, self._process, self._folder, self._fault = listener, process, folder, fault
        self._operations = list[str]()

    def watch(self) -> list[str]:
        """Returns the operations when the child has ended."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._process, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if ready.get(self._listener, 0) & select.POLLIN:
                with contextlib.suppress(FileNotFoundError):  # the thread was killed meanwhile
                    self._decide()
            elif self._process in ready:
                return self._operations

    def _decide(self) -> None:
        notice = bytearray(80)
        fcntl.ioctl(self._listener, _RECEIVE, notice)
        token, task, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", notice)
        result, error, flags = 0, 0, _CONTINUE
        if path := self._path(task, NAMES[number], arguments):
            name = NAMES[number]
            self._operations.append(f"{name} {os.path.relpath(path, self._folder)}")
            if code := self._error(name):
                error, flags = -code, 0
                is_half = code == errno.ENOSPC and name == "write" and len(self._operations) == self._number
                if is_half and (half := self._write_half(task, arguments)):
                    result, error = half, 0
        fcntl.ioctl(self._listener, _SEND, struct.pack("=QqiI", token, result, error, flags))

    @property
    def _number(self) -> int:
        return self._fault.number if self._fault else 0

    def _error(self, name: str) -> int:
        """The error of the newest operation, or 0."""
        if self._fault is None or len(self._operations) < self._fault.number:
            return 0
        is_first = len(self._operations) == self._fault.number
        stays = self._fault.code == errno.ENOSPC and name not in TAKE_NO_ROOM
        return self._fault.code if is_first or stays else 0

    def _path(self, task: int, name: str, arguments: list[int]) -> str:
        """The path that a call works on, if it counts."""
        if name == "openat2" and not _number(task, arguments[2]) & WRITING:
            return ""
        if name in ON_FILES:
            path = _opened(task, arguments[0])
            if name == "close" and path.startswith(self._folder) and not _is_written(task, arguments[0]):
                return ""
        else:
            _, base, place = ON_PATHS[name]
            path = _text(task, arguments[place])
            if not path.startswith("/"):
                here = base is None or arguments[base] & 0xFFFFFFFF == AT_FDCWD
                start = os.readlink(f"/proc/{task}/cwd") if here else _opened(task, arguments[base or 0])
                path = os.path.join(start, path)
        return path if path.startswith(self._folder) else ""

    def _write_half(self, task: int, arguments: list[int]) -> int:
        """Writes the first half of what the child wants to write. Returns its bytes."""
        with open(f"/proc/{task}/mem", "rb", buffering=0) as memory:
            data = os.pread(memory.fileno(), arguments[2] // 2, arguments[1])
        file = int(_LIBC.syscall(_PIDFD_GETFD, self._process, arguments[0], 0))
        if file < 0:
            raise OSError(ctypes.get_errno(), "a file of the child cannot be opened")
        try:
            return os.write(file, data)
        finally:
            os.close(file)


def _opened(task: int, file: int) -> str:
    try:
        return os.readlink(f"/proc/{task}/fd/{file & 0xFFFFFFFF}")
    except FileNotFoundError:
        return ""


def _is_written(task: int, file: int) -> bool:
    for line in Path(f"/proc/{task}/fdinfo/{file}").read_text().splitlines():
        if line.startswith("flags:"):
            return bool(int(line.split()[1], 8) & (os.O_WRONLY | os.O_RDWR))
    return False


def _number(task: int, address: int) -> int:
    """A 64-bit number in a process's memory."""
    with open(f"/proc/{task}/mem", "rb", buffering=0) as memory:
        return int.from_bytes(os.pread(memory.fileno(), 8, address), sys.byteorder)


def _text(task: int, address: int) -> str:
    """A string in a process's memory."""
    with open(f"/proc/{task}/mem", "rb", buffering=0) as memory:
        found = b""
        while b"\0" not in found:
            at = address + len(found)
            found += os.pread(memory.fileno(), 4096 - at % 4096, at)  # the next page may not be there
    return os.fsdecode(found.partition(b"\0")[0])


def faults(operations: int, codes: tuple[int, ...] = (errno.ENOSPC, errno.EIO)) -> Iterator[Fault]:
    """Every operation with every error."""
    for number in range(1, operations + 1):
        for code in codes:
            yield Fault(number, code)
