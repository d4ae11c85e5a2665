"""A writer of small graphs in ONNX's wire format: servers compute with some beside those of a bundle, and have no
library for the format. `export.bundle.onnx_reader` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

IR_VERSION, OPSET = 10, 21
TYPES = {"float32": 1, "int64": 7, "bool": 9}  # TensorProto.DataType

Value = tuple[str, str, Sequence[int | str]]
"""Of an input or output: its name, its type, and its sizes, or names for them."""


class Node:
    """An operator. attributes: whole numbers, or lists of them."""

    def __init__(self, operator: str, inputs: Sequence[str], *outputs: str, **attributes: int | Sequence[int]) -> None:
        self.operator, self.inputs, self.outputs, self.attributes = operator, inputs, outputs, attributes


def model(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], constants: Mapping[str, np.ndarray]
) -> bytes:
    """A ModelProto. nodes: each after those whose outputs it reads."""
    graph = [_bytes(1, _node(node)) for node in nodes] + [_bytes(2, b"graph")]
    graph += [_bytes(5, _tensor(name, values)) for name, values in constants.items()]
    graph += [_bytes(11, _value(*value)) for value in inputs] + [_bytes(12, _value(*value)) for value in outputs]
    return _number(1, IR_VERSION) + _bytes(7, b"".join(graph)) + _bytes(8, _number(2, OPSET))


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _node(node: Node) -> bytes:
    names = [_bytes(1, name.encode()) for name in node.inputs] + [_bytes(2, name.encode()) for name in node.outputs]
    attributes = [_attribute(name, value) for name, value in node.attributes.items()]
    return b"".join([*names, _bytes(4, node.operator.encode()), *attributes])


def _attribute(name: str, value: int | Sequence[int]) -> bytes:
    is_int = isinstance(value, int)
    numbers = _number(3, value) if isinstance(value, int) else b"".join([_number(8, item) for item in value])
    return _bytes(5, _bytes(1, name.encode()) + numbers + _number(20, 2 if is_int else 7))


def _tensor(name: str, values: np.ndarray) -> bytes:
    sizes = b"".join([_number(1, size) for size in values.shape])
    return sizes + _number(2, TYPES[values.dtype.name]) + _bytes(8, name.encode()) + _bytes(9, values.tobytes())


def _value(name: str, kind: str, sizes: Sequence[int | str]) -> bytes:
    dims = b"".join([_bytes(1, _number(1, n) if isinstance(n, int) else _bytes(2, n.encode())) for n in sizes])
    tensor = _number(1, TYPES[kind]) + _bytes(2, dims)
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))
