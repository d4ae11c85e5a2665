"""Files of a directory that nothing has checked yet, opened so that they can be trusted to be what they seem.

No link is followed below the directory, nothing but regular files is opened, and every error names the file, what is
wrong, and the fix. What the files hold, `export.bundle.directory` knows. This module uses the standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

EXPORT_AGAIN = "export the bundle again, or copy it again from where it is whole"
MAX_HOLE_BYTES = 1 << 28  # in a file: weights have none, and hashing terabytes of them would take hours
MAX_FOLDERS = 4  # one inside the other


class BundleError(Exception):
    """A bundle cannot be read or written."""

    def __init__(
        self, file: str | Path, problem: str, *, expected: object = None, actual: object = None, fix: str = EXPORT_AGAIN
    ) -> None:
        parts = [f"{file}: {problem}"]
        if expected is not None:
            parts.append(f"expected {expected}, found {actual}")
        super().__init__("; ".join([*parts, f"fix: {fix}"]))
        self.fix = fix


class NotABundleError(BundleError): ...


class UnsafeFileError(BundleError): ...


class DamagedFileError(BundleError): ...


class Stamp(NamedTuple):
    """Identity, size and times of a file, some of which change when it is replaced or written."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def hole_bytes(file: int, size: int) -> int:
    """Bytes before the end for which nothing is stored, counted until they exceed MAX_HOLE_BYTES."""
    offset = found = 0
    with contextlib.suppress(OSError):  # ENXIO: no data follows
        while offset < size and found <= MAX_HOLE_BYTES:
            data = os.lseek(file, offset, os.SEEK_DATA)
            found, offset = found + data - offset, os.lseek(file, data, os.SEEK_HOLE)
        size = offset
    os.lseek(file, 0, os.SEEK_SET)
    return found + size - offset


def read_file(root: int, name: str, path: Path, limit: int, too_large: type[BundleError]) -> tuple[bytes, Stamp]:
    """Read a file of at most `limit` bytes. Raises BundleError and, if it is missing, FileNotFoundError."""
    stream = open_regular(root, name, path)
    with stream, reported(path / name):
        stamp, data = Stamp.of(os.fstat(stream.fileno())), stream.read(limit + 1)
    if len(data) > limit:
        raise too_large(path / name, "is too large", expected=f"at most {limit} bytes", actual="more")
    return data, stamp


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Errors of the file system as BundleErrors."""
    try:
        yield
    except OSError as error:
        raise DamagedFileError(
            path, f"cannot be read ({error.strerror})", fix="check the disk, or copy it again"
        ) from error


@contextlib.contextmanager
def directory(path: Path) -> Iterator[int]:
    """Yield a descriptor of the bundle's directory; the directory path itself may be a link, such as `current`."""
    try:
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NotABundleError(
            path, f"cannot be opened as a directory ({error.strerror})", fix="check the path"
        ) from None
    try:
        yield root
    finally:
        os.close(root)


def open_regular(root: int, name: str, path: Path) -> io.BufferedReader:
    """Open `name` below the directory `root` component by component, following no link; `path` is for messages."""
    *parents, last = name.split("/")
    folder = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        here = root
        try:
            for parent in parents:
                here = os.open(parent, folder, dir_fd=here)
                opened.callback(os.close, here)
            # Non-blocking, because opening a named pipe would otherwise wait forever.
            file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
        except FileNotFoundError:
            raise
        except OSError as error:
            fix = f"let user {os.geteuid()} read it" if error.errno == errno.EACCES else _copy_it(root, path)
            raise UnsafeFileError(
                path / name, f"cannot be opened as a plain file ({error.strerror})", fix=fix
            ) from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            actual = f"{status.st_nlink} links" if stat.S_ISREG(status.st_mode) else stat.filemode(status.st_mode)
            expected = "a regular file with one link"
            raise UnsafeFileError(
                path / name, "is not safe to read", expected=expected, actual=actual, fix=_copy_it(root, path)
            )
        _check_access(status, root, file, path / name)
    except UnsafeFileError:
        os.close(file)
        raise
    return os.fdopen(file, "rb")


def _check_access(status: os.stat_result, root: int, file: int, path: Path) -> None:
    """Check who could change a file. In containers, root or the user of the copy own it and its directory, seldom the
    user of the process; modes of mounted volumes may allow everything to everyone, where the mount does not."""
    owners = {os.fstat(root).st_uid, 0, os.geteuid()}
    if status.st_uid not in owners:
        expected = f"user {' or '.join(map(str, sorted(owners)))}"
        fix = "change the owner of the files to that of the bundle's directory"
        raise UnsafeFileError(path, "belongs to another user", expected=expected, actual=status.st_uid, fix=fix)
    if status.st_mode & stat.S_IWOTH and not os.fstatvfs(file).f_flag & os.ST_RDONLY:
        fix = "`chmod -R o-w` the bundle, or mount it read-only"
        raise UnsafeFileError(path, f"can be written by every user ({stat.filemode(status.st_mode)})", fix=fix)


def _copy_it(root: int, path: Path) -> str:
    """The fix for links. Volumes of Kubernetes' ConfigMaps and Secrets consist of links into a directory `..data`."""
    copy = "replace it by a plain file, for example with `cp -rL --no-preserve=links`"
    with contextlib.suppress(OSError):
        os.stat("..data", dir_fd=root)
        return f"serve {path / '..data'}, the directory behind the links of this volume, or {copy}"
    return copy


def walk(root: int, path: Path, folder: str = "") -> Iterator[str]:
    """Yield the names of all non-directories below the directory `root`, whose name in the bundle is `folder`. Links
    count as files, including links to directories. Nothing is held of a directory but the entry that it is at."""
    is_empty = True
    with os.scandir(root) as entries:
        for entry in entries:
            is_empty, name = False, f"{folder}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                yield name
                continue
            if name.count("/") >= MAX_FOLDERS:
                raise DamagedFileError(path / name, f"is nested more than {MAX_FOLDERS} deep", fix="remove it")
            inner = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
            try:
                yield from walk(inner, path, f"{name}/")
            finally:
                os.close(inner)
    if is_empty and folder:
        raise DamagedFileError(path / folder, "is an empty directory", fix="remove it")
