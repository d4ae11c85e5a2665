"""Each pass where it must fire, and where it must not."""

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.passes import optimize


def a_model(nodes, inputs="float[N] x", outputs="float[N] y", **constants):
    """A model from text, with constants by name."""
    text = f'<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.array(a), name) for name, a in constants.items())
    return model


def lines(model):
    """Nodes as "Op(inputs) -> outputs"."""
    return [f"{node.op_type}({','.join(node.input)}) -> {','.join(node.output)}" for node in model.graph.node]


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ("a = Identity(x) y = Relu(a)", ["Relu(x) -> y"]),
        ("a = Relu(x) y = Identity(a)", ["Relu(x) -> y"]),
        ("a = Cast<to=1>(x) y = Relu(a)", ["Relu(x) -> y"]),
        ("a = Identity(x) b = Identity(a) y = Add(a, b)", ["Add(x,x) -> y"]),
        ("a = Relu(x) b = Identity(a) y = Identity(b)", ["Relu(x) -> y"]),
        # and where dropping one would lose something
        ("y = Identity(x)", ["Identity(x) -> y"]),
        ("a = Cast<to=10>(x) y = Cast<to=1>(a)", ["Cast(x) -> a", "Cast(a) -> y"]),
    ],
)
def test_operators_that_do_nothing_are_removed(nodes, left):
    assert lines(optimize.remove_no_ops(a_model(nodes))) == left


def test_an_output_that_is_also_used_keeps_its_identity():
    model = a_model("a = Relu(x) b = Identity(a) y = Identity(b) z = Neg(b)", outputs="float[N] y, float[N] z")
    assert lines(optimize.remove_no_ops(model)) == ["Relu(x) -> a", "Identity(a) -> y", "Neg(a) -> z"]
    model = a_model("y = Relu(x) z = Identity(y)", outputs="float[N] y, float[N] z")
    assert lines(optimize.remove_no_ops(model)) == ["Relu(x) -> y", "Identity(y) -> z"]


def test_indexing_rows_of_a_table_becomes_one_gather():
    model = a_model("a = Unsqueeze(x, axes) y = GatherND(table, a)", "int64[N] x", axes=[-1], table=np.eye(3))
    assert lines(optimize.gather_rows(model)) == ["Gather(table,x) -> y"]
    assert [tensor.name for tensor in model.graph.initializer] == ["table"]


@pytest.mark.parametrize(("axes", "batch_dims"), [([0], 0), ([-1], 1)])
def test_other_indexing_is_left_alone(axes, batch_dims):
    nodes = f"a = Unsqueeze(x, axes) y = GatherND<batch_dims={batch_dims}>(table, a)"
    before = lines(model := a_model(nodes, "int64[N] x", axes=axes, table=np.eye(3)))
    assert lines(optimize.gather_rows(model)) == before


ATTENTION = "y = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads={kv}>({q}, {k}, {v}, p, p, l, t)"
SPLIT = "q, k, v = Split<axis={axis}>(x, sizes) "


def attention(split=SPLIT, axis=2, kv=2, q="q", k="k", v="v", sizes=(32, 16, 16), more=""):
    return a_model((split + ATTENTION + more).format(axis=axis, kv=kv, q=q, k=k, v=v), sizes=sizes)


def test_split_before_attention_is_packed_into_it():
    for axis in (2, -1):
        model = optimize.pack_query_key_value(attention(axis=axis))
        assert lines(model) == ["GroupQueryAttention(x,,,p,p,l,t) -> y"]
        assert not model.graph.initializer


@pytest.mark.parametrize(
    "changes",
    [
        {"q": "k", "k": "q"},  # another order than the operator's
        {"axis": 1},
        {"kv": 4},  # sizes of another number of heads
        {"sizes": (32, 16, 8)},
        {"more": " z = Neg(k)"},  # the parts are needed elsewhere; here by nothing, but the pass cannot know
        {"split": "qq, k, v = Split<axis=2>(x, sizes) q = Neg(qq) "},  # rotary positions stand between
        {"split": "q, k, v = Split<axis=2, num_outputs=3>(x) "},  # equal parts, which queries and keys need not have
    ],
)
def test_attention_that_cannot_be_packed_is_left_alone(changes):
    model = attention(**changes)
    assert "GroupQueryAttention(x,,,p,p,l,t) -> y" not in lines(optimize.pack_query_key_value(model))
    assert any(line.startswith("Split") for line in lines(model))


RESIDUAL = """
    a = com.microsoft.MatMulNBits<K=8, N=8, bits=4, block_size=16>(x, weight, scale)
    s = Add(x, a)
    n = RMSNormalization<axis=-1, epsilon=0.5, stash_type=1>(s, gain)
    y = Add(s, n)
"""


def test_a_residual_sum_is_computed_by_the_norm_behind_it():
    model = optimize.sum_in_norms(a_model(RESIDUAL))
    assert lines(model) == [
        "MatMulNBits(x,weight,scale) -> a",
        "SkipSimplifiedLayerNormalization(x,a,gain) -> n,,,s",
        "Add(s,n) -> y",
    ]
    assert helper.get_node_attr_value(model.graph.node[1], "epsilon") == 0.5
    assert len(model.graph.node[1].attribute) == 1
    model = optimize.sum_in_norms(a_model(RESIDUAL.replace("epsilon=0.5, ", "")))
    epsilon = helper.get_node_attr_value(model.graph.node[1], "epsilon")
    assert epsilon == pytest.approx(1e-5), "the default of one operator is not that of the other"


@pytest.mark.parametrize(
    "changes",
    [
        {"com.microsoft.MatMulNBits<K=8, N=8, bits=4, block_size=16>(x, weight, scale)": "Relu(x)"},
        {"axis=-1": "axis=0"},
        {"RMSNormalization": "LayerNormalization"},
        {"Add(x, a)": "Sub(x, a)"},
    ],
)
def test_other_sums_and_norms_are_left_alone(changes):
    nodes = RESIDUAL
    for old, new in changes.items():
        assert old in nodes
        nodes = nodes.replace(old, new)
    before = lines(model := a_model(nodes))
    assert lines(optimize.sum_in_norms(model)) == before


def test_of_two_norms_of_one_sum_one_computes_it():
    nodes = RESIDUAL.replace("y = Add(s, n)", "m = RMSNormalization<axis=-1>(s, other) y = Add(m, n)")
    assert lines(optimize.sum_in_norms(a_model(nodes)))[1:3] == [
        "SkipSimplifiedLayerNormalization(x,a,gain) -> n,,,s",
        "RMSNormalization(s,other) -> m",
    ]


def test_equal_constants_become_one():
    ones = np.ones((2, 2), np.float32)
    model = a_model("a = Add(x, b) y = Mul(a, c)", b=ones, c=ones.copy())
    assert lines(optimize.share_initializers(model)) == ["Add(x,b) -> a", "Mul(a,b) -> y"]
    assert [tensor.name for tensor in model.graph.initializer] == ["b"]


@pytest.mark.parametrize("other", [np.zeros((2, 2), np.float32), np.ones((4,), np.float32), np.ones((2, 2), np.int32)])
def test_constants_that_differ_in_value_shape_or_type_stay(other):
    model = a_model("a = Add(x, b) y = Mul(a, c)", b=np.ones((2, 2), np.float32), c=other)
    assert lines(optimize.share_initializers(model)) == ["Add(x,b) -> a", "Mul(a,c) -> y"]


def test_what_no_output_needs_is_removed():
    model = a_model("a = Relu(x) b = Add(a, c) y = Neg(x)", c=[1.0], d=[2.0])
    assert lines(optimize.remove_unused(model)) == ["Neg(x) -> y"]
    assert not model.graph.initializer


def test_a_node_of_whose_outputs_one_is_used_stays():
    model = a_model("y, a = Split<num_outputs=2, axis=0>(x)")
    assert lines(optimize.remove_unused(model)) == ["Split(x) -> y,a"]


def test_metadata_and_names_of_the_exporter_are_forgotten():
    def traced(prefix, attributes):
        node = helper.make_node("Gemm", ["x", "x"], [prefix + "1"], **dict(attributes))
        node.doc_string, node.name = f"File /home/{prefix}/model.py", prefix
        helper.set_model_props(
            model := helper.make_model(
                helper.make_graph(
                    [node, helper.make_node("Neg", [prefix + "1"], ["y"])],
                    prefix,
                    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
                    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"], doc_string=prefix)],
                    doc_string=prefix,
                    value_info=[helper.make_tensor_value_info(prefix + "1", TensorProto.FLOAT, ["N"])],
                ),
                producer_name=prefix,
                producer_version="9",
                doc_string=prefix,
            ),
            {"path": prefix},
        )
        holders: list[Any] = [model.graph, *model.graph.node, model.graph.input[0], model.graph.output[0]]
        for holder in holders:
            entry = holder.metadata_props.add()
            entry.key, entry.value = "pkg.torch.onnx.stack_trace", prefix
        return optimize.strip_metadata(model).SerializeToString()

    one, other = traced("alice", [("alpha", 1.0), ("transB", 1)]), traced("bob", [("transB", 1), ("alpha", 1.0)])
    assert one == other
    assert b"alice" not in one
    assert b"stack_trace" not in one


def test_inputs_outputs_and_constants_keep_their_names():
    model = optimize.strip_metadata(
        a_model("a, b = Split<axis=0, num_outputs=2>(x) c = Add(a, k) y = Mul(b, c)", k=[1.0])
    )
    assert lines(model) == ["Split(x) -> Split_0,Split_0.1", "Add(Split_0,k) -> Add_1", "Mul(Split_0.1,Add_1) -> y"]


def test_constants_are_named_after_the_weights_they_hold():
    weight, bias = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    model = a_model("a = MatMul(x, v1) b = Add(a, v2) y = Mul(b, v3)", v1=weight.T, v2=bias, v3=np.float32(2.0))
    named = optimize.name_weights(
        model, optimize.weight_names({"layer.weight": weight, "layer.bias": bias, "twin.bias": bias})
    )
    assert lines(named) == ["MatMul(x,layer.weight.T) -> a", "Add(a,layer.bias) -> b", "Mul(b,constant_2) -> y"]


def test_a_weight_called_like_an_input_does_not_take_its_name():
    model = a_model("y = Mul(x, v)", v=np.ones(3, np.float32))
    assert lines(optimize.name_weights(model, optimize.weight_names({"x": np.ones(3, np.float32)}))) == [
        "Mul(x,constant_0) -> y"
    ]


def test_position_tables_have_rows_for_padding():
    model = a_model("y = Relu(x)")
    tables = {"t.embedding.positions": np.arange(6.0).reshape(3, 2), "other": np.arange(6.0).reshape(3, 2)}
    model.graph.initializer.extend(numpy_helper.from_array(table, name) for name, table in tables.items())
    longer, other = map(numpy_helper.to_array, optimize.round_up_tables(model, 4).graph.initializer)
    assert longer.tolist() == [[0, 1], [2, 3], [4, 5], [4, 5]]
    assert len(other) == 3
    assert len(numpy_helper.to_array(optimize.round_up_tables(model, 2).graph.initializer[0])) == 4
