"""A reader of ONNX's wire format, for graphs that nothing has checked yet: what they consist of, without their weights.

ONNX is a protocol buffer; `onnx.proto` names its fields. A library would read them, too, but servers have none for this
format, and this reader answers a narrower question: is the file one that every parser reads alike? So what parsers
merge, skip or guess is refused: unknown fields, a singular field twice, another wire type than the field's, text that
is not UTF-8. Fields that exports do not write, functions and sparse tensors among them, are unknown here. Time and
memory are linear in the size of the file without weights. This module uses the standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
MAX_MESSAGES = 1 << 17  # in a file: nodes, their attributes, tensors, types, …; 100 layers have about 40,000
MAX_DEPTH = 24  # of messages inside of each other; a graph in a node of a graph has 12
MAX_PACKED_BYTES = 1 << 16  # of a list of numbers outside of weights

Message = dict[str, Any]  # by the name of a field; repeated fields are lists, and absent ones are missing


class WireFormatError(ValueError):
    """The bytes are not a message of the expected kind."""


class Field(NamedTuple):
    """A field of a message. read: from its value on the wire; a nested message has a table of its own."""

    name: str
    wire: int
    read: Callable[[Any], Any] | dict[int, Field]
    is_repeated: bool = False


def read_model(data: bytes) -> Message:
    """Return the ModelProto in `data`; weights are memoryviews of it. Raises WireFormatError."""
    return _Reader().message(memoryview(data), MODEL, MAX_DEPTH)


class _Reader:
    def __init__(self) -> None:
        self._messages = 0

    def message(self, data: memoryview, fields: Mapping[int, Field], depth: int) -> Message:
        if not depth:
            raise WireFormatError(f"is nested more than {MAX_DEPTH} deep")
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            raise WireFormatError(f"has more than {MAX_MESSAGES} nodes, attributes, tensors and types")
        found: Message = {}
        offset, end = 0, len(data)
        while offset < end:
            tag, offset = _varint(data, offset, end)
            field = fields.get(tag >> 3)
            if field is None:
                raise WireFormatError(f"has a field of number {tag >> 3}, which no export writes")
            wire = tag & 7
            value: Any = None
            if wire == VARINT:
                value, offset = _varint(data, offset, end)
            elif wire in (BYTES, FIXED32, FIXED64):
                size = {FIXED32: 4, FIXED64: 8}.get(wire, 0)
                if wire == BYTES:
                    size, offset = _varint(data, offset, end)
                if size > end - offset:
                    raise WireFormatError(f"ends within its field {field.name}")
                value, offset = data[offset : offset + size], offset + size
            self._store(found, field, wire, value, depth - 1)
        return found

    def _store(self, found: Message, field: Field, wire: int, value: Any, depth: int) -> None:
        if wire == BYTES and field.wire != BYTES and field.is_repeated:  # numbers may be packed
            items = _unpacked(value, field)
        elif wire != field.wire:
            raise WireFormatError(f"has a field {field.name} of wire type {wire} instead of {field.wire}")
        elif isinstance(field.read, dict):
            items = [self.message(value, field.read, depth)]
        else:
            items = [field.read(value)]
        if field.is_repeated:
            found.setdefault(field.name, []).extend(items)
        elif field.name in found:
            raise WireFormatError(f"has the field {field.name} twice")
        else:
            found[field.name] = items[0]


def _varint(data: memoryview, offset: int, end: int) -> tuple[int, int]:
    """Return an unsigned number of at most 64 bits and the offset after it."""
    if offset < end and data[offset] < 128:  # most are short
        return data[offset], offset + 1
    value = shift = 0
    while offset < end and shift < 70:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 64:
                break
            return value, offset
        shift += 7
    raise WireFormatError("has a number that does not end, or of more than 64 bits")


def _unpacked(data: memoryview, field: Field) -> list[Any]:
    assert not isinstance(field.read, dict)
    if len(data) > MAX_PACKED_BYTES:
        raise WireFormatError(f"has {len(data)} bytes of {field.name}, more than {MAX_PACKED_BYTES}")
    if field.wire == VARINT:
        items, offset = [], 0
        while offset < len(data):
            value, offset = _varint(data, offset, len(data))
            items.append(field.read(value))
        return items
    if len(data) % 4:
        raise WireFormatError(f"ends within its field {field.name}")
    return [field.read(data[offset : offset + 4]) for offset in range(0, len(data), 4)]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _text(value: memoryview) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise WireFormatError(f"has a text that is not UTF-8 ({error.reason})") from None


def _float(value: memoryview) -> float:
    number: float = struct.unpack("<f", value)[0]
    return number


def _view(value: memoryview) -> memoryview:
    return value


def _int(name: str, *, is_repeated: bool = False) -> Field:
    return Field(name, VARINT, _signed, is_repeated)


def _string(name: str, *, is_repeated: bool = False) -> Field:
    return Field(name, BYTES, _text, is_repeated)


def _many(name: str, fields: dict[int, Field]) -> Field:
    return Field(name, BYTES, fields, True)


# The messages of onnx.proto, each with the fields that exports write.
_ENTRY = {1: _string("key"), 2: _string("value")}
_DIMENSION = {1: _int("size"), 2: _string("symbol")}
_SHAPE = {1: _many("dims", _DIMENSION)}
_TENSOR_TYPE = {1: _int("elem_type"), 2: Field("shape", BYTES, _SHAPE)}
_VALUE = {
    1: _string("name"),
    2: Field("type", BYTES, {1: Field("tensor_type", BYTES, _TENSOR_TYPE)}),
    3: _string("doc_string"),
}
_TENSOR = {
    1: _int("dims", is_repeated=True),
    2: _int("data_type"),
    4: Field("float_data", FIXED32, _float, True),
    5: _int("int32_data", is_repeated=True),
    7: _int("int64_data", is_repeated=True),
    8: _string("name"),
    9: Field("raw_data", BYTES, _view),
    12: _string("doc_string"),
    13: _many("external_data", _ENTRY),
    14: _int("data_location"),
}
_GRAPH: dict[int, Field] = {}  # a node's attribute may be a graph
_ATTRIBUTE = {
    1: _string("name"),
    2: Field("float", FIXED32, _float),
    3: _int("int"),
    4: _string("string"),
    5: Field("tensor", BYTES, _TENSOR),
    6: Field("graph", BYTES, _GRAPH),
    7: Field("floats", FIXED32, _float, True),
    8: _int("ints", is_repeated=True),
    9: _string("strings", is_repeated=True),
    20: _int("type"),
}
_NODE = {
    1: _string("input", is_repeated=True),
    2: _string("output", is_repeated=True),
    3: _string("name"),
    4: _string("op_type"),
    5: _many("attribute", _ATTRIBUTE),
    6: _string("doc_string"),
    7: _string("domain"),
}
_GRAPH |= {
    1: _many("node", _NODE),
    2: _string("name"),
    5: _many("initializer", _TENSOR),
    10: _string("doc_string"),
    11: _many("input", _VALUE),
    12: _many("output", _VALUE),
}
MODEL: Mapping[int, Field] = {
    1: _int("ir_version"),
    2: _string("producer_name"),
    3: _string("producer_version"),
    4: _string("domain"),
    6: _string("doc_string"),
    7: Field("graph", BYTES, _GRAPH),
    8: _many("opset_import", {1: _string("domain"), 2: _int("version")}),
}
