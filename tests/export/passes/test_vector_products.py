"""Products with a vector become products with a matrix, which give the same numbers."""

import copy

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from export.passes.vector_products import widen_vectors
from export.variants import trace_model
from tests.export.graphs.kinds import ADDITIVE
from tests.tiny import tiny_config, tiny_model

SHAPES = {"vector": (8,), "matrix": (8, 3)}


def a_model(node, result):
    text = (
        f'<ir_version: 10, opset_import: ["": 21]> g (float[2, 1, 5, 8] x, float[8] other) => ({result} y) {{ {node} }}'
    )
    model = onnx.parser.parse_model(text)
    draw = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        if name in node:
            model.graph.initializer.append(numpy_helper.from_array(draw.normal(size=shape).astype(np.float32), name))
    return model


def answer(model):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {
        "x": np.random.default_rng(1).normal(size=(2, 1, 5, 8)).astype(np.float32),
        "other": np.ones(8, np.float32),
    }
    return session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})[0]


def test_a_product_with_a_vector_has_a_matrix_of_one_column():
    model = a_model("y = MatMul(x, vector)", "float[2, 1, 5]")
    widened = widen_vectors(copy.deepcopy(model))
    assert [node.op_type for node in widened.graph.node] == ["MatMul", "Squeeze"]
    assert {tensor.name: tuple(tensor.dims) for tensor in widened.graph.initializer} == {
        "vector.column": (8, 1),
        "column.axis": (1,),
    }
    np.testing.assert_allclose(answer(widened), answer(model), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("node", "result"),
    [
        ("y = MatMul(x, matrix)", "float[2, 1, 5, 3]"),
        ("y = MatMul(x, other)", "float[2, 1, 5]"),
        ("y = Add(x, vector)", "float[2, 1, 5, 8]"),
    ],
    ids=["a matrix", "no constant", "no product"],
)
def test_other_nodes_stay(node, result):
    model = a_model(node, result)
    assert widen_vectors(copy.deepcopy(model)).graph.node == model.graph.node


@pytest.mark.parametrize(("scheme", "is_half"), [("fp16", True), pytest.param("fp32", False, marks=pytest.mark.slow)])
def test_only_fp16_graphs_of_an_additive_score_change(scheme, is_half):
    model = tiny_model(tiny_config("recurrent", **ADDITIVE[scheme]))
    traced = trace_model(model.half() if is_half else model, attention=True)
    decode = traced.graphs["decode"].graph
    vectors = {tensor.name for tensor in decode.initializer if len(tensor.dims) == 1}
    assert any(node.op_type == "MatMul" and node.input[1] in vectors for node in decode.node) != is_half
