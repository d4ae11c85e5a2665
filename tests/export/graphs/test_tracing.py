"""Inputs of graphs, their examples and axes, and what tracing leaves as it was."""

import logging
from unittest import mock

import torch
from torch import nn

from export.bundle.manifest import StateSpec
from export.graphs import tracing
from export.graphs.tracing import OPSET, SIZES, Input, Signature, state_inputs, trace, versions


class Sum(nn.Module):
    def forward(self, x, pairs):
        return x + sum(first * second for first, second in pairs)


def test_an_input_has_an_example_of_its_type_with_named_axes():
    one = Input("past.key", ("batch", 4, "capacity"), torch.float16)
    assert one.example.shape == (SIZES["batch"], 4, SIZES["capacity"])
    assert one.example.dtype == torch.float16
    assert {place: axis.__name__ for place, axis in one.dynamic_axes.items()} == {0: "batch", 2: "capacity"}
    assert Input("total", ()).dynamic_axes == {}


def test_no_two_dynamic_axes_have_the_same_example_size():
    assert len(set(SIZES.values())) == len(SIZES)
    assert min(SIZES.values()) > 1, "the exporter takes 1 for a fixed size"


def test_a_cache_with_a_stride_has_an_axis_of_its_own():
    plain = StateSpec(name="self_key.0", kind="self_kv", dtype="", shape=("batch", 2, "capacity", 8))
    strided = StateSpec(name="self_key.1", kind="self_kv", dtype="", shape=("batch", 2, "capacity", 8), stride=3)
    one, other = state_inputs([plain, strided], torch.float32, "past.")
    assert (one.name, one.shape) == ("past.self_key.0", ("batch", 2, "capacity", 8))
    assert (other.name, other.shape) == ("past.self_key.1", ("batch", 2, "slots", 8))


def test_a_trace_has_the_names_and_axes_of_its_signature():
    row = ("batch", 3)
    pairs = [[Input(f"{part}.{i}", row, torch.float32) for part in ("key", "value")] for i in range(2)]
    signature = Signature(module=Sum(), arguments=(Input("x", row, torch.float32), pairs), outputs=("y",))
    assert signature.inputs == ("x", "key.0", "value.0", "key.1", "value.1")
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    graph = trace(signature).graph
    assert registry.level == level
    assert tuple(value.name for value in graph.input) == signature.inputs
    axes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.input
    }
    assert set(map(tuple, axes.values())) == {row}
    assert [value.name for value in graph.output] == ["y"]


def test_the_exporter_builds_its_table_of_operators_once_per_opset(monkeypatch):
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    built = mock.Mock(side_effect=ONNXRegistry.from_torchlib)
    monkeypatch.setattr(ONNXRegistry, "from_torchlib", built)
    tracing._shared.cache_clear()
    row = Input("x", ("batch", 3), torch.float32)
    for number in range(2):
        pairs = [[Input(f"y.{number}", row.shape, torch.float32), Input(f"z.{number}", row.shape, torch.float32)]]
        trace(Signature(module=Sum(), arguments=(row, pairs), outputs=("sum",)))
    assert [call.kwargs for call in built.call_args_list] == [{"opset_version": OPSET}]
    assert ONNXRegistry.from_torchlib is built, "other users of the exporter have their own tables"
    tracing._shared.cache_clear()


def test_a_rule_is_tried_on_nodes_of_the_type_that_its_pattern_ends_with(monkeypatch):
    from onnxscript.rewriter.pattern import RewriteRule

    tried, real = set[tuple[str, str]](), RewriteRule.try_rewrite

    def counted(rule, model, graph, node, **options):
        ends = rule._target_pattern.output_nodes
        operator = ends[0].op_identifier() if len(ends) == 1 else None
        tried.add((operator[1] if operator else node.op_type, node.op_type))
        return real(rule, model, graph, node, **options)

    monkeypatch.setattr(RewriteRule, "try_rewrite", counted)
    row = Input("x", ("batch", 3), torch.float32)
    trace(
        Signature(module=torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), arguments=(row,), outputs=("y",))
    )
    assert ("Relu", "Relu") in tried
    assert all(pattern == operator for pattern, operator in tried)


def test_versions_name_what_shapes_a_graph():
    assert set(versions()) >= {"opset", "torch", "onnx", "onnxscript", "onnxruntime"}


def test_norms_and_products_with_a_bias_have_the_shapes_of_torch():
    module = nn.Sequential(nn.LayerNorm((2, 3)), nn.Flatten(), nn.Linear(6, 5))
    graph = trace(
        Signature(module=module, arguments=(Input("x", ("batch", 2, 3), torch.float32),), outputs=("y",))
    ).graph
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim][1:] for value in graph.value_info}
    (normed,) = [node.output[0] for node in graph.node if node.op_type == "LayerNormalization"]
    assert shapes[normed] == [2, 3]
    assert [dim.dim_param or dim.dim_value for dim in graph.output[0].type.tensor_type.shape.dim] == ["batch", 5]
