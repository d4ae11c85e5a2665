"""The items of a model file of Marian: an `.npz` archive of numpy, or a `.bin` file.

A `.bin` file is little-endian: version and number of items as uint64; for each item the lengths of its name, shape and
data, with its type between (4 uint64); names, each with a final 0; shapes (int32); a uint64 and as many bytes of
padding; the data. Matrices of type intgemm8 and intgemm16 hold integers and, behind them, the float32 that a weight was
multiplied by; all but embeddings are transposed. (browsermt/marian-dev: src/common/binary.cpp,
src/tensors/cpu/expression_graph_packable.h)
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model.pretrained.files import PretrainedError
from model.pretrained.marian.options import read_yaml

Array = npt.NDArray[Any]

VERSION = 1
OPTIONS = "special:model.yml"  # the item that holds the configuration
EMBEDDING = "Wemb"  # in the name of an embedding, which is not transposed
INT8 = 0x0101  # of texts
PLAIN: Mapping[int, np.dtype[Any]] = {0x0404: np.dtype("<f4"), 0x0402: np.dtype("<f2"), 0x0408: np.dtype("<f8")}
INTEGER: Mapping[int, np.dtype[Any]] = {0x4101: np.dtype("<i1"), 0x4102: np.dtype("<i2")}  # with a multiplier
NAMES = {0x0101: "text", 0x0404: "float32", 0x0402: "float16", 0x0408: "float64", 0x4101: "intgemm8"}
NAMES |= {0x4102: "intgemm16", 0x0802: "packed16", 0x1801: "packed8avx2", 0x2801: "packed8avx512"}
PACKED_FIX = "its layout is that of one processor; convert the .npz, or ask for intgemm8 (marian-conv -g intgemm8)"
AGAIN = "if it was cut off on its way, fetch it again"
MAX_ITEMS, MAX_NAME, MAX_AXES = 1 << 16, 1 << 10, 8
MAX_GROWTH = 16  # of an archive; Marian's are not compressed


@dataclass(frozen=True, kw_only=True)
class Items:
    """What a file holds: the options of its model, and its tensors by name in float32; types: how many were stored in
    which."""

    options: Mapping[str, Any]
    tensors: Mapping[str, Array]
    types: str


class _Header(NamedTuple):
    name_length: int
    type: int
    axes: int
    data_length: int


def read_items(file: Path) -> Items:
    """Raises PretrainedError for a file that is not whole, of another version, or of a type that is not covered."""
    try:
        return _archive(file) if file.suffix == ".npz" else _binary(file, file.read_bytes())
    except OSError as error:
        raise PretrainedError(f"{file}: cannot be read: {error}") from error


def _archive(file: Path) -> Items:
    try:
        with (
            file.open("rb") as stream,
            zipfile.ZipFile(stream) as entries,
            np.load(stream, allow_pickle=False) as archive,
        ):
            if (size := sum(entry.file_size for entry in entries.infolist())) > MAX_GROWTH * file.stat().st_size:
                raise ValueError(f"it grows to {size} bytes, more than {MAX_GROWTH} times its size")
            arrays = {name: archive[name] for name in archive.files}
    except OSError:
        raise
    except Exception as error:  # those of zipfile, zlib, tokenize and numpy have no common class
        raise PretrainedError(f"{file}: is no whole .npz archive: {error}; {AGAIN}") from error
    if OPTIONS not in arrays:
        raise PretrainedError(f"{file}: holds no {OPTIONS}: it is no model of Marian; give its .npz or .bin")
    options = _options(file, arrays.pop(OPTIONS).tobytes())
    counts = Counter(array.dtype.name for array in arrays.values())
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise PretrainedError(f"{file}: {name}: type {array.dtype} is not covered; covered: floats")
    tensors = {name: array.astype(np.float32) for name, array in arrays.items()}
    return Items(options=options, tensors=tensors, types=_counted(counts))


def _binary(file: Path, data: bytes) -> Items:
    reader = _Reader(file, data)
    version, count = reader.numbers("Q", 2)
    if version != VERSION:
        raise PretrainedError(
            f"{file}: has version {version}, a .bin of Marian {VERSION}: it is of another format; give a model "
            "that marian-conv has written, or the .npz"
        )
    if not 0 < count <= MAX_ITEMS:
        raise PretrainedError(f"{file}: must hold 1..{MAX_ITEMS} items, got {count}; {AGAIN}")
    headers = [_Header(*reader.numbers("Q", 4)) for _ in range(count)]
    for header in headers:
        if not 0 < header.name_length <= MAX_NAME or header.axes > MAX_AXES:
            raise PretrainedError(
                f"{file}: an item has a name of {header.name_length} bytes and {header.axes} axes; {AGAIN}"
            )
    names = [reader.take(header.name_length).rstrip(b"\0").decode("utf-8", "replace") for header in headers]
    shapes = [reader.numbers("i", header.axes) for header in headers]
    reader.take(reader.numbers("Q", 1)[0])
    options: Mapping[str, Any] | None = None
    tensors, counts = dict[str, Array](), Counter[str]()
    for name, shape, header in zip(names, shapes, headers, strict=True):
        stored = reader.take(header.data_length)
        if name == OPTIONS and header.type == INT8:
            options = _options(file, stored)
            continue
        counts[_name_of(header.type)] += 1
        try:
            tensors[name] = _tensor(name, shape, header.type, stored)
        except ValueError as error:
            raise PretrainedError(f"{file}: {name}: {error}") from None
    if options is None:
        raise PretrainedError(f"{file}: holds no {OPTIONS}; convert the model again, or give its .npz")
    return Items(options=options, tensors=tensors, types=_counted(counts))


def _tensor(name: str, shape: tuple[int, ...], kind: int, stored: bytes) -> Array:
    """The values of a tensor, float32. Raises ValueError."""
    if min(shape, default=1) < 1:
        raise ValueError(f"must have a shape of positive sizes, got {shape}")
    size = math.prod(shape)
    if kind in PLAIN:
        return _numbers(stored, PLAIN[kind], size).astype(np.float32).reshape(shape)
    if kind not in INTEGER:
        fix = PACKED_FIX if kind & 0x0800 else f"covered: {', '.join(NAMES[one] for one in (*PLAIN, *INTEGER))}"
        raise ValueError(f"type {_name_of(kind)} is not covered; {fix}")
    integers = _numbers(stored, INTEGER[kind], size)
    multiplier = float(_numbers(stored[integers.nbytes :], np.dtype("<f4"), 1)[0])
    if not (math.isfinite(multiplier) and multiplier > 0):
        raise ValueError(f"the multiplier of its integers must be above 0, got {multiplier}; {AGAIN}")
    values = integers.astype(np.float32) / np.float32(multiplier)
    if EMBEDDING in name or len(shape) != 2:
        return values.reshape(shape)
    return np.ascontiguousarray(values.reshape(shape[::-1]).T)


def _numbers(stored: bytes, dtype: np.dtype[Any], size: int) -> Array:
    if len(stored) < size * dtype.itemsize:
        raise ValueError(f"must have {size * dtype.itemsize} bytes, got {len(stored)}; {AGAIN}")
    return np.frombuffer(stored, dtype, size)


def _options(file: Path, text: bytes) -> Mapping[str, Any]:
    try:
        values = read_yaml(text.rstrip(b"\0"))
    except ValueError as error:
        raise PretrainedError(f"{file}: {OPTIONS} is no YAML: {error}; {AGAIN}") from error
    if not isinstance(values, dict):
        raise PretrainedError(f"{file}: {OPTIONS} must hold options by name, got {values!r:.80}; {AGAIN}")
    return values


def _name_of(kind: int) -> str:
    return NAMES.get(kind, f"{kind:#06x}")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


class _Reader:
    """Reads a file from its beginning. Raises PretrainedError where it ends."""

    def __init__(self, file: Path, data: bytes) -> None:
        self._file, self._data, self._at = file, data, 0

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise PretrainedError(
                f"{self._file}: ends at byte {len(self._data)}, amid {size} bytes from byte {self._at}; {AGAIN}"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def numbers(self, kind: str, count: int) -> tuple[int, ...]:
        layout = f"<{count}{kind}"
        return struct.unpack(layout, self.take(struct.calcsize(layout)))
