"""Atomic writes: a crash or a full disk never leaves a partial file. Temporary name, fsync, rename.

A directory from `write_directory` carries `digests.json` with the size and SHA-256 of each of its files; readers check
them first. Standard library only; the meaning of the files belongs to the caller.

    DamagedError    a file is missing, cut short or changed
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DIGESTS = "digests.json"
TOKEN_DIGITS = 8  # in names of directories that are being written


@dataclass(frozen=True)
class Pieces:
    """The content of a file that need not be in memory as one: its size in bytes, and its parts from the beginning,
    as often as requested."""

    size: int
    parts: Callable[[], Iterator[bytes | memoryview]]


Content = bytes | Pieces


def parts_of(data: Content) -> Iterator[bytes | memoryview]:
    return data.parts() if isinstance(data, Pieces) else iter((data,))


def size_of(data: Content) -> int:
    return data.size if isinstance(data, Pieces) else len(data)


class DamagedError(Exception):
    """A file differs from what was written."""


class Disk:
    """The three operations a durable save consists of; tests replace it to make the n-th one fail."""

    def write(self, path: Path, data: Content) -> None:
        """Create or truncate the file and write all of the data; not durable yet."""
        with path.open("wb") as file:
            file.writelines(parts_of(data))

    def sync(self, path: Path) -> None:
        """Make the file's content, or the directory's list of names, survive a power cut."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Atomic within one file system."""
        source.rename(target)


def write_file(path: Path, data: Content, disk: Disk | None = None) -> None:
    """Create or replace one file atomically. On OSError the old file is still there."""
    disk = disk or Disk()
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        disk.write(temporary, data)
        disk.sync(temporary)
        disk.rename(temporary, path)
        disk.sync(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_directory(path: Path, files: Mapping[str, Content], disk: Disk | None = None) -> None:
    """Create the directory with these files and their digests, all or nothing. It must not exist yet."""
    disk = disk or Disk()
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a process that was killed
    try:
        temporary.mkdir(parents=True)
        for name, data in {**files, DIGESTS: digests_of(files)}.items():
            disk.write(temporary / name, data)
            disk.sync(temporary / name)
        disk.sync(temporary)
        disk.rename(temporary, path)
        disk.sync(path.parent)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextlib.contextmanager
def new_directory(path: Path, disk: Disk | None = None, *, replace: bool = False) -> Iterator[Path]:
    """Yield a hidden, empty directory beside `path`, which gets that name when the block ends without an error.

    With `replace`, an earlier directory at `path` is moved aside first and deleted last; otherwise one with content
    raises OSError. After any error, an interrupt included, `path` is the earlier directory or the whole new one. What
    could not be deleted, the next call deletes.
    """
    disk = disk or Disk()
    recover(path, disk)
    with contextlib.ExitStack() as locks:
        partial, old = _locked_directory(path, locks)
        try:
            yield partial
            # Files before the directories that name them, so that a power failure leaves either all or none.
            for entry in sorted(partial.rglob("*"), key=lambda entry: -len(entry.parts)):
                disk.sync(entry)
            disk.sync(partial)
            if replace and path.exists():
                _lock(path, locks, waits=True)
                disk.rename(path, old)
            disk.rename(partial, path)
            disk.sync(path.parent)
        finally:
            if old.exists() and not path.exists():
                disk.rename(old, path)
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def recover(path: Path, disk: Disk | None = None) -> None:
    """Delete what earlier calls of `new_directory` left beside `path`: those that were killed or could not delete it. A
    directory that was moved aside for one that never came gets its name back. Raises OSError."""
    for kind in ("old", "partial"):
        for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * TOKEN_DIGITS}.{kind}"):
            with contextlib.ExitStack() as locks:
                if not _lock(left, locks):
                    continue
                if kind == "old" and not path.exists():
                    (disk or Disk()).rename(left, path)
                else:
                    shutil.rmtree(left, ignore_errors=True)


def _locked_directory(path: Path, locks: contextlib.ExitStack) -> tuple[Path, Path]:
    """Make a hidden directory beside `path`; return it and a name for what is at `path` now."""
    while True:
        token = secrets.token_hex(TOKEN_DIGITS // 2)
        partial, old = (path.with_name(f".{path.name}.{token}.{kind}") for kind in ("partial", "old"))
        partial.mkdir(parents=True)
        _lock(partial, locks, waits=True)
        if partial.exists():  # else `recover` of another process came between
            return partial, old


def _lock(directory: Path, locks: contextlib.ExitStack, *, waits: bool = False) -> bool:
    """Lock a directory as long as `locks` is open and this process lives. Returns whether it is locked and still there.
    Where a file system knows no locks it is not, so that nothing is deleted that may be in use."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        locks.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return directory.exists()


def digests_of(files: Mapping[str, Content]) -> bytes:
    """The content of digests.json: {"<name>": {"sha256": hex, "bytes": count}}."""
    entries = {name: {"sha256": _sha256(data), "bytes": size_of(data)} for name, data in sorted(files.items())}
    return (json.dumps(entries, indent=2) + "\n").encode()


def _sha256(data: Content) -> str:
    digest = hashlib.sha256()
    for part in parts_of(data):
        digest.update(part)
    return digest.hexdigest()


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file's content, which is not read into memory as one. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(path: Path, names: Iterable[str]) -> None:
    """Checks every file that digests.json lists; the named files must be among them.

    Raises DamagedError naming the first file that is missing, cut short or changed, with both sizes or digests.
    """
    try:
        listed = json.loads((path / DIGESTS).read_bytes())
        entries = {str(name): (str(entry["sha256"]), int(entry["bytes"])) for name, entry in listed.items()}
    except FileNotFoundError as error:
        raise DamagedError(f"{path / DIGESTS}: missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path / DIGESTS}: cannot be read: {error}") from error
    for missing in sorted(set(names) - entries.keys()):
        raise DamagedError(f"{path / missing}: not listed in {DIGESTS}")
    for name, (sha256, size) in entries.items():
        file = path / name
        try:
            actual = file.stat().st_size
            digest = digest_of_file(file) if actual == size else ""
        except OSError as error:
            raise DamagedError(f"{file}: cannot be read: {error.strerror}") from error
        if actual != size:
            raise DamagedError(f"{file}: must be {size} bytes, got {actual}; the file was cut short or changed")
        if digest != sha256:
            raise DamagedError(f"{file}: SHA-256 must be {sha256}, got {digest}; the file was changed")
