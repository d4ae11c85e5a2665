"""Bundle directories: reading, verifying and writing them safely.

A bundle holds `manifest.json`, `tokenizer.json` and the graphs of each precision. `write_bundle` writes the manifest
last and then renames the directory into place, so a directory without a manifest is not a bundle. Every file is checked
before its bytes reach another library: only regular files (no symbolic or hard links, pipes or devices), no path
outside the directory, no file missing from the manifest, and the size and SHA-256 of the opened file itself.

This module needs the standard library only (`model.atomic_write` does too), because servers import it without torch,
onnx or numpy installed. It never opens a graph.

    BundleError               base class; the message names file, expected and actual value, and the fix
    ├── NotABundleError       no manifest.json
    ├── ManifestError         the manifest is not JSON or does not match the schema
    ├── ShortlistError        the shortlist is not JSON or does not match the schema
    ├── VersionError          the manifest has an unsupported format version
    ├── NotVerifiedError      the parity report is missing or has a failed check
    ├── UnsafeFileError       a link, a device, or a path that leaves the directory
    ├── DamagedFileError      missing, unlisted, wrong size or wrong digest
    └── BundleExistsError     the output path already exists
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from export.manifest import FORMAT_VERSION, MANIFEST, FileDigest, Manifest, Shortlist
from export.manifest_migration import MIGRATIONS, migrated
from export.manifest_parser import SchemaError, parse_json, parse_manifest, parse_shortlist
from model.atomic_write import digest_of_file, new_directory

EXPORT_AGAIN = "export the bundle again, or copy it again from where it is whole"
MAX_MANIFEST_BYTES = 4 << 20  # a typical manifest has about 20 kB
MAX_SHORTLIST_BYTES = 64 << 20  # a typical shortlist has about 20 bytes per target token in a source token's list


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


class ManifestError(BundleError): ...


class ShortlistError(BundleError): ...


class VersionError(BundleError): ...


class NotVerifiedError(BundleError): ...


class UnsafeFileError(BundleError): ...


class DamagedFileError(BundleError): ...


class BundleExistsError(BundleError): ...


def load_bundle(path: Path) -> Manifest:
    """Check every file of the bundle at `path` and return its manifest. Raises BundleError."""
    manifest = load_manifest(path)
    verify_files(path, manifest)
    return manifest


def load_manifest(path: Path) -> Manifest:
    """Return the manifest of the bundle at `path` after checking schema, version and consistency.

    Hashes no files. Raises BundleError.
    """
    file = Path(path) / MANIFEST
    try:
        values = _read_json(file, MAX_MANIFEST_BYTES, ManifestError)
        version = values.get("format_version")
        if type(version) is not int or version not in (*MIGRATIONS, FORMAT_VERSION):
            known = " or ".join(map(str, (*MIGRATIONS, FORMAT_VERSION)))
            fix = f"export the checkpoint again with this version of glossa, or run one that reads version {version!r}"
            raise VersionError(file, "has an unknown format_version", expected=known, actual=repr(version), fix=fix)
        manifest = parse_manifest(migrated(values, version))
    except FileNotFoundError:
        raise NotABundleError(
            path, f"has no {MANIFEST}, so it is not a bundle", fix="run `glossa export` again"
        ) from None
    except SchemaError as error:
        raise ManifestError(file, str(error)) from None
    _check_parity(manifest, file)
    return manifest


def manifest_digest(path: Path) -> str:
    """Return the SHA-256 of the manifest of the bundle at `path`, in hexadecimal: it covers every other file's."""
    return hashlib.sha256((Path(path) / MANIFEST).read_bytes()).hexdigest()


def verify_files(path: Path, manifest: Manifest) -> None:
    """Check that exactly the listed files exist, as regular files with their size and digest. Raises BundleError."""
    path = Path(path)
    with _directory(path) as root:
        for name in _walk(root, path):
            if name != MANIFEST and name not in manifest.files:
                close = difflib.get_close_matches(name, manifest.files, n=1)
                hint = f" (the closest listed file is {close[0]})" if close else ""
                raise DamagedFileError(
                    path / name, f"is not listed in {MANIFEST}{hint}", fix="remove it, or export again"
                )
        for name, digest in manifest.files.items():
            try:
                with _open_regular(root, name, path) as stream:
                    size = os.fstat(stream.fileno()).st_size
                    if size != digest.bytes:
                        expected = f"{digest.bytes} bytes"
                        raise DamagedFileError(path / name, "has the wrong size", expected=expected, actual=size)
                    actual = hashlib.file_digest(stream, "sha256").hexdigest()
            except FileNotFoundError:
                raise DamagedFileError(path / name, "is missing") from None
            if actual != digest.sha256:
                raise DamagedFileError(path / name, "has the wrong SHA-256", expected=digest.sha256, actual=actual)


def load_shortlist(file: Path, *, vocab_size: int | None = None) -> Shortlist:
    """Return the shortlist in a bundle file, `path / manifest.shortlist`. Raises BundleError.

    vocab_size: exclusive upper bound of the ids; None disables that check.
    """
    file = Path(file)
    try:
        return parse_shortlist(_read_json(file, MAX_SHORTLIST_BYTES, ShortlistError), vocab_size)
    except FileNotFoundError:
        raise DamagedFileError(file, "is missing") from None
    except SchemaError as error:
        raise ShortlistError(file, str(error)) from None


def _read_json(file: Path, limit: int, too_large: type[BundleError]) -> dict[str, Any]:
    """Read one JSON object of at most `limit` bytes. Raises SchemaError and, if it is missing, FileNotFoundError."""
    with _directory(file.parent) as root, _open_regular(root, file.name, file.parent) as stream:
        text = stream.read(limit + 1)
    if len(text) > limit:
        raise too_large(file, "is too large", expected=f"at most {limit} bytes", actual="more")
    return parse_json(text)


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[int]:
    """Yield a descriptor of the bundle's directory; the directory path itself may be a link, such as `current`."""
    try:
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise NotABundleError(
            path, f"cannot be opened as a directory ({error.strerror})", fix="check the path"
        ) from None
    try:
        yield root
    finally:
        os.close(root)


def _open_regular(root: int, name: str, path: Path) -> io.BufferedReader:
    """Open `name` below the directory `root` component by component, following no link; `path` is for messages."""
    copy = "replace it by a plain file, for example with `cp -rL --no-preserve=links`"
    *parents, last = name.split("/")
    with contextlib.ExitStack() as opened:
        here = root
        try:
            for parent in parents:
                here = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                opened.callback(os.close, here)
            # Non-blocking, because opening a named pipe would otherwise wait forever.
            file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnsafeFileError(
                path / name, f"cannot be opened as a plain file ({error.strerror})", fix=copy
            ) from None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(file)
        actual = f"{status.st_nlink} links" if stat.S_ISREG(status.st_mode) else stat.filemode(status.st_mode)
        raise UnsafeFileError(
            path / name, "is not safe to read", expected="a regular file with one link", actual=actual, fix=copy
        )
    return os.fdopen(file, "rb")


def _walk(root: int, path: Path) -> Iterator[str]:
    """Yield the names of all non-directories in the bundle. Links count as files, including links to directories."""
    for folder, folders, files, here in os.fwalk(".", dir_fd=root, follow_symlinks=False):
        links = [name for name in folders if stat.S_ISLNK(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)]
        for name in [*files, *links]:
            yield os.path.normpath(os.path.join(folder, name))
        if not files and not folders and folder != ".":
            raise DamagedFileError(path / folder, "is an empty directory", fix="remove it")


def _check_parity(manifest: Manifest, file: Path) -> None:
    listed = manifest.parity.get("checks")
    checks = [check if isinstance(check, dict) else {} for check in listed] if isinstance(listed, list) else []
    failed = [check.get("name") for check in checks if check.get("passed") is not True]
    if manifest.parity.get("passed") is not True or not checks or failed:
        names = ", ".join(map(str, failed)) or "no report of a passed verification"
        fix = "export again; if it fails again, the graphs do not compute what the model does"
        raise NotVerifiedError(file, f"verification failed: {names}", fix=fix)


def write_bundle(path: Path, build: Callable[[Path], Manifest], *, replace: bool = False) -> Manifest:
    """Let `build` fill a hidden directory beside `path`, then add the manifest and rename the directory into place.

    build(directory) writes every file except the manifest and returns the manifest; this function fills in its `files`.
    Exceptions from `build` propagate, and no files remain. With `replace`, an earlier bundle at `path` is moved aside
    first and deleted last. Raises BundleExistsError, or any BundleError from reading the result.
    """
    path = Path(path)
    taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if taken and not (replace and (path / MANIFEST).is_file()):
        fix = "choose another path" if replace else "choose another path, or ask for the bundle there to be replaced"
        raise BundleExistsError(
            path, "exists already" if (path / MANIFEST).is_file() else "exists and is not a bundle", fix=fix
        )
    with new_directory(path, replace=taken) as partial:
        manifest = build(partial)
        names = sorted(str(file.relative_to(partial).as_posix()) for file in partial.rglob("*") if not file.is_dir())
        for name in names:  # external weights are written for their owner only, but a server has a user of its own
            (partial / name).chmod(partial.stat().st_mode & 0o666)
        digests = {
            name: FileDigest(sha256=digest_of_file(partial / name), bytes=(partial / name).stat().st_size)
            for name in names
        }
        (partial / MANIFEST).write_text(dataclasses.replace(manifest, files=digests).to_json(), encoding="utf-8")
        return load_bundle(partial)
