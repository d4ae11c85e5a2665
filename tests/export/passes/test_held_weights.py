"""Graphs whose large weights stay in the memory of the model, against graphs that have them."""

import numpy as np
import onnx
import pytest
import torch

from export.graphs import encoder_decoder
from export.graphs.tracing import trace
from export.passes import held_weights, optimize
from export.passes.held_weights import hold, values_of
from export.passes.optimize import is_held, name_weights, weight_names
from export.passes.quantization_scheme import SCHEMES
from export.variants import arrays_of, save_variant, trace_model, with_weights
from tests.tiny import tiny_config, tiny_model

HELD = 4096  # bytes: of the tiny model, the feed-forwards, projections and some tables


@pytest.fixture
def holding(monkeypatch):
    for module in (held_weights, optimize):
        monkeypatch.setattr(module, "HELD_BYTES", HELD)


def files_of(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.rglob("*.onnx*"))}


@pytest.mark.parametrize("scheme", ["fp32", "w8a8-dynamic", "w4-block32"])
def test_held_weights_are_written_as_those_of_a_graph_that_has_them(scheme, tmp_path, monkeypatch):
    model = tiny_model(tiny_config("decoder"))
    plain = trace_model(model)
    save_variant(plain, tmp_path / "plain", SCHEMES[scheme], inline_limit=0)
    for module in (held_weights, optimize):
        monkeypatch.setattr(module, "HELD_BYTES", HELD)
    held = trace_model(model)
    assert sum(map(is_held, held.graphs["decode"].graph.initializer)) > 4
    assert held.graphs["decode"].ByteSize() < plain.graphs["decode"].ByteSize() / 2
    save_variant(held, tmp_path / "held", SCHEMES[scheme], inline_limit=0)
    assert files_of(tmp_path / "held") == files_of(tmp_path / "plain")


def test_another_model_of_the_same_shape_gives_its_own_weights(holding, tmp_path):
    first, second = tiny_model(tiny_config("decoder")), tiny_model(tiny_config("decoder"))
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(1.5)
    swapped = with_weights(trace_model(first), second)
    assert swapped is not None
    save_variant(swapped, tmp_path / "swapped", SCHEMES["fp32"])
    save_variant(trace_model(second), tmp_path / "anew", SCHEMES["fp32"])
    made, expected = (onnx.load(tmp_path / name / "fp32/decode.onnx") for name in ("swapped", "anew"))
    values = [{one.name: one.raw_data for one in model.graph.initializer} for model in (made, expected)]
    assert values[0] == values[1]
    assert made.graph.node == expected.graph.node


def test_a_large_constant_that_is_no_weight_keeps_its_values(holding):
    model = tiny_model(tiny_config("decoder"))
    large = dict[str, np.ndarray]()
    traced = trace(encoder_decoder.signatures(model)["decode"], large)
    assert large
    graph = name_weights(hold(traced, large, {}), {})
    assert not any(map(is_held, graph.graph.initializer))
    onnx.checker.check_model(graph, check_custom_domain=False)


def test_a_transpose_is_found_whether_it_is_a_view_or_a_copy(holding):
    weight = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)
    names = weight_names({"layer.weight": weight})
    for array, name in ((weight, "layer.weight"), (weight.T, "layer.weight.T"), (weight.T.copy(), "layer.weight.T")):
        graph = onnx.helper.make_graph([], "g", [], [], [held_weights.without_values("w", array)])
        (tensor,) = hold(onnx.helper.make_model(graph), {"w": array}, names).graph.initializer
        assert tensor.name == name
        np.testing.assert_array_equal(values_of(tensor, {"layer.weight": weight}), array)
    with pytest.raises(onnx.checker.ValidationError, match="should not be empty"):
        onnx.numpy_helper.to_array(tensor)


def test_the_arrays_of_a_model_are_not_copies():
    model = tiny_model(tiny_config("decoder"))
    arrays = arrays_of(model)
    assert np.shares_memory(arrays["decoder.embedding.tokens.weight"], model.decoder.embedding.tokens.weight.detach())
