"""The reader of ONNX's wire format, against the library, and on bytes that parsers read differently."""

import itertools
import random

import pytest

from export.bundle import onnx_reader
from export.bundle.onnx_reader import WireFormatError, read_model
from tests.export.bundle.manifests import a_manifest, a_model


def a_file():
    variant = a_manifest().variants[0]
    return a_model(variant, variant.graphs["decode"])


def test_a_model_is_read_as_the_library_reads_it():
    model, found = a_file(), read_model(a_file().SerializeToString())
    assert found["ir_version"] == model.ir_version
    assert [value["name"] for value in found["graph"]["input"]] == [value.name for value in model.graph.input]
    assert [(node["op_type"], node["input"]) for node in found["graph"]["node"]] == [
        (node.op_type, list(node.input)) for node in model.graph.node
    ]
    dims = found["graph"]["input"][2]["type"]["tensor_type"]["shape"]["dims"]
    assert dims == [{"symbol": "batch"}, {"size": 2}, {"symbol": "capacity"}, {"size": 8}]


def test_numbers_may_be_packed_or_not():
    plain, packed = b"\x40\x01\x40\x7f", b"\x42\x02\x01\x7f"  # field 8, ints
    for data in (plain, packed, b"\x40\x01\x42\x01\x7f"):
        attribute = b"\x0a\x04" + data if len(data) == 4 else b"\x0a" + bytes([len(data)]) + data
        assert onnx_reader._Reader().message(memoryview(attribute)[2:], onnx_reader._ATTRIBUTE, 9)["ints"] == [1, 127]
    negative = b"\x18" + b"\xff" * 9 + b"\x01"
    assert onnx_reader._Reader().message(memoryview(negative), onnx_reader._ATTRIBUTE, 9)["int"] == -1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x08\x0a\x08\x0b", "has the field ir_version twice"),
        (b"\x3a\x00\x3a\x00", "has the field graph twice"),
        (b"\x0a\x01a", "has a field ir_version of wire type 2 instead of 0"),
        (b"\x0b\x0c", "has a field ir_version of wire type 3"),
        (b"\x12\x05a", "ends within its field producer_name"),
        (b"\x12\x01\xff", "has a text that is not UTF-8"),
        (b"\x08" + b"\xff" * 11, "has a number that does not end"),
        (b"\x08" + b"\xff" * 9 + b"\x7f", "or of more than 64 bits"),
        (b"\x08", "has a number that does not end"),
        (b"\xca\x01\x00", "has a field of number 25, which no export writes"),
        (b"\x00\x00", "has a field of number 0"),
    ],
)
def test_what_parsers_read_differently_is_refused(data, message):
    with pytest.raises(WireFormatError, match=message):
        read_model(data)


def test_messages_are_counted(monkeypatch):
    monkeypatch.setattr(onnx_reader, "MAX_MESSAGES", 10)
    with pytest.raises(WireFormatError, match="has more than 10 nodes"):
        read_model(a_file().SerializeToString())
    monkeypatch.setattr(onnx_reader, "MAX_PACKED_BYTES", 1)
    with pytest.raises(WireFormatError, match="has 2 bytes of ints, more than 1"):
        onnx_reader._Reader().message(memoryview(b"\x42\x02\x01\x7f"), onnx_reader._ATTRIBUTE, 9)


def test_messages_inside_of_each_other_are_limited():
    data = b""
    for number in itertools.islice(itertools.cycle([0x32, 0x2A, 0x0A]), 3000):  # a graph of an attribute of a node
        data = bytes([number]) + varint(len(data)) + data
    with pytest.raises(WireFormatError, match="is nested more than 24 deep"):
        read_model(b"\x3a" + varint(len(data)) + data)


def varint(number):
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def test_any_bytes_are_read_or_refused():
    draw, data = random.Random(1), a_file().SerializeToString()
    refused = 0
    for _ in range(2000):
        mutant = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            mutant[draw.randrange(len(mutant))] ^= 1 << draw.randrange(8)
        try:
            read_model(bytes(mutant[: draw.randint(0, 2 * len(mutant))]))
        except WireFormatError:
            refused += 1
    assert refused > 500
