"""Biases within the weights of products: in fp16 graphs only, behind norms whose outputs have a known sum."""

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from export.passes.fold_biases import fold_biases
from export.passes.quantization_scheme import SCHEMES
from export.variants import save_variant, trace_model
from tests.tiny import tiny_config, tiny_model

WIDTH = 32
NORM = "n = LayerNormalization<axis=-1>(x, gain, shift)"
SKIP = "n = com.microsoft.SkipLayerNormalization(x, z, gain, shift, before)"
PRODUCT = "a = MatMul(n, weight) y = Add(a, bias)"
NARROW = np.r_[1e-6, 1e-6, np.ones(WIDTH - 2)]
ANOTHER = "y = com.microsoft.SkipLayerNormalization(s, n, gain, shift, after)"


def a_model(nodes, **values):
    """A float16 model of [2, 3, WIDTH] with random weights from text; values: of some of them."""
    shape = f"float16[2, 3, {WIDTH}]"
    domains = '"": 23, "com.microsoft": 1'
    text = f"<ir_version: 10, opset_import: [{domains}]> g ({shape} x, {shape} z) => ({shape} y) {{ {nodes} }}"
    model = onnx.parser.parse_model(text)
    draw = np.random.default_rng(0)
    vectors = ("bias", "gain", "shift", "before", "after")
    for name in ("weight", "other", *vectors):
        array = draw.normal(size=WIDTH if name in vectors else (WIDTH, WIDTH), scale=0.3) + (name == "gain")
        if name in nodes:
            tensor = np.asarray(values.get(name, array), np.float16)
            model.graph.initializer.append(numpy_helper.from_array(tensor, name))
    return model


def operators(model):
    return [node.op_type for node in model.graph.node]


def answer(model):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(1)
    inputs = {name: draw.normal(size=(2, 3, WIDTH)).astype(np.float16) for name in ("x", "z")}
    given = {value.name for value in session.get_inputs()}
    return session.run(None, {name: array for name, array in inputs.items() if name in given})[0].astype(np.float64)


@pytest.mark.parametrize(
    ("nodes", "values"),
    [
        (f"{NORM} {PRODUCT}", {}),
        (f"{SKIP} {PRODUCT}", {}),
        (f"{NORM} a = MatMul(n, weight) y = Add(bias, a)", {}),
        (f"{NORM} {PRODUCT}", {"shift": np.zeros(WIDTH)}),  # the sum of the outputs is 0, until the shift leans
        (f"{NORM} {PRODUCT}", {"shift": np.full(WIDTH, -2.0)}),
        (f"{NORM} {PRODUCT}", {"gain": -np.ones(WIDTH)}),
        (f"{NORM} {PRODUCT}", {"gain": np.r_[1e-6, np.ones(WIDTH - 1)], "shift": np.ones(WIDTH)}),
        # What reads the norm without a bias takes the effect of the leaning back.
        (f"{NORM} a = MatMul(n, weight) s = Add(a, bias) b = MatMul(n, other) y = Add(s, b)", {}),
    ],
)
def test_a_bias_becomes_part_of_the_weight(nodes, values):
    model = a_model(nodes, **values)
    before, had = answer(model), operators(model).count("Add")
    folded = fold_biases(model)
    assert operators(folded).count("Add") == had - 1
    assert np.abs(answer(folded) - before).max() < 5e-3 * np.abs(before).max()


@pytest.mark.parametrize(
    ("nodes", "values"),
    [
        (f"{NORM} y = MatMul(n, weight)", {}),  # without a bias there is nothing to gain
        (f"{NORM} a = MatMul(n, weight) s = Add(a, bias) y = Mul(s, n)", {}),  # another reader of the norm
        (f"{NORM} a = MatMul(n, weight) s = Add(a, bias) {ANOTHER}", {}),  # which is the residual, too
        (f"{NORM} a = MatMul(n, weight) s = Add(a, bias) y = Mul(s, a)", {}),  # another reader of the product
        (f"{NORM} a = MatMul(n, weight) y = Add(a, z)", {}),  # no bias
        (f"{NORM.replace(', shift', '')} {PRODUCT}", {}),
        (f"n = RMSNormalization<axis=-1>(x, gain) {PRODUCT}", {}),  # whose outputs have no known sum
        (f"{NORM.replace('axis=-1', 'axis=1')} {PRODUCT}", {}),
        (f"{NORM} {PRODUCT}", {"gain": np.r_[0, np.ones(WIDTH - 1)]}),  # the others have no known sum
        (f"{NORM} {PRODUCT}", {"gain": NARROW, "shift": np.r_[1, -1, np.zeros(WIDTH - 2)]}),  # values / gain are noise
    ],
)
def test_other_graphs_are_left_alone(nodes, values):
    model = a_model(nodes, **values)
    before = model.SerializeToString()
    assert fold_biases(model).SerializeToString() == before


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`decode` of a model with norms before its layers, by scheme."""

    def graph(scheme):
        traced = trace_model(model if scheme == "fp32" else half)
        folder = tmp_path_factory.mktemp("variants")
        variant = save_variant(traced, folder, SCHEMES[scheme], inline_limit=1 << 30)
        return onnx.load(folder / variant.graphs["decode"].file)

    model: Any = tiny_model(tiny_config("encoder_decoder", norm_position="pre"))
    half: Any = tiny_model(tiny_config("encoder_decoder", norm_position="pre")).half()
    return {scheme: graph(scheme) for scheme in ("fp32", "fp16", "w4a16-block32")}


@pytest.mark.parametrize(("scheme", "biases"), [("fp32", 6 * 2), ("fp16", 0), ("w4a16-block32", 3 * 2)])
def test_only_graphs_in_fp16_have_no_biases_behind_products(saved, scheme, biases):
    graph = saved[scheme].graph
    products = {node.output[0] for node in graph.node if node.op_type in ("MatMul", "MatMulNBits")}
    assert sum(node.op_type == "Add" and bool(products & set(node.input)) for node in graph.node) == biases
