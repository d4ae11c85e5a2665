"""Failing file operations by number, in Python's and in libraries' code."""

import ctypes
import errno
import os

import pytest

from bench.promises.file_faults import Fault, is_supported, run

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux on x86-64")


def save(folder):
    """Seven operations: mkdir, open, write, fsync, close, rename, and deleting another file."""
    (folder / "inner").mkdir()
    with (folder / "inner/new").open("wb", buffering=0) as file:
        file.write(b"12345678")
        os.fsync(file.fileno())
    (folder / "inner/new").rename(folder / "file")
    (folder / "other").unlink()
    return 0


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "other").touch()
    return tmp_path


def test_operations_are_counted_in_their_order(folder):
    ended = run(lambda: save(folder), folder)
    assert ended.status == 0, ended.output
    names = [operation.split()[0].removesuffix("at") for operation in ended.operations]
    assert names == ["mkdir", "open", "write", "fsync", "close", "rename", "unlink"]
    assert ended.operations[2] == "write inner/new"


def test_operations_elsewhere_and_reading_do_not_count(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "other").touch()

    def read():
        (folder / "other").read_bytes()
        return save(elsewhere)

    assert run(read, folder).operations == []


@pytest.mark.parametrize("number", range(1, 8))
def test_each_operation_fails_once(folder, number):
    ended = run(lambda: save(folder), folder, Fault(number, errno.EIO))
    assert ended.status == 70
    assert "[Errno 5] Input/output error" in ended.output
    assert len(ended.operations) == number + (number in (3, 4)), "after a failed write or fsync, the file is closed"


def test_a_full_disk_stays_full_but_deletes(folder):
    def try_twice():
        for name in ("first", "second"):
            try:
                (folder / name).write_bytes(b"12345678")
            except OSError as error:
                os.write(1, f"{name}: {error.strerror}\n".encode())
        (folder / "other").unlink()
        return 3

    ended = run(try_twice, folder, Fault(2, errno.ENOSPC))
    assert ended.status == 3
    assert ended.output == "first: No space left on device\nsecond: No space left on device\n"
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"first": b"1234"}, "half of the first write"


def test_operations_of_libraries_fail(folder):
    def save_by_the_c_library():
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fopen.restype = ctypes.c_void_p
        return int(libc.fopen(os.fsencode(folder / "file"), b"w") is None and ctypes.get_errno() == errno.EIO)

    assert run(save_by_the_c_library, folder, Fault(1, errno.EIO)).status == 1
