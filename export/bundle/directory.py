"""Bundle directories: reading, verifying and writing them safely.

A bundle holds `manifest.json`, `manifest.sha256` with its digest, `tokenizer.json` and the graphs of each precision.
`write_bundle` writes the manifest last and then renames the directory into place, so a directory without a manifest is
not a bundle. Every file is checked before its bytes reach another library: only regular files of one link (no symbolic
or hard links, pipes or devices) that belong to the directory's owner, root or this process and that not every user can
write, no path outside the directory, no file missing from the manifest, the size and SHA-256 of the opened file itself,
and of graphs the rules of `export.bundle.graph_rules`. A second link is refused because whoever owns it can change the
file.

**Between check and use.** Graphs are read once more through a descriptor of their own, hashed, and given to the runtime
as these bytes. Weights and tokenizers are opened again by name, weights by the runtime itself, which maps them:
`CheckedBundle.check_unchanged` finds every file that was replaced or written between its hash and the end of opening,
by inode, size and times of change. What remains is a change of the weights while a server runs, and a writer who can
set the clock of the kernel. A file system that is mounted read-only allows neither.

This module needs the standard library only (`model.checkpoints.atomic_write` does too), because servers import it
without torch, onnx or numpy installed.

    BundleError               base class; the message names file, expected and actual value, and the fix
    ├── NotABundleError       no manifest.json
    ├── ManifestError         the manifest is not JSON or does not match the schema
    ├── ShortlistError        the shortlist is not JSON or does not match the schema
    ├── VersionError          the manifest has an unsupported format version
    ├── NotVerifiedError      the parity report is missing or has a failed check
    ├── UnsafeFileError       a link, a device, or a path that leaves the directory
    ├── DamagedFileError      missing, unlisted, wrong size or wrong digest
    ├── GraphError            a graph that no export writes
    └── BundleExistsError     the output path already exists
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import io
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from export.bundle.bundle_files import (
    MAX_HOLE_BYTES,
    Stamp,
    directory,
    hole_bytes,
    open_regular,
    read_file,
    reported,
    walk,
)
from export.bundle.bundle_files import BundleError as BundleError
from export.bundle.bundle_files import DamagedFileError as DamagedFileError
from export.bundle.bundle_files import NotABundleError as NotABundleError
from export.bundle.bundle_files import UnsafeFileError as UnsafeFileError
from export.bundle.graph_rules import MAX_GRAPH_BYTES, check_graph
from export.bundle.manifest import FORMAT_VERSION, MANIFEST, MANIFEST_DIGEST, FileDigest, Manifest
from export.bundle.manifest_fields import SchemaError, shown
from export.bundle.manifest_migration import MIGRATIONS, migrated
from export.bundle.manifest_parser import parse_json, parse_manifest, parse_shortlist
from export.bundle.onnx_reader import read_model
from export.bundle.target_shortlist import Shortlist
from model.checkpoints.atomic_write import Disk, digest_of_file, new_directory, recover

MAX_MANIFEST_BYTES = 4 << 20  # a typical manifest has about 20 kB
FIRST_WITH_DIGEST = 11  # format version from which a bundle must have a MANIFEST_DIGEST
MAX_SHORTLIST_BYTES = 64 << 20  # a typical shortlist has about 20 bytes per target token in a source token's list


class ManifestError(BundleError): ...


class ShortlistError(BundleError): ...


class VersionError(BundleError): ...


class NotVerifiedError(BundleError): ...


class GraphError(BundleError): ...


class BundleExistsError(BundleError): ...


class CheckedBundle(NamedTuple):
    """A bundle whose files were checked. sha256: of the manifest, which holds those of all other files. stamps: of the
    files that were hashed, from the descriptors they were hashed through."""

    path: Path
    manifest: Manifest
    sha256: str
    stamps: Mapping[str, Stamp]

    def check_unchanged(self) -> None:
        """Call it when everything was opened by name. Raises DamagedFileError for a file that is no longer the one that
        was checked."""
        for name, stamp in self.stamps.items():
            with reported(self.path / name):
                if Stamp.of(os.stat(self.path / name, follow_symlinks=False)) == stamp:
                    continue
            fix = "replace a bundle by renaming directories, and start again"
            raise DamagedFileError(self.path / name, "was changed while the bundle was opened", fix=fix)


def load_bundle(path: Path) -> Manifest:
    """Check every file of the bundle at `path` and return its manifest. Raises BundleError."""
    return check_bundle(path).manifest


def load_manifest(path: Path) -> Manifest:
    """Return the manifest of the bundle at `path` after checking digest, schema, version and consistency.

    Hashes no other files. Raises BundleError.
    """
    return check_bundle(path, only=()).manifest


def check_bundle(path: Path, *, only: Collection[str] | None = None) -> CheckedBundle:
    """Check the bundle at `path`. only: the files that are checked besides the manifest. Raises BundleError."""
    path = Path(path)
    file = path / MANIFEST
    with directory(path) as root:
        try:
            data, stamp = read_file(root, MANIFEST, path, MAX_MANIFEST_BYTES, ManifestError)
        except FileNotFoundError:
            raise NotABundleError(
                path, f"has no {MANIFEST}, so it is not a bundle", fix="run `glossa export` again"
            ) from None
        sha256 = hashlib.sha256(data).hexdigest()
        try:
            values = parse_json(data)
            _check_digest(root, path, sha256, values.get("format_version"))
            manifest = parse_manifest(_current(values, file))
        except SchemaError as error:
            raise ManifestError(file, str(error)) from None
        except RecursionError:
            raise ManifestError(file, "is nested too deeply") from None
    _check_parity(manifest, file)
    stamps = {} if only is not None and not only else verify_files(path, manifest, only=only)
    return CheckedBundle(path, manifest, sha256, {MANIFEST: stamp, **stamps})


def _current(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """Values of any readable version in the current one. Raises VersionError."""
    version = values.get("format_version")
    if type(version) is not int or version not in (*MIGRATIONS, FORMAT_VERSION):
        known = " or ".join(map(str, (*MIGRATIONS, FORMAT_VERSION)))
        fix = f"export the checkpoint again with this version of glossa, or run one that reads version {shown(version)}"
        raise VersionError(file, "has an unknown format_version", expected=known, actual=shown(version), fix=fix)
    return migrated(values, version)


def _check_digest(root: int, path: Path, sha256: str, version: object) -> None:
    """Compare the digest of the manifest with the one beside it, which earlier formats do not have."""
    file = path / MANIFEST_DIGEST
    try:
        actual, _ = read_file(root, MANIFEST_DIGEST, path, 200, DamagedFileError)
    except FileNotFoundError:
        if type(version) is int and version < FIRST_WITH_DIGEST:
            return
        raise DamagedFileError(file, "is missing") from None
    if actual != digest_line(sha256):
        raise DamagedFileError(file, f"is not the digest of {MANIFEST}", expected=sha256, actual=shown(actual))


def digest_line(sha256: str) -> bytes:
    """The content of MANIFEST_DIGEST, which `sha256sum --check` understands."""
    return f"{sha256}  {MANIFEST}\n".encode()


def verify_files(path: Path, manifest: Manifest, *, only: Collection[str] | None = None) -> dict[str, Stamp]:
    """Check that exactly the listed files exist, as regular files with their size and digest, and that graphs follow
    the rules. only: the files that are read; None: all. Returns their stamps. Raises BundleError."""
    path, stamps = Path(path), dict[str, Stamp]()
    graphs = {graph.file: (variant, graph) for variant in manifest.variants for graph in variant.graphs.values()}
    with directory(path) as root:
        with reported(path):
            for name in walk(root, path) if only is None else ():
                if name not in manifest.files and name not in (MANIFEST, MANIFEST_DIGEST):
                    close = difflib.get_close_matches(name, manifest.files, n=1)
                    hint = f" (the closest listed file is {close[0]})" if close else ""
                    raise DamagedFileError(
                        path / name, f"is not listed in {MANIFEST}{hint}", fix="remove it, or export again"
                    )
        for name in sorted(manifest.files, key=lambda name: manifest.files[name].bytes):
            if only is not None and name not in only:
                continue
            with _open_checked(root, name, path, manifest.files[name]) as stream:
                stamps[name] = Stamp.of(os.fstat(stream.fileno()))
                if name not in graphs:
                    _check_sha256(path / name, manifest, name, hashlib.file_digest(stream, "sha256").hexdigest())
                    continue
                data = _checked_graph(stream, path / name, manifest, name)
                try:
                    check_graph(data, manifest, *graphs[name])
                except SchemaError as error:
                    raise GraphError(path / name, str(error)) from None
    return stamps


def read_graph(path: Path, manifest: Manifest, name: str) -> bytes:
    """Return the bytes of a graph of a bundle that was checked, if they are still those. Raises BundleError."""
    path = Path(path)
    with directory(path) as root, _open_checked(root, name, path, manifest.files[name]) as stream:
        return _checked_graph(stream, path / name, manifest, name)


def operators_of(graph: bytes) -> set[str]:
    """Return the types of the operators in a graph that was checked."""
    return {node["op_type"] for node in read_model(graph)["graph"]["node"]}


def _checked_graph(stream: io.BufferedReader, file: Path, manifest: Manifest, name: str) -> bytes:
    if manifest.files[name].bytes > MAX_GRAPH_BYTES:
        expected = f"at most {MAX_GRAPH_BYTES} bytes, and the weights in {name}.data"
        raise GraphError(file, "is too large for a graph", expected=expected, actual=manifest.files[name].bytes)
    data = stream.read()
    _check_sha256(file, manifest, name, hashlib.sha256(data).hexdigest())
    return data


def _check_sha256(file: Path, manifest: Manifest, name: str, actual: str) -> None:
    if actual != manifest.files[name].sha256:
        raise DamagedFileError(file, "has the wrong SHA-256", expected=manifest.files[name].sha256, actual=actual)


@contextlib.contextmanager
def _open_checked(root: int, name: str, path: Path, digest: FileDigest) -> Iterator[io.BufferedReader]:
    """Yield a file of the bundle that has the right size. Errors of reading it become BundleErrors, too."""
    try:
        stream = open_regular(root, name, path)
    except FileNotFoundError:
        raise DamagedFileError(path / name, "is missing") from None
    with stream, reported(path / name):
        size = os.fstat(stream.fileno()).st_size
        if size != digest.bytes:
            expected = f"{digest.bytes} bytes"
            raise DamagedFileError(path / name, "has the wrong size", expected=expected, actual=size)
        if size > MAX_HOLE_BYTES and (holes := hole_bytes(stream.fileno(), size)) > MAX_HOLE_BYTES:
            expected = f"at most {MAX_HOLE_BYTES} bytes without data"
            raise DamagedFileError(path / name, "is a sparse file", expected=expected, actual=holes)
        yield stream


def load_shortlist(file: Path, *, vocab_size: int | None = None, source_vocab_size: int = 0) -> Shortlist:
    """Return the shortlist in a bundle file, `path / manifest.shortlist`. Raises BundleError.

    vocab_size: exclusive upper bound of the ids; None disables that check. source_vocab_size: see `parse_shortlist`.
    """
    file = Path(file)
    try:
        with directory(file.parent) as root:
            data, _ = read_file(root, file.name, file.parent, MAX_SHORTLIST_BYTES, ShortlistError)
        return parse_shortlist(parse_json(data), vocab_size, source_vocab_size=source_vocab_size)
    except FileNotFoundError:
        raise DamagedFileError(file, "is missing") from None
    except SchemaError as error:
        raise ShortlistError(file, str(error)) from None


def _check_parity(manifest: Manifest, file: Path) -> None:
    checks = manifest.parity.get("checks", [])
    failed = [check.get("name") for check in checks if check.get("passed") is not True]
    if manifest.parity.get("passed") is not True or not checks or failed:
        names = ", ".join(map(str, failed)) or "no report of a passed verification"
        fix = "export again; if it fails again, the graphs do not compute what the model does"
        raise NotVerifiedError(file, f"verification failed: {names}", fix=fix)


def file_digests(path: Path) -> dict[str, FileDigest]:
    """The files of a directory as a manifest lists them, by their names in it."""
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if not file.is_dir()}
    return {
        name: FileDigest(sha256=digest_of_file(files[name]), bytes=files[name].stat().st_size) for name in sorted(files)
    }


def write_bundle(
    path: Path, build: Callable[[Path], Manifest], *, replace: bool = False, disk: Disk | None = None
) -> Manifest:
    """Let `build` fill a hidden directory beside `path`, then add the manifest and rename the directory into place.

    build(directory) writes every file except the manifest and returns the manifest; this function fills in its `files`.
    Exceptions from `build` propagate, and no files remain. With `replace`, an earlier bundle at `path` is moved aside
    first and deleted last. disk: for tests. Raises BundleExistsError, any BundleError from reading the result, OSError.
    """
    path, disk = Path(path), disk or Disk()
    recover(path, disk)
    taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if taken and not (replace and (path / MANIFEST).is_file()):
        fix = "choose another path" if replace else "choose another path, or ask for the bundle there to be replaced"
        raise BundleExistsError(
            path, "exists already" if (path / MANIFEST).is_file() else "exists and is not a bundle", fix=fix
        )
    with new_directory(path, disk, replace=taken) as partial:
        manifest = build(partial)
        digests = file_digests(partial)
        for name in digests:  # external weights are written for their owner only, but a server has a user of its own
            (partial / name).chmod(partial.stat().st_mode & 0o664)
        data = dataclasses.replace(manifest, files=digests).to_json().encode()
        disk.write(partial / MANIFEST, data)
        disk.write(partial / MANIFEST_DIGEST, digest_line(hashlib.sha256(data).hexdigest()))
        return load_bundle(partial)
