import numpy as np
import pytest

from service.adaptors.inference import open_inference_pb2 as oip
from service.adaptors.tensors import NUMBERS, Tensor, add_output, input_tensors
from service.errors import InvalidRequest


def request(*inputs, raw=()):
    return oip.ModelInferRequest(inputs=inputs, raw_input_contents=raw)


def tensor(datatype="BYTES", shape=(1,), name="x", **fields):
    return {"name": name, "datatype": datatype, "shape": shape, **fields}


def test_texts_are_read_from_contents_and_from_raw_bytes():
    contents = request(tensor(shape=[2], contents={"bytes_contents": [b"a", "ö".encode()]}))
    raw = request(tensor(shape=[2]), raw=[b"\x01\0\0\0a\x02\0\0\0\xc3\xb6"])
    assert input_tensors(contents) == input_tensors(raw) == [Tensor("x", "BYTES", (2,), ["a", "ö"])]


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_of_every_type_are_read_from_contents_and_from_raw_bytes(datatype):
    kind, field = NUMBERS[datatype]
    values = np.array([[0, 1], [1, 0]], kind)
    raw = request(tensor(datatype, (2, 2)), raw=[values.tobytes()])
    contents = request(tensor(datatype, (2, 2), contents={field: values.ravel().tolist()}))
    assert input_tensors(raw) == input_tensors(contents) == [Tensor("x", datatype, (2, 2), [0, 1, 1, 0])]


@pytest.mark.parametrize("datatype", ["BYTES", *NUMBERS])
def test_outputs_can_be_read_as_inputs(datatype):
    written = Tensor("x", datatype, (2, 1), ["", "ö"] if datatype == "BYTES" else [1, 0])
    response = oip.ModelInferResponse()
    add_output(response, written)
    (output,) = response.outputs
    back = request(tensor(output.datatype, output.shape), raw=response.raw_output_contents)
    assert input_tensors(back) == [written]


@pytest.mark.parametrize(
    ("message", "field", "problem"),
    [
        (request(tensor("FP16")), "inputs[x]", "must have one of the datatypes BYTES, BOOL"),
        (request(tensor(shape=[-1])), "inputs[x]", "none negative"),
        (request(tensor(shape=[1] * 9)), "inputs[x]", "at most 8 dimensions"),
        (request(tensor(shape=[1] * 5000)), "inputs[x]", r"dimensions, none negative, got \([1, ]{59}$"),
        (request(tensor("FP16", name="y" * 5000)), f"inputs[{'y' * 60}]", "must have one of the datatypes"),
        (request(*[tensor(name="y" * 5000)] * 2), f"inputs[{'y' * 60}]", "given once"),
        (request(tensor(shape=[2], contents={"bytes_contents": [b"a"]})), "inputs[x]", "the 2 elements .* got 1"),
        (request(tensor(contents={"int_contents": [1]})), "inputs[x]", "the 1 elements .* got 0"),
        (request(tensor(contents={"bytes_contents": [b"\xff"]})), "inputs[x]", "UTF-8"),
        (request(tensor(), raw=[b"\x05\0\0\0a"]), "inputs[x]", "one is cut"),
        (request(tensor(), raw=[b"\x05\0"]), "inputs[x]", "one is cut"),
        (request(tensor("INT32"), raw=[b"\0\0\0"]), "inputs[x]", "4 bytes for each element, got 3"),
        (request(tensor(), tensor(name="y"), raw=[b""]), "raw_input_contents", "one for each of the 2 inputs, got 1"),
        (request(tensor(contents={"bytes_contents": [b"a"]}), raw=[b"\x01\0\0\0a"]), "inputs[x]", "not in both"),
        (request(tensor(), tensor()), "inputs[x]", "given once"),
        (
            request(tensor(parameters={"shared_memory_region": {"string_param": "r"}})),
            "inputs[x]",
            "shares no memory with clients",
        ),
    ],
)
def test_a_tensor_that_is_none_is_rejected(message, field, problem):
    with pytest.raises(InvalidRequest, match=problem) as caught:
        input_tensors(message)
    assert caught.value.field == field
