"""Products over integer weights: exact, complete, and each input rounded once."""

import copy

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from export.passes.error_feedback import Feedback
from export.passes.integer_weights import symmetric_columns
from export.passes.quantization_scheme import SCHEMES
from export.passes.quantize import quantize
from export.verification.emulated_quantization import read_roundings
from tests.export.passes.quantized_graphs import QUANTIZED, graph, operators


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("inputs", [32, 100])
def test_products_of_the_largest_weights_and_bytes_are_exact_on_this_processor(rows, inputs):
    """Without VNNI, kernels add up two products in 16 bits."""
    rng = np.random.default_rng(3)
    weight_KN = (rng.choice([-1, 1], (inputs, 48)) * rng.random((1, 48))).astype(np.float32)
    weight_KN[:, :16] = np.abs(weight_KN[:, :16])
    integers_KN, _ = symmetric_columns(weight_KN)
    x_MK = rng.choice([0, 254, 255], (rows, inputs)).astype(np.uint8)
    x_MK[0] = 255
    node = helper.make_node("MatMulInteger", ["x", "weight"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, ["rows", inputs])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, ["rows", 48])
    product = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(integers_KN, "weight")])
    model = helper.make_model(product, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found_MN,) = session.run(None, {"x": x_MK})
    assert np.array_equal(found_MN, x_MK.astype(np.int32) @ integers_KN.astype(np.int32))


def graphs_of_schemes():
    """Two graphs in float16 are traced for one scheme of this test alone."""
    for scheme in QUANTIZED:
        marks = [pytest.mark.slow] if SCHEMES[scheme].is_half else []
        yield from (("encoder_decoder", role, scheme) for role in ("encode", "decode"))
        yield pytest.param("encoder_decoder", "align", scheme, marks=marks)
        yield pytest.param("decoder rms", "decode", scheme, marks=marks)


@pytest.mark.parametrize(("architecture", "role", "scheme"), list(graphs_of_schemes()))
def test_no_matrix_of_floats_is_left(architecture, role, scheme):
    model = graph(architecture, role, scheme)
    wide = {
        tensor.name: tuple(tensor.dims)
        for tensor in model.graph.initializer
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
        and len(tensor.dims) == 2
        and min(tensor.dims) > 1
    }
    assert all(name.endswith((".positions", ".cos", ".sin", ".half")) for name in wide), wide
    assert not any(node.op_type == "Gemm" for node in model.graph.node)
    has_blocks = SCHEMES[scheme].for_role(role).block_size > 0
    kind = "MatMulNBits" if has_blocks else "MatMulIntegerToFloat"
    products = {("encoder_decoder", "encode"): 2 * 4 + 2, ("encoder_decoder", "decode"): 2 * 6 + 1}
    # The weights of the last layer are all that `align` wants of it.
    products |= {("encoder_decoder", "align"): 6 + 3, ("decoder rms", "decode"): 2 * 4 + 1}
    assert operators(model).count(kind) == products[architecture, role]


@pytest.mark.parametrize("scheme", ["w8a8-dynamic", "w8a8-static"])
def test_what_several_products_read_is_quantized_once(scheme):
    model = graph("encoder_decoder", "encode", scheme)
    # Two layers of four products, and one more input that the cross-attention of both layers reads.
    assert operators(model).count("QuantizeLinear") == 2 * 4 + 1


def test_products_of_weights_alone_round_no_activations_and_leave_the_bias_to_others():
    """Norms add the bias of products before them, which leaves three products of a layer with a bias of their own."""
    model = graph("encoder_decoder", "decode", "w4a16-block32")
    products = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    assert {attribute.name for node in products for attribute in node.attribute} == {"K", "N", "bits", "block_size"}
    assert {len(node.input) for node in products} == {3}
    results = {node.output[0] for node in products}
    biased = [node for node in model.graph.node if node.op_type == "Add" and results.intersection(node.input)]
    assert len(biased) == 2 * 3
    assert not {"QuantizeLinear", "MatMulIntegerToFloat"}.intersection(operators(model))


def test_a_static_product_after_a_rectifier_needs_no_rectifier():
    assert operators(graph("encoder_decoder", "decode", "w8a8-dynamic")).count("Relu") == 2
    assert operators(graph("encoder_decoder", "decode", "w8a8-static")).count("Relu") == 0


WIDTH, WIDER = 16, 40


def feed_forward(activation):
    """A norm, a product, an activation and another product: the graph, and the weights (K, N) of the products."""
    rng = np.random.default_rng(5)
    weights = {"inner.weight": rng.normal(size=(WIDTH, WIDER)), "outer.weight": rng.normal(size=(WIDER, WIDTH))}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "gain"], ["normed"]),
        helper.make_node("MatMul", ["normed", "inner.weight"], ["hidden"]),
        helper.make_node(activation, ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "outer.weight"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDTH]) for name in "xy")
    constants = {**weights, "gain": np.ones(WIDTH, np.float32)}.items()
    kept = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants]
    graph = helper.make_graph(nodes, "feed_forward", [x], [y], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), weights


def peaked(rows):
    """Inputs of a norm of which the third is far larger than the others."""
    x = np.random.default_rng(6).normal(size=(rows, WIDTH)).astype(np.float32)
    x[:, 2] *= 40
    return x


def moments_of(model, weights):
    """Of the inputs of both products for such inputs."""
    given = dict(zip(weights, ("normed", "active"), strict=True))
    seen = dict(zip(given, outputs(model, peaked(400), list(given.values())), strict=True))
    return {name: [value.T @ value] for name, value in seen.items()}


def outputs(model, x, names):
    asked = copy.deepcopy(model)
    del asked.graph.output[:]
    asked.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(asked.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(names, {"x": x})


@pytest.mark.parametrize(("activation", "zero"), [("Relu", 0), ("Gelu", 24), ("Tanh", 128)])
def test_rows_by_hand_have_the_zero_point_of_what_makes_them(activation, zero):
    model, weights = feed_forward(activation)
    quantized = quantize(model, "decode", SCHEMES["w8a8-dynamic"])
    x = peaked(7)
    found, active = outputs(quantized, x, ["y", "active"])
    high, low = 255 - zero, min(zero, 255 - zero)
    top = np.maximum(active, -active * high / low if low else active).max(1, keepdims=True)
    steps = np.rint(active / top * high)
    assert steps.min() >= -zero
    assert steps.max() == high
    integers_KN, scale_N = symmetric_columns(weights["outer.weight"])
    assert found == pytest.approx(steps @ integers_KN * scale_N * top / high, rel=1e-4, abs=1e-4)
    rounding = read_roundings([quantized]).products["outer.weight"].round_input
    assert rounding is not None
    assert rounding(torch.from_numpy(active)).numpy() == pytest.approx(steps * top / high, abs=1e-5)


def test_the_norm_of_large_channels_is_spread_before_it_is_rounded():
    model, weights = feed_forward("Gelu")
    moments, x = moments_of(model, weights), peaked(200)
    exact, normed = outputs(model, x, ["hidden", "normed"])
    plain = quantize(feed_forward("Gelu")[0], "decode", SCHEMES["w8a8-dynamic"])
    spread = quantize(model, "decode", SCHEMES["w8a8-dynamic"], feedback=Feedback(moments))
    assert operators(spread).count("Mul") == operators(plain).count("Mul") + 1
    errors = [float(np.abs(outputs(one, x, ["hidden"])[0] - exact).mean()) for one in (spread, plain)]
    assert errors[0] < errors[1] / 2
    found = read_roundings([spread]).products["inner.weight"]
    assert np.abs(found.values_NK - weights["inner.weight"].T).max() < 0.2
    assert found.round_input is not None
    rounded = found.round_input(torch.from_numpy(normed)).numpy()
    assert outputs(spread, x, ["hidden"])[0] == pytest.approx(rounded @ found.values_NK.T, rel=1e-4, abs=1e-4)
