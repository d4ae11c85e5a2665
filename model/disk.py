"""Writing files so that a crash or a full disk never leaves half of anything: temporary name, fsync, rename.

A directory written here carries `digests.json` with the size and SHA-256 of each of its files; whoever reads it checks
them first. Standard library only; what the files mean is the business of the caller.

    DamagedError    a file is missing, cut short or changed
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

DIGESTS = "digests.json"


class DamagedError(Exception):
    """What is on disk is not what was written."""


class Disk:
    """The three operations a durable save consists of; tests replace it to make the n-th one fail."""

    def write(self, path: Path, data: bytes) -> None:
        """Create or truncate the file and write all of the data; not durable yet."""
        path.write_bytes(data)

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


def write_file(path: Path, data: bytes, disk: Disk | None = None) -> None:
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


def write_directory(path: Path, files: Mapping[str, bytes], disk: Disk | None = None) -> None:
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


def digests_of(files: Mapping[str, bytes]) -> bytes:
    """The content of digests.json: {"<name>": {"sha256": hex, "bytes": count}}."""
    entries = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in sorted(files.items())
    }
    return (json.dumps(entries, indent=2) + "\n").encode()


def read_verified(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Content of the named files of a directory, after checking every file that digests.json lists.

    Raises DamagedError naming the first file that is missing, cut short or changed, with both sizes or digests.
    """
    try:
        listed = json.loads((path / DIGESTS).read_bytes())
        entries = {str(name): (str(entry["sha256"]), int(entry["bytes"])) for name, entry in listed.items()}
    except FileNotFoundError as error:
        raise DamagedError(f"{path / DIGESTS}: missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path / DIGESTS}: cannot be read: {error}") from error
    wanted, contents = set(names), {}
    for missing in sorted(wanted - entries.keys()):
        raise DamagedError(f"{path / missing}: not listed in {DIGESTS}")
    for name, (sha256, size) in entries.items():
        try:
            data = (path / name).read_bytes()
        except OSError as error:
            raise DamagedError(f"{path / name}: cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise DamagedError(
                f"{path / name}: must be {size} bytes, got {len(data)}; the file was cut short or changed"
            )
        digest = hashlib.sha256(data).hexdigest()
        if digest != sha256:
            raise DamagedError(f"{path / name}: SHA-256 must be {sha256}, got {digest}; the file was changed")
        if name in wanted:
            contents[name] = data
    return contents
