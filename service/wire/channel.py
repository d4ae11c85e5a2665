"""One end of the connection between the edge and an engine process: whole messages over a Unix socket pair.

SOCK_SEQPACKET keeps messages whole. One above INLINE_BYTES (attention weights, many requests) travels as a
sealed memory file instead, whose descriptor the packet carries: no copy passes through the socket, it has no name
that could be left behind, and its sender can no longer change or shrink it while it is read.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import socket
import threading

from service.wire.messages import MAX_MESSAGE_BYTES, Data, WireError

INLINE_BYTES = 1 << 16
BUFFER_BYTES = 1 << 20  # what the kernel may hold of each direction; it grants less to some users
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
TRUNCATED, CONTROL_TRUNCATED = int(socket.MSG_TRUNC), int(socket.MSG_CTRUNC)  # & of enum members takes 2 us
_MARK = b"\0"  # of a packet whose message is in a memory file


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new connection. They are closed in programs that this process executes."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return pair


def send(end: socket.socket, message: bytes) -> None:
    """Sends one message. Raises BlockingIOError if a socket that does not block is full, and OSError if the other end
    is closed: then nothing was sent."""
    if len(message) <= INLINE_BYTES:
        end.send(message)
        return
    assert len(message) <= MAX_MESSAGE_BYTES, f"{len(message)} bytes in one message, at most {MAX_MESSAGE_BYTES}"
    file = os.memfd_create("glossa", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(message)
        while rest:
            rest = rest[os.write(file, rest) :]
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        socket.send_fds(end, [_MARK], [file])
    finally:
        os.close(file)


def receive(end: socket.socket) -> Data:
    """The next message; empty when the other end is closed. Raises BlockingIOError if a socket that does not block has
    none, WireError for what `send` does not send."""
    try:
        return _receive(end)
    except ConnectionResetError:  # raised once if the other end was closed before it had read all
        return _receive(end)


class _Buffer(threading.local):
    """Room for one packet, of each thread that reads: to allocate it for every packet took 0.1 ms (Zen 3)."""

    def __init__(self) -> None:
        self.packet = memoryview(bytearray(INLINE_BYTES))


_BUFFER = _Buffer()
_ANCILLARY_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)


def _receive(end: socket.socket) -> Data:
    packet = _BUFFER.packet
    size, ancillary, flags, _ = end.recvmsg_into([packet], _ANCILLARY_BYTES)
    data = bytes(packet[:size])
    if not ancillary and not flags & TRUNCATED:  # nearly always
        return data
    files = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(content[: len(content) - len(content) % files.itemsize])
    with contextlib.ExitStack() as stack:
        for file in files:
            stack.callback(os.close, file)
        if flags & (TRUNCATED | CONTROL_TRUNCATED) or len(files) > 1:
            raise WireError(f"a packet of more than {INLINE_BYTES} bytes or one descriptor")
        return _content(files[0]) if files else data


def _content(file: int) -> Data:
    """The bytes of a memory file, which stay readable after it is closed."""
    try:
        is_sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:  # not a memory file
        is_sealed = False
    size = os.fstat(file).st_size
    if not is_sealed or not 0 < size <= MAX_MESSAGE_BYTES:
        raise WireError(f"a file of {size} bytes instead of a sealed one of at most {MAX_MESSAGE_BYTES}")
    try:
        return mmap.mmap(file, size, access=mmap.ACCESS_READ)
    except OSError as error:  # a file of huge pages, of which there are none
        raise WireError(f"a file of {size} bytes that cannot be mapped: {error}") from error
