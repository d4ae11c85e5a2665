"""Graphs with swapped weights equal those of a trace of the other model."""

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from export.passes.equalize import equalized
from export.variants import trace_model, with_weights
from tests.export.passes.test_equalize import MODELS
from tests.tiny import tiny_encoder, tiny_model


def described(graph):
    """Nodes with the contents of their constants, whatever these are called."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}
    for node in graph.graph.node:
        inputs = [constants[name].tobytes() if name in constants else name for name in node.input]
        yield node.op_type, inputs, [attribute.SerializeToString() for attribute in node.attribute]


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "name", ["llama", slow("llama with an output of its own"), slow("experts"), "gpt2", "translation", None]
)
def test_the_graphs_are_those_of_a_trace(name):
    model = tiny_encoder("masked") if name is None else tiny_model(MODELS[name])
    other = equalized(model, {})
    traced, wanted = trace_model(model), trace_model(other)
    made = with_weights(traced, other)
    assert made is not None
    assert made.model is other
    for role, graph in wanted.graphs.items():
        assert list(described(made.graphs[role])) == list(described(graph))
    again = trace_model(model)
    assert all(list(described(traced.graphs[role])) == list(described(again.graphs[role])) for role in again.graphs)


def test_weights_that_were_equal_and_differ_now_need_a_trace():
    model = tiny_model(MODELS["gpt2"])
    first, second = (block.self_attention.output for block in model.decoder.blocks)
    second.weight.data.copy_(first.weight.data)
    other: Any = equalized(model, {})
    other.decoder.blocks[0].self_attention.output.weight.data += np.float32(1.0)
    assert with_weights(trace_model(model), other) is None
