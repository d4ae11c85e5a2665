"""Tensors of the Open Inference Protocol ↔ lists of Python values, in row-major order.

The elements of a tensor are in its contents or, as bytes, beside all tensors of a message. Nothing here knows what a
tensor means.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from service.adaptors.inference import open_inference_pb2 as oip
from service.errors import InvalidRequest

NUMBERS = {  # by datatype: as numpy has them, and their field of InferTensorContents
    "BOOL": ("?", "bool_contents"),
    "INT8": ("i1", "int_contents"),
    "INT16": ("<i2", "int_contents"),
    "INT32": ("<i4", "int_contents"),
    "INT64": ("<i8", "int64_contents"),
    "UINT8": ("u1", "uint_contents"),
    "UINT16": ("<u2", "uint_contents"),
    "UINT32": ("<u4", "uint_contents"),
    "UINT64": ("<u8", "uint64_contents"),
    "FP32": ("<f4", "fp32_contents"),
    "FP64": ("<f8", "fp64_contents"),
}
BYTES = "BYTES"
LENGTH = struct.Struct("<I")  # before each element of BYTES
MAX_DIMENSIONS = 8
SHOWN = 60  # characters of a name or a shape in an error


class Tensor(NamedTuple):
    """A tensor. values: str where the datatype is BYTES."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Sequence[Any]


def input_tensors(message: oip.ModelInferRequest) -> list[Tensor]:
    """The inputs of a request. Raises InvalidRequest."""
    raw: Sequence[bytes | None] = message.raw_input_contents or (None,) * len(message.inputs)
    if len(raw) != len(message.inputs):
        problem = f"must be empty or one for each of the {len(message.inputs)} inputs, got {len(raw)}"
        raise InvalidRequest("raw_input_contents", problem)
    names = set[str]()
    for tensor in message.inputs:
        if tensor.name in names:
            raise InvalidRequest(_field(tensor), "must be given once")
        names.add(tensor.name)
    return [_tensor(tensor, data) for tensor, data in zip(message.inputs, raw, strict=True)]


def _field(tensor: oip.ModelInferRequest.InferInputTensor) -> str:
    return f"inputs[{tensor.name:.{SHOWN}}]"


def _tensor(tensor: oip.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Tensor:
    field, shape = _field(tensor), tuple(tensor.shape)
    if tensor.datatype != BYTES and tensor.datatype not in NUMBERS:
        known = ", ".join((BYTES, *NUMBERS))
        raise InvalidRequest(field, f"must have one of the datatypes {known}, got {tensor.datatype!r:.40}")
    if any(name.startswith("shared_memory") for name in tensor.parameters):
        raise InvalidRequest(field, "must be in the message: this server shares no memory with clients")
    if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
        raise InvalidRequest(
            field, f"must have at most {MAX_DIMENSIONS} dimensions, none negative, got {shape!s:.{SHOWN}}"
        )
    if raw is None:
        contents = BYTES if tensor.datatype == BYTES else NUMBERS[tensor.datatype][1]
        values = list(getattr(tensor.contents, "bytes_contents" if contents == BYTES else contents))
    elif tensor.HasField("contents"):
        raise InvalidRequest(field, "must have its elements in contents or in raw_input_contents, not in both")
    else:
        values = _elements(raw, field) if tensor.datatype == BYTES else _numbers(raw, tensor.datatype, field)
    if len(values) != math.prod(shape):
        raise InvalidRequest(
            field, f"must have the {math.prod(shape)} elements of its shape {shape}, got {len(values)}"
        )
    if tensor.datatype == BYTES:
        values = [_text(value, field) for value in values]
    return Tensor(tensor.name, tensor.datatype, shape, values)


def _numbers(raw: bytes, datatype: str, field: str) -> list[Any]:
    kind = np.dtype(NUMBERS[datatype][0])
    if len(raw) % kind.itemsize:
        raise InvalidRequest(field, f"must have {kind.itemsize} bytes for each element, got {len(raw)} bytes in all")
    values: list[Any] = np.frombuffer(raw, kind).tolist()
    return values


def _elements(raw: bytes, field: str) -> list[bytes]:
    """Elements of BYTES, each after its length."""
    values, at = [], 0
    while at < len(raw):
        start = at + LENGTH.size
        end = start + LENGTH.unpack_from(raw, at)[0] if start <= len(raw) else start
        if end > len(raw):
            raise InvalidRequest(field, "must have a length of 4 bytes, little-endian, before each element; one is cut")
        values.append(raw[start:end])
        at = end
    return values


def _text(value: bytes, field: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(field, "must be text in UTF-8") from None


def add_output(message: oip.ModelInferResponse, tensor: Tensor) -> None:
    """Appends an output to a response."""
    message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    if tensor.datatype == BYTES:
        encoded = [value.encode() for value in tensor.values]
        raw = b"".join(part for value in encoded for part in (LENGTH.pack(len(value)), value))
    else:
        raw = np.array(tensor.values, NUMBERS[tensor.datatype][0]).tobytes()
    message.raw_output_contents.append(raw)
