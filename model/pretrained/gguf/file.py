"""A GGUF file, or all parts of a split one: its metadata and its tensors, dequantized by the `gguf` package.

What the metadata mean is left to the other modules of this room. Format: ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFEndian,
    GGUFReader,
    GGUFValueType,
    ReaderField,
    ReaderTensor,
    dequantize,
)

from model.pretrained.files import Fields, PretrainedError

MAGIC = b"GGUF"
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")  # the name of a part, counted from 1
_LENGTH = 8  # bytes of the length of a text
_ARRAY_HEADER = 12  # bytes of the type of an array's elements and their number
_TYPES = {kind.value for kind in GGMLQuantizationType}


def _not_covered(tensor: str, kind: str) -> PretrainedError:
    fix = "quantize the model again in another type, such as Q8_0"
    return PretrainedError(f"weights: {tensor}: type {kind} cannot be dequantized; {fix}")


class _Reader(GGUFReader):
    """Reads arrays at once: the library takes 25 µs for each element, half a minute for a large vocabulary. Names the
    tensor whose type the library does not know, and the one that the file no longer holds."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY or self.byte_order == "S":
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count = GGUFValueType(self._get(orig_offs, np.uint32)[0]), self._get(orig_offs + 4, np.uint64)[0]
        offset, types = orig_offs + _ARRAY_HEADER, [GGUFValueType.ARRAY, kind]
        if (number := self.gguf_scalar_to_np.get(kind)) is not None:
            values = self._get(offset, number, count)
            if len(values) < count:
                raise ValueError(f"an array of {count} numbers at byte {orig_offs} ends beyond the file")
            return _ARRAY_HEADER + values.nbytes, [values], [0], types
        if kind != GGUFValueType.STRING:
            raise ValueError(f"an array of arrays at byte {orig_offs} is not covered")
        data, texts = self.data.data, list[npt.NDArray[Any]]()
        for _ in range(count):
            start = offset + _LENGTH
            offset = start + int.from_bytes(data[offset:start], "little")
            if offset > len(data):
                raise ValueError(f"an array of {count} texts at byte {orig_offs} ends beyond the file")
            texts.append(np.frombuffer(data[start:offset], np.uint8))
        return offset - orig_offs, texts, list(range(len(texts))), types

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        for field in fields:
            dimensions, kind, offset = (field.parts[part].tolist() for part in (3, 4, 5))
            if kind[0] not in _TYPES:
                raise _not_covered(field.name, str(kind[0]))
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])]
            end = start_offs + offset[0] + math.prod(dimensions) // block * size
            if end > len(self.data):
                raise ValueError(f"{field.name} ends at byte {end}, of {len(self.data)}")
        super()._build_tensors(start_offs, fields)


@dataclass(frozen=True, kw_only=True)
class Gguf:
    """What a file holds. fields: the metadata, of the first part. tensors: by name, of all parts, not yet read."""

    parts: tuple[Path, ...]
    fields: Fields
    tensors: Mapping[str, ReaderTensor]

    @property
    def tensor_types(self) -> str:
        """How many tensors are stored in which type, such as "Q4_1 210, F32 61"."""
        counts = Counter(tensor.tensor_type.name for tensor in self.tensors.values())
        return ", ".join(f"{name} {count}" for name, count in counts.most_common())

    def rows(self, name: str) -> int:
        """The first dimension of a tensor. Raises PretrainedError if it is missing."""
        if name not in self.tensors:
            raise PretrainedError(f"weights: {name} is missing")
        shape = self.tensors[name].shape
        return int(shape[-1]) if len(shape) else 0

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The values of a tensor, in the order of PyTorch: the output dimension first. Raises PretrainedError for a
        type that the library cannot dequantize."""
        stored = self.tensors[name]
        try:
            values = dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise _not_covered(name, stored.tensor_type.name) from error
        return np.array(values, dtype=np.float32)  # a copy, where the file is mapped


def is_gguf(path: Path) -> bool:
    """Whether a path names a GGUF file, there or not, or a file that begins as one."""
    if path.suffix.lower() == ".gguf":
        return not path.is_dir()
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_gguf(file: Path) -> Gguf:
    """The file, with the other parts of a split one, which lie beside it. Raises PretrainedError."""
    parts = _parts(file)
    readers = [_open(part) for part in parts]
    fields = Fields(_values(readers[0], parts[0]), file=str(parts[0]))
    count = fields.get("split.count", 0)
    if count not in (0, 1, len(parts)):
        raise PretrainedError(
            f"{file}: is one of {count} parts of a file, which must lie together, with names as x-00001-of-00003.gguf;"
            " give it the name that it had"
        )
    found = [(part, tensor) for part, reader in zip(parts, readers, strict=True) for tensor in reader.tensors]
    tensors = {tensor.name: tensor for _, tensor in found}
    if (expected := fields.get("split.tensors.count", len(found))) != len(tensors):
        raise PretrainedError(f"{file}: must hold {expected} tensors in all its parts, got {len(tensors)}")
    return Gguf(parts=parts, fields=fields, tensors=tensors)


def _parts(file: Path) -> tuple[Path, ...]:
    match = PART.fullmatch(file.name)
    if match is None:
        return (file,)
    count = int(match[3])
    parts = tuple(file.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))
    if missing := [part.name for part in parts if not part.is_file()]:
        raise PretrainedError(f"{file}: is one of {count} parts, of which {len(missing)} are missing: {missing[0]}, …")
    return parts


def _open(file: Path) -> GGUFReader:
    try:
        with file.open("rb") as stream:
            start = stream.read(len(MAGIC))
    except OSError as error:
        raise PretrainedError(f"{file}: cannot be read: {error}") from error
    if start != MAGIC:
        raise PretrainedError(f"{file}: is no GGUF file: it must begin with {MAGIC!r}, got {start!r}")
    try:
        reader = _Reader(file)
    except PretrainedError as error:
        raise PretrainedError(f"{file}: {error}") from error
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise PretrainedError(
            f"{file}: is no whole GGUF file of version 2 or 3: {error}; if it was cut off on its way, fetch it again"
        ) from error
    if reader.endianess != GGUFEndian.LITTLE:
        raise PretrainedError(f"{file}: is big-endian; convert a copy in place with `gguf-convert-endian FILE little`")
    return reader


def _values(reader: GGUFReader, file: Path) -> dict[str, Any]:
    values = {}
    for name, field in reader.fields.items():
        try:
            value = field.contents()
        except ValueError as error:  # bytes that are no UTF-8
            raise PretrainedError(f"{file}: {name}: cannot be read: {error}") from error
        # 1e-06, of which the file has the nearest number of single precision
        values[name] = float(str(np.float32(value))) if field.types == [GGUFValueType.FLOAT32] else value
    return values
