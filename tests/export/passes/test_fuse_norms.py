"""Norms that add bias and residual: in fp16 graphs only, where they must be fused and where they must not."""

import copy
from collections import Counter
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from export.passes.fuse_norms import fuse_norms
from export.variants import trace_model
from tests.tiny import tiny_config, tiny_model

WIDTH = 8
NORM = "n = LayerNormalization<axis=-1, epsilon=0.5>(s, gain, shift)"
RESIDUAL = f"a = MatMul(x, weight) b = Add(a, bias) s = Add(x, b) {NORM} y = Add(s, n)"


def a_model(nodes, **more):
    """A model of [2, 3, WIDTH] with random weights from text."""
    shape = f"float[2, 3, {WIDTH}]"
    text = f'<ir_version: 10, opset_import: ["": 23]> g ({shape} x, {shape} z) => ({shape} y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    draw = np.random.default_rng(0)
    sizes = {"weight": (WIDTH, WIDTH), "bias": WIDTH, "gain": WIDTH, "shift": WIDTH, "other": WIDTH, **more}
    for name, size in sizes.items():
        if name in nodes:
            model.graph.initializer.append(numpy_helper.from_array(draw.normal(size=size).astype(np.float32), name))
    return model


def lines(model):
    return [f"{node.op_type}({','.join(node.input)}) -> {','.join(node.output)}" for node in model.graph.node]


def answer(model):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(1)
    feeds = {value.name: draw.normal(size=(2, 3, WIDTH)).astype(np.float32) for value in session.get_inputs()}
    return session.run(None, feeds)[0]


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        (RESIDUAL, ["MatMul(x,weight) -> a", "SkipLayerNormalization(a,x,gain,shift,bias) -> n,,,s", "Add(s,n) -> y"]),
        (  # the norm comes after the sum, and nothing else reads the sum
            RESIDUAL.replace("Add(s, n)", "Neg(n)"),
            ["MatMul(x,weight) -> a", "SkipLayerNormalization(a,x,gain,shift,bias) -> n", "Neg(n) -> y"],
        ),
        (
            RESIDUAL.replace("b = Add(a, bias)", "b = Add(bias, a)").replace("Add(x, b)", "Add(b, x)"),
            ["MatMul(x,weight) -> a", "SkipLayerNormalization(a,x,gain,shift,bias) -> n,,,s", "Add(s,n) -> y"],
        ),
        (  # without biases
            RESIDUAL.replace("b = Add(a, bias)", "").replace("Add(x, b)", "Add(x, a)").replace(", shift", ""),
            ["MatMul(x,weight) -> a", "SkipLayerNormalization(a,x,gain,,) -> n,,,s", "Add(s,n) -> y"],
        ),
        (
            RESIDUAL.replace("LayerNormalization", "RMSNormalization").replace(", shift", ""),
            ["MatMul(x,weight) -> a", "SkipSimplifiedLayerNormalization(a,x,gain,bias) -> n,,,s", "Add(s,n) -> y"],
        ),
        (  # a bias that is read elsewhere, too, stays a sum of its own
            RESIDUAL.replace("Add(s, n)", "Add(b, n)"),
            [
                "MatMul(x,weight) -> a",
                "Add(a,bias) -> b",
                "Add(x,b) -> s",
                "LayerNormalization(s,gain,shift) -> n",
                "Add(b,n) -> y",
            ],
        ),
        (  # of two norms of one sum, one computes it
            RESIDUAL.replace("Add(s, n)", "Add(m, n)").replace(
                "y =", "m = LayerNormalization<axis=-1>(s, other, shift) y ="
            ),
            [
                "MatMul(x,weight) -> a",
                "SkipLayerNormalization(a,x,gain,shift,bias) -> n,,,s",
                "LayerNormalization(s,other,shift) -> m",
                "Add(m,n) -> y",
            ],
        ),
    ],
)
def test_a_norm_adds_residual_and_bias_of_a_product(nodes, left):
    model = a_model(nodes)
    before = answer(model)
    fused = fuse_norms(model)
    assert lines(fused) == left
    np.testing.assert_allclose(answer(fused), before, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"MatMul(x, weight)": "Relu(x)"},
        {"MatMul(x, weight)": "MatMul(x, y0)", "a =": "w0 = Identity(square) y0 = Transpose<perm=[1, 0]>(w0) a ="},
        {"axis=-1": "axis=2"},
        {"Add(x, b)": "Sub(x, b)"},
        {"Add(x, b)": "Add(other, b)"},  # broadcasts
    ],
)
def test_other_sums_are_left_alone(changes):
    nodes = RESIDUAL
    for old, new in changes.items():
        assert old in nodes
        nodes = nodes.replace(old, new)
    before = lines(model := a_model(nodes, square=(WIDTH, WIDTH)))
    assert lines(fuse_norms(model)) == before


def test_the_epsilon_of_a_norm_is_kept_whether_or_not_it_is_named():
    for text, epsilon in ((RESIDUAL, 0.5), (RESIDUAL.replace(", epsilon=0.5", ""), 1e-5)):
        norm = fuse_norms(a_model(text)).graph.node[1]
        assert helper.get_node_attr_value(norm, "epsilon") == pytest.approx(epsilon)


BEFORE = {"norm_position": "pre"}
MODELS: dict[str, Any] = {  # architecture, changes, fused norms of `decode`, and norms of it that have nothing to add
    "translation": ("encoder_decoder", BEFORE, 6, 1),
    "norms after the layers": ("encoder_decoder", {"norm_position": "post"}, 6, 0),
    "llama": ("decoder", {"norm": "rms", "bias": False, "gated": True, "positions": "rotary"}, 4, 1),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "translation" else [pytest.mark.slow]) for name in MODELS]
)
def test_every_residual_of_an_fp16_model_is_added_by_a_norm(name):
    architecture, changes, fused, apart = MODELS[name]
    model = tiny_model(tiny_config(architecture, **changes))
    found, plain = (operators(trace_model(one).graphs["decode"]) for one in (copy.deepcopy(model).half(), model))
    assert found["SkipLayerNormalization"] + found["SkipSimplifiedLayerNormalization"] == fused
    assert found["LayerNormalization"] + found["RMSNormalization"] == apart
    assert not {"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"} & plain.keys()


def operators(model):
    return Counter(node.op_type for node in model.graph.node)
