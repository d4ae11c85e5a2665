"""Products over integer weights: exact, complete, and each input rounded once."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.passes.integer_weights import symmetric_columns
from export.passes.quantization_scheme import SCHEMES
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
