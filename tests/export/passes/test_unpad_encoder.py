"""Packed sources give what padded ones give, to the bit, and nothing but attention sees padding."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from export.passes.unpad_encoder import unpad_encoder

SOURCES = ([3, 1, 4, 1, 5], [9, 2], [6, 5, 3])
WIDTH = 8  # of the batch: three positions after the longest source
BODY = """
    shape = Shape<start = 1>(source)
    width = Squeeze(shape)
    columns = Range(zero, width, one)
    row = Unsqueeze(columns, first)
    total = Cast<to = 6>(width)
    last = Sub(source_lengths, one32)
    vectors = Gather(table, source)
    places = Gather(positions, row)
    x = Add(vectors, places)
    normed = LayerNormalization<axis = -1>(x, gain)
    {middle}
    encoder_states = Add(x, mixed)
"""
ATTEND = """
    mixed = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1, causal = 0>(
        {query}, none, none, none, none, last, total)
"""


def graph(middle):
    """tokens → vectors of 16, with some nodes between the norm and the residual."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (int64[batch, source] source, int32[batch] source_lengths) => (float[batch, source, 16] encoder_states) {"""
        + BODY.format(middle=middle)
        + "}"
    )
    for node in model.graph.node:  # names that a text cannot have
        node.input[:] = [
            {"none": "", "positions": "encoder.embedding.positions"}.get(name, name) for name in node.input
        ]
    draw = np.random.default_rng(1)
    constants = {
        "table": draw.standard_normal((10, 16)).astype(np.float32),
        "encoder.embedding.positions": draw.standard_normal((WIDTH, 16)).astype(np.float32),
        "gain": draw.standard_normal(16).astype(np.float32),
        "zero": np.array(0),
        "one": np.array(1),
        "first": np.array([0]),
        "one32": np.array(1, np.int32),
        "axis": np.array([1]),
    }
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return model


WIDEN = "wide = Concat<axis = -1>(normed, normed)"  # packed query, key and value: 2 * 8 + 8 + 8
MIDDLES = {
    "attention": WIDEN + ATTEND.format(query="wide"),
    "a mean over places": "mean = ReduceMean<keepdims = 1>(normed, axis) mixed = Sub(normed, mean)",
    "a scalar of the batch": "number = Cast<to = 1>(width) mixed = Mul(normed, number)",
    "element by element": "mixed = Relu(normed)",
}


def states(model, *, also=()):
    model = ModelProto.FromString(model.SerializeToString())
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in also)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    source = np.array([[*ids, *[0] * (WIDTH - len(ids))] for ids in SOURCES])
    return session.run(None, {"source": source, "source_lengths": np.array([*map(len, SOURCES)], np.int32)})


@pytest.mark.parametrize("kind", ["attention", "element by element"])
def test_packed_sources_have_the_states_of_padded_ones(kind):
    (expected,) = states(graph(MIDDLES[kind]))
    (actual,) = states(unpad_encoder(graph(MIDDLES[kind])))
    assert actual.shape == expected.shape
    for row, ids in enumerate(SOURCES):
        assert np.array_equal(actual[row, : len(ids)], expected[row, : len(ids)])
        assert (actual[row, len(ids) :] == actual[row, len(ids) - 1]).all()


def test_what_does_not_attend_sees_no_padding_and_what_is_not_known_sees_it():
    packed = unpad_encoder(graph(MIDDLES["attention"]))
    (unknown,) = [node for node in packed.graph.node if node.op_type == "Concat"]
    tokens = sum(map(len, SOURCES))
    _, *seen = states(packed, also=("packed.normed", "packed.mixed", unknown.input[0]))
    assert [array.shape for array in seen] == [(1, tokens, 16), (1, tokens, 16), (len(SOURCES), WIDTH, 16)]


@pytest.mark.parametrize("kind", ["a mean over places", "a scalar of the batch"])
def test_tokens_mixed_with_what_has_no_known_layout_stay_as_they_are(kind):
    before = graph(MIDDLES[kind]).SerializeToString()
    assert unpad_encoder(graph(MIDDLES[kind])).SerializeToString() == before
