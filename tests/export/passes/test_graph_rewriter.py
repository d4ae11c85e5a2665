"""Nodes are replaced in place, and constants are shared by their values."""

import numpy as np
import onnx.parser
from onnx import numpy_helper

from export.passes.graph_rewriter import GraphRewriter

NODES = "a = MatMul(x, w) b = Neg(a) y = Abs(b)"


def rewriter():
    text = f'<ir_version: 10, opset_import: ["": 23]> g (float[N,2] x) => (float[N,3] y) {{ {NODES} }}'
    graph = onnx.parser.parse_model(text).graph
    graph.initializer.append(numpy_helper.from_array(np.ones((2, 3), np.float32), "w"))
    return GraphRewriter(graph, "new")


def test_replacements_take_the_place_of_old_nodes():
    rewriting = rewriter()
    doubled = rewriting.add("Add", ["a", "a"])
    rewriting.add("Relu", [doubled], "b")
    nodes = rewriting.added()
    assert rewriting.added() == []
    rewriting.replace({1: nodes, 2: []})
    assert [(node.op_type, *node.input, *node.output) for node in rewriting.graph.node] == [
        ("MatMul", "x", "w", "a"),
        ("Add", "a", "a", doubled),
        ("Relu", doubled, "b"),
    ]
    assert len({node.name for node in rewriting.graph.node} | {"", doubled}) == 4, "names are unique"


def test_a_constant_is_added_once_for_each_of_its_values():
    rewriting = rewriter()
    ones, twos = np.ones(2, np.float32), np.full(2, 2, np.float32)
    assert rewriting.constant("c", ones) == rewriting.constant("c", ones.copy()) == "c"
    other = rewriting.constant("c", twos)
    assert other != "c"
    assert [tensor.name for tensor in rewriting.graph.initializer] == ["w", "c", other]
    np.testing.assert_array_equal(rewriting.array(other), twos)
    assert rewriting.array(rewriting.scalar(np.float32(3))).shape == (1,)
    assert rewriting.scalar(np.int8(0)) != rewriting.scalar(np.uint8(0)), "of another type"


def test_a_product_has_the_width_of_its_constant():
    rewriting = rewriter()
    assert rewriting.width_of("a") == 3
    assert [node.op_type for node in rewriting.users("a")] == ["Neg"]


def test_an_output_has_the_type_and_shape_of_an_input():
    rewriting = rewriter()
    assert rewriting.output("passed", "x") == "passed"
    like, made = rewriting.graph.input[0], rewriting.graph.output[-1]
    assert (made.name, made.type) == ("passed", like.type)
