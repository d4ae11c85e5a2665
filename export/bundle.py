"""The bundle: a directory that a server can trust. What its manifest says, how it is read and written safely.

A bundle holds `manifest.json`, `tokenizer.json` and the graphs of each precision. The manifest is written last and the
directory renamed into place afterwards, so a directory without a manifest is not a bundle. Everything is checked before
a byte reaches another library: regular files only (no symbolic or hard links, pipes or devices), no path outside the
directory, no file the manifest does not list, sizes and SHA-256 of the very file that was opened.

Standard library only: servers import this module where torch, onnx and numpy are not installed. It never opens a graph.

    BundleError               what failed; the message names file, expected, actual and fix
    ├── NotABundleError       no manifest.json
    ├── ManifestError         the manifest is not JSON, or not of this form
    ├── VersionError          a manifest of another format version
    ├── NotVerifiedError      the parity report is missing or has a failed check
    ├── UnsafeFileError       a link, a device, a path that leaves the directory
    ├── DamagedFileError      missing, unlisted, wrong size or wrong digest
    └── BundleExistsError     the place to write to is taken
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
MAX_MANIFEST_BYTES = 4 << 20  # a real one has some 20 kB
FILE_NAME = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*\.(?:json|onnx|data)")

# How graphs are run. Verification proves a graph under these settings and no others; a server uses the same.
SESSION_THREADS = 1  # intra-op; one engine per core beats several threads on one step
SESSION_OPTIMIZATION = "ORT_ENABLE_ALL"
SESSION_CONFIG: Mapping[str, str] = types.MappingProxyType(
    {
        # The fused kernel is a scalar loop on CPUs (84 against 14 microseconds at 32x512) and computes E[x²]-mean².
        "optimization.disable_specified_optimizers": "SkipLayerNormFusion;BiasSkipLayerNormFusion",
    }
)
# How inputs are shaped, so that the bits of a row do not depend on the rows beside it: a kernel computes a remainder of
# one row in another order. Sources and first blocks are padded to multiples of these, which may be beyond the limits.
SOURCE_MULTIPLE = 16
PREFILL_MULTIPLE = 8

StateKind = Literal["self_kv", "cross_kv", "recurrent"]
Role = Literal["encode", "decode"]
Task = Literal["translation", "generation"]


class BundleError(Exception):
    """A bundle cannot be read or written."""

    def __init__(
        self, file: str | Path, problem: str, *, fix: str, expected: object = None, actual: object = None
    ) -> None:
        parts = [f"{file}: {problem}"]
        if expected is not None:
            parts.append(f"expected {expected}, found {actual}")
        super().__init__("; ".join([*parts, f"fix: {fix}"]))
        self.file, self.problem, self.expected, self.actual, self.fix = str(file), problem, expected, actual, fix


class NotABundleError(BundleError): ...


class ManifestError(BundleError): ...


class VersionError(BundleError): ...


class NotVerifiedError(BundleError): ...


class UnsafeFileError(BundleError): ...


class DamagedFileError(BundleError): ...


class BundleExistsError(BundleError): ...


@dataclass(frozen=True, kw_only=True)
class StateSpec:
    """One tensor kept between calls. Symbolic axes of `shape` are strings.

    self_kv: `decode` reads "past.NAME" and writes "present.NAME", which a runner binds to the same memory.
    cross_kv: `encode` writes NAME and `decode` reads it.
    """

    name: str
    kind: StateKind
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    role: Role
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The graphs of one precision."""

    precision: str
    graphs: dict[str, GraphSpec]  # by role
    states: tuple[StateSpec, ...]


@dataclass(frozen=True, kw_only=True)
class Limits:
    vocab_size: int
    max_source_len: int  # tokens, end token included; 0: the model has no source
    max_target_len: int  # positions of the decoder: prompt and new tokens together
    max_block: int  # tokens of one `decode` call: 1, or 0 for any number


@dataclass(frozen=True, kw_only=True)
class Tokens:
    pad: int
    bos: int
    eos: int
    unk: int


@dataclass(frozen=True, kw_only=True)
class Golden:
    """A question and its greedy answer, end token included: repeated by a server before it says it is ready."""

    source: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class FileDigest:
    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """manifest.json. `files` lists every other file by its path with "/" inside the bundle."""

    format_version: int = FORMAT_VERSION
    architecture: str
    task: Task
    tokens: Tokens
    limits: Limits
    variants: tuple[Variant, ...]
    golden: Golden
    lineage: dict[str, Any]
    parity: dict[str, Any]
    created: str  # ISO 8601, UTC
    files: dict[str, FileDigest] = dataclasses.field(default_factory=dict)

    def variant(self, precision: str) -> Variant:
        for variant in self.variants:
            if variant.precision == precision:
                return variant
        raise KeyError(f"no {precision} graphs here; there are: {', '.join(v.precision for v in self.variants)}")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


# ---- reading


def load_bundle(path: Path) -> Manifest:
    """The manifest of a bundle whose every file was checked. Raises BundleError."""
    manifest = load_manifest(path)
    verify_files(path, manifest)
    return manifest


def load_manifest(path: Path) -> Manifest:
    """The manifest of the bundle at `path`: form, version, consistency. Hashes nothing. Raises BundleError."""
    file = Path(path) / MANIFEST
    with _directory(Path(path)) as root:
        try:
            with _open_regular(root, MANIFEST, Path(path)) as stream:
                text = stream.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            raise NotABundleError(
                path, f"has no {MANIFEST}, so it is not a bundle", fix="run `glossa export` again"
            ) from None
    again = "export the bundle again, or copy it again from where it is whole"
    if len(text) > MAX_MANIFEST_BYTES:
        raise ManifestError(
            file, "is too large", expected=f"at most {MAX_MANIFEST_BYTES} bytes", actual="more", fix=again
        )
    try:
        values = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # bad UTF-8 and endless digits are ValueErrors too
        raise ManifestError(file, f"is not JSON ({error})", fix=again) from None
    if not isinstance(values, dict):
        raise ManifestError(file, "is not a JSON object", expected="{…}", actual=type(values).__name__, fix=again)
    version = values.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        fix = f"export the checkpoint with this version of glossa, or run one that reads version {version!r}"
        raise VersionError(
            file, "has an unknown format_version", expected=FORMAT_VERSION, actual=repr(version), fix=fix
        )
    try:
        manifest: Manifest = _parse(Manifest, values, "")
        _check(manifest)
    except _FormError as wrong:
        raise ManifestError(file, str(wrong), fix=again) from None
    _check_parity(manifest, file)
    return manifest


def verify_files(path: Path, manifest: Manifest) -> None:
    """Every file is there, is a plain file, has its size and digest, and there is no other. Raises BundleError."""
    path = Path(path)
    again = "copy the bundle again from where it is whole, or export it again"
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
                        raise DamagedFileError(
                            path / name, "has the wrong size", expected=f"{digest.bytes} bytes", actual=size, fix=again
                        )
                    actual = hashlib.file_digest(stream, "sha256").hexdigest()
            except FileNotFoundError:
                raise DamagedFileError(path / name, "is missing", fix=again) from None
            if actual != digest.sha256:
                raise DamagedFileError(
                    path / name, "has the wrong SHA-256", expected=digest.sha256, actual=actual, fix=again
                )


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[int]:
    """A descriptor of the bundle's directory, which may itself be reached through a link, such as `current`."""
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
    """Opens `name` below the directory `root` component by component, following no link; `path` is for messages."""
    copy = "replace it by a plain file, for example with `cp -rL --no-preserve=links`"
    *parents, last = name.split("/")
    with contextlib.ExitStack() as opened:
        here = root
        try:
            for parent in parents:
                here = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                opened.callback(os.close, here)
            # Not blocking: a named pipe would otherwise wait for ever.
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
    """Names of everything in the bundle that is not a directory; links count as files, also those to directories."""
    for folder, folders, files, here in os.fwalk(".", dir_fd=root, follow_symlinks=False):
        links = [name for name in folders if stat.S_ISLNK(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)]
        for name in [*files, *links]:
            yield os.path.normpath(os.path.join(folder, name))
        if not files and not folders and folder != ".":
            raise DamagedFileError(path / folder, "is an empty directory", fix="remove it")


# ---- the manifest's form


class _FormError(ValueError):
    """A value in the manifest: where it stands and what is wrong."""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return result


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _parse(kind: Any, value: Any, where: str) -> Any:
    """`value` as the type `kind`: a dataclass, tuple, dict, literal, union or plain type. Raises _FormError."""
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _parse_fields(kind, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_parse(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _parse(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin in (types.UnionType, Union) and type(value) in arguments:
        return value
    if origin is Literal and value in arguments:
        return value
    if kind is Any or type(value) is kind:
        return value
    wanted = " or ".join(map(repr, arguments)) if origin is Literal else getattr(kind, "__name__", str(kind))
    raise _FormError(f"{where} must be {wanted}, got {value!r:.80}")


def _parse_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _FormError(f"{where or 'the manifest'} must be an object, got {value!r:.80}")
    hints, prefix = get_type_hints(kind), f"{where}." if where else ""
    for key in value:
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(hints))}"
            raise _FormError(f"{prefix}{key:.80} is an unknown key; {hint}")
    for key in hints:
        if key not in value:
            raise _FormError(f"{prefix}{key} is missing")
    return kind(**{key: _parse(hints[key], value[key], prefix + key) for key in hints})


def _check(manifest: Manifest) -> None:
    """What the types do not say. Raises _FormError."""
    for name, digest in manifest.files.items():
        if not FILE_NAME.fullmatch(name) or name == MANIFEST:
            raise _FormError(
                f"files.{name!r:.80} is not a name for a file of a bundle: relative, and .json, .onnx or .data"
            )
        if digest.bytes < 0 or not re.fullmatch("[0-9a-f]{64}", digest.sha256):
            raise _FormError(f"files.{name} must have a size of at least 0 and 64 lower-case hexadecimal digits")
    graphs = [graph.file for variant in manifest.variants for graph in variant.graphs.values()]
    for name in (TOKENIZER, *graphs):
        if name not in manifest.files:
            raise _FormError(f"files does not list {name!r:.80}")
    limits = manifest.limits
    for name, value in dataclasses.asdict(limits).items():
        least = 1 if name in ("vocab_size", "max_target_len") else 0
        if value < least:
            raise _FormError(f"limits.{name} must be at least {least}, got {value}")
    golden = manifest.golden
    ids = [*dataclasses.astuple(manifest.tokens), *golden.source, *golden.prompt, *golden.output]
    if not all(0 <= token < limits.vocab_size for token in ids):
        raise _FormError(f"tokens and golden must hold ids of 0..{limits.vocab_size - 1}")
    if not golden.prompt or not golden.output or bool(golden.source) != bool(limits.max_source_len):
        raise _FormError("golden must have a prompt, an output, and a source exactly when the model has one")
    if not manifest.variants or len({v.precision for v in manifest.variants}) != len(manifest.variants):
        raise _FormError("variants must hold at least one, each of its own precision")
    for variant in manifest.variants:
        _check_variant(variant, has_source=bool(limits.max_source_len))


def _check_variant(variant: Variant, *, has_source: bool) -> None:
    where = f"variants {variant.precision}"
    roles = {"encode", "decode"} if has_source else {"decode"}
    if set(variant.graphs) != roles or any(role != graph.role for role, graph in variant.graphs.items()):
        raise _FormError(
            f"{where}: graphs must be exactly {' and '.join(sorted(roles))}, got {', '.join(variant.graphs)}"
        )
    decode = variant.graphs["decode"]
    for state in variant.states:
        if state.kind == "cross_kv":
            written, read = variant.graphs["encode"].outputs if has_source else (), decode.inputs
            names = state.name, state.name
        else:
            written, read = decode.outputs, decode.inputs
            names = f"present.{state.name}", f"past.{state.name}"
        if names[0] not in written or names[1] not in read:
            raise _FormError(f"{where}: no graph writes {names[0]} or none reads {names[1]}")


def _check_parity(manifest: Manifest, file: Path) -> None:
    listed = manifest.parity.get("checks")
    checks = [check if isinstance(check, dict) else {} for check in listed] if isinstance(listed, list) else []
    failed = [check.get("name") for check in checks if check.get("passed") is not True]
    if manifest.parity.get("passed") is not True or not checks or failed:
        names = ", ".join(map(str, failed)) or "no report of a passed verification"
        fix = "export again; if it fails again, the graphs do not compute what the model does"
        raise NotVerifiedError(file, f"verification failed: {names}", fix=fix)


# ---- writing


def write_bundle(path: Path, build: Callable[[Path], Manifest], *, replace: bool = False) -> Manifest:
    """Lets `build` fill a hidden directory beside `path`, then adds the manifest and renames it into place.

    build(directory) writes every file but the manifest and returns the manifest, whose `files` are filled in here.
    Whatever `build` raises passes through, and nothing is left behind. With `replace` an earlier bundle at `path` is
    moved aside first and deleted last. Raises BundleExistsError, or any BundleError that reading the result raises.
    """
    path = Path(path)
    taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if taken and not (replace and (path / MANIFEST).is_file()):
        fix = "choose another path" if replace else "choose another path, or ask for the bundle there to be replaced"
        raise BundleExistsError(
            path, "exists already" if (path / MANIFEST).is_file() else "exists and is not a bundle", fix=fix
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    partial.mkdir()
    try:
        manifest = build(partial)
        names = sorted(str(file.relative_to(partial).as_posix()) for file in partial.rglob("*") if not file.is_dir())
        manifest = dataclasses.replace(manifest, files={name: _digest(partial / name) for name in names})
        (partial / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        manifest = load_bundle(partial)
        _sync(partial)
        old = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
        if taken:
            path.rename(old)
        partial.rename(path)
        _sync_one(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _digest(file: Path) -> FileDigest:
    with file.open("rb") as stream:
        return FileDigest(sha256=hashlib.file_digest(stream, "sha256").hexdigest(), bytes=file.stat().st_size)


def _sync(path: Path) -> None:
    """Files first, then the directories that name them, so that a power cut leaves all of it or none."""
    for file in sorted(path.rglob("*"), key=lambda file: -len(file.parts)):
        _sync_one(file)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
