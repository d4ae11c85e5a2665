"""Whole messages over a socket pair: inline and as memory files, full and closed sockets, and what nobody may send."""

import fcntl
import mmap
import os
import random
import socket
from pathlib import Path

import numpy as np
import pytest

from service.encoder_request import EncoderOutput
from service.request import Finished, FinishReason
from service.wire import channel
from service.wire.channel import INLINE_BYTES, SEALS, receive, send, socket_pair
from service.wire.messages import MAX_MESSAGE_BYTES, State, Turn, WireError, decode_from_engine, encode

SIZES = (1, 2, 4095, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 1 << 20, 5_000_001)


def open_descriptors():
    """The files that this process has open."""
    return {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if exists(name)}


def exists(descriptor):
    return Path(f"/proc/self/fd/{descriptor}").is_symlink()


@pytest.fixture(autouse=True)
def _no_descriptor_is_left():
    before = open_descriptors()
    yield
    assert not open_descriptors().items() - before.items()


@pytest.fixture
def ends():
    """Both ends of a connection; neither blocks."""
    one, other = socket_pair()
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        yield one, other


def message(size):
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_any_size_arrives_whole_in_both_directions(ends, size):
    one, other = ends
    for sender, receiver in ((one, other), (other, one)):
        send(sender, message(size))
        assert receive(receiver)[:] == message(size)
        with pytest.raises(BlockingIOError):
            receive(receiver)


@pytest.mark.parametrize("size", SIZES)
def test_only_a_large_message_travels_as_a_memory_file(ends, size):
    one, other = ends
    send(one, message(size))
    assert isinstance(receive(other), bytes) == (size <= INLINE_BYTES)


def test_messages_of_different_sizes_keep_their_order(ends):
    one, other = ends
    for sizes in (SIZES, SIZES[::-1], (1, INLINE_BYTES + 1, 1, INLINE_BYTES + 1, 1)):
        for size in sizes:
            send(one, message(size))
        assert [len(receive(other)) for _ in sizes] == list(sizes)


def test_a_message_that_looks_like_the_mark_of_a_file_is_a_message(ends):
    one, other = ends
    send(one, b"\0")
    assert receive(other) == b"\0"


def test_the_arrays_of_a_large_message_stay_readable_after_it(ends):
    one, other = ends
    numbers = np.arange(1 << 18, dtype=np.float32)
    end = (1, Finished(FinishReason.ENCODED, encoder_output=EncoderOutput(vector=numbers)))
    send(one, encode(Turn(0, State(0, 0, 0.0, 0.0, True, False), [], [end], [], [])))
    turn = decode_from_engine(receive(other))
    assert isinstance(turn, Turn)
    output = turn.ends[0][1].encoder_output
    assert output is not None
    assert output.vector is not None
    assert not output.vector.flags.writeable
    assert output.vector.tobytes() == numbers.tobytes()


def test_a_closed_end_is_an_empty_message(ends):
    one, other = ends
    other.close()
    assert receive(one) == b""
    assert receive(one) == b""


@pytest.mark.parametrize("size", [3, INLINE_BYTES + 3])
def test_what_was_sent_before_the_end_is_read_first(ends, size):
    one, other = ends
    send(one, b"never read")  # its loss must not hide what the other end has sent
    send(other, message(size))
    send(other, b"last")
    other.close()
    assert [receive(one)[:] for _ in range(3)] == [message(size), b"last", b""]


@pytest.mark.parametrize("size", [3, INLINE_BYTES + 3])
def test_sending_to_a_closed_end_is_an_os_error(ends, size):
    one, other = ends
    other.close()
    with pytest.raises(BrokenPipeError):
        send(one, message(size))


@pytest.mark.parametrize("sizes", [(50_000,), (INLINE_BYTES + 1,), (1, 60_000, INLINE_BYTES + 1)])
def test_a_full_socket_loses_nothing_and_repeats_nothing(ends, sizes):
    one, other = ends
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
    waiting = [number.to_bytes(4) + bytes(sizes[number % len(sizes)]) for number in range(1000)]
    sent, got, refusals = 0, [], 0
    while sent < len(waiting):
        try:
            send(one, waiting[sent])
            sent += 1
        except BlockingIOError:
            refusals += 1
            got.append(receive(other)[:])
    while len(got) < sent:
        got.append(receive(other)[:])
    assert got == waiting
    assert refusals > 100
    with pytest.raises(BlockingIOError):
        receive(other)


def test_a_message_above_the_limit_is_not_sent(ends, monkeypatch):
    monkeypatch.setattr(channel, "MAX_MESSAGE_BYTES", INLINE_BYTES + 1)
    send(ends[0], bytes(INLINE_BYTES + 1))
    with pytest.raises(AssertionError, match="at most"):
        send(ends[0], bytes(INLINE_BYTES + 2))


def test_a_packet_above_the_limit_is_an_error_and_the_next_one_is_read(ends):
    one, other = ends
    one.send(bytes(INLINE_BYTES + 1))
    send(one, b"next")
    with pytest.raises(WireError, match="more than 65536 bytes"):
        receive(other)
    assert receive(other) == b"next"


def memory_file(content=b"abc", *, seals=SEALS, flags=os.MFD_ALLOW_SEALING, size=None):
    """A descriptor of a memory file."""
    file = os.memfd_create("test", os.MFD_CLOEXEC | flags)
    if size is None:
        os.write(file, content)
    else:
        os.ftruncate(file, size)
    if seals:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def arrived(ends, *files, mark=b"\0"):
    """What the other end makes of a packet with these descriptors, which are closed here."""
    one, other = ends
    try:
        socket.send_fds(one, [mark], files)
    finally:
        for file in files:
            os.close(file)
    return receive(other)[:]


def test_a_sealed_memory_file_is_a_message_whatever_the_mark(ends):
    assert arrived(ends, memory_file(b"abc")) == b"abc"
    assert arrived(ends, memory_file(b"abc"), mark=b"many bytes") == b"abc"


@pytest.mark.parametrize(
    "missing", [fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SEAL, SEALS]
)
def test_a_memory_file_that_could_still_change_is_an_error(ends, missing):
    with pytest.raises(WireError, match="instead of a sealed one"):
        arrived(ends, memory_file(seals=SEALS & ~missing))


@pytest.mark.parametrize("size", [0, MAX_MESSAGE_BYTES + 1, 1 << 50])
def test_a_memory_file_that_is_empty_or_too_large_is_an_error(ends, size):
    with pytest.raises(WireError, match=f"a file of {size} bytes"):
        arrived(ends, memory_file(size=size))


def test_the_largest_memory_file_is_a_message(ends):
    one, other = ends
    file = memory_file(size=MAX_MESSAGE_BYTES)
    socket.send_fds(one, [b"\0"], [file])
    os.close(file)
    assert len(receive(other)) == MAX_MESSAGE_BYTES


@pytest.mark.parametrize("kind", ["directory", "device", "pipe", "socket", "file"])
def test_a_descriptor_of_something_else_is_an_error(ends, tmp_path, kind):
    if kind == "pipe":
        file, write = os.pipe()
        os.close(write)
    elif kind == "socket":
        file = socket.socket().detach()
    else:
        (tmp_path / "file").write_bytes(b"abc")
        file = os.open({"directory": tmp_path, "device": "/dev/zero", "file": tmp_path / "file"}[kind], os.O_RDONLY)
    with pytest.raises(WireError, match="instead of a sealed one"):
        arrived(ends, file)


def test_a_memory_file_that_cannot_be_mapped_is_an_error(ends, monkeypatch):
    def fail(*arguments, **named):
        raise OSError(12, "Cannot allocate memory")  # as for a file of huge pages, of which there are none

    monkeypatch.setattr(mmap, "mmap", fail)
    with pytest.raises(WireError, match="cannot be mapped"):
        arrived(ends, memory_file())


@pytest.mark.parametrize("count", [2, 3, 50])
def test_more_than_one_descriptor_is_an_error(ends, count):
    with pytest.raises(WireError, match="one descriptor"):
        arrived(ends, *(memory_file() for _ in range(count)))
    send(ends[0], b"next")
    assert receive(ends[1]) == b"next"


def test_descriptors_of_messages_that_nobody_reads_are_closed(ends):
    for _ in range(10):
        send(ends[0], bytes(INLINE_BYTES + 1))


def test_programs_that_are_started_do_not_inherit_the_ends(ends):
    assert not any(os.get_inheritable(end.fileno()) for end in ends)
