"""Graphs of Transformers: their axes and nodes, and every kind of model verified."""

import copy
from collections import Counter

import onnx
import pytest
from onnx import numpy_helper

from export.bundle.directory import load_bundle
from export.passes.calibrate import calibrate
from export.passes.quantization_scheme import SCHEMES
from export.variants import save_variant, trace_model
from export.verification.golden import common_golden
from export.verification.inputs import sample_inputs
from export.verification.verifier import verify_graphs
from tests.export.graphs.kinds import KINDS
from tests.tiny import tiny_model


def operators(bundle, role):
    return Counter(node.op_type for node in onnx.load(bundle / "fp32" / f"{role}.onnx").graph.node)


def test_graphs_have_the_names_of_the_manifest_and_the_axes_of_the_contract(tiny_translation_bundle):
    for spec in load_bundle(tiny_translation_bundle).variant("fp32").graphs.values():
        graph = onnx.load(tiny_translation_bundle / spec.file).graph
        assert tuple(value.name for value in graph.input) == spec.inputs
        assert tuple(value.name for value in graph.output) == spec.outputs
        axes = {
            value.name: tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in (*graph.input, *graph.output)
        }
        if spec.role == "encode":
            assert axes["source"] == ("batch", "source")
            assert axes["encoder_states"] == ("batch", "source", 32)
            assert axes["cross_value.1"] == ("batch", 4, "source", 8)
        elif spec.role == "logprobs":
            assert axes["logits"] == axes["logprobs"] == ("asked", 27)
            assert axes["normaliser"] == ("asked",)
            assert axes["top_k"] == (1,)
            assert axes["top_logprobs"] == axes["top_ids"] == ("asked", "top_k")
        else:
            assert axes["tokens"] == ("batch", 1)
            assert axes["total_length"] == ()
            assert axes["past.self_key.0"] == axes["present.self_value.1"] == ("batch", 4, "capacity", 8)
            assert axes["cross_key.1"] == ("batch", 4, "source", 8)
            assert axes["logits"] == ("batch", 27)


def test_a_decoder_that_reads_blocks_takes_the_positions_with_logits(tiny_generation_bundle):
    graph = onnx.load(tiny_generation_bundle / "fp32/decode.onnx").graph
    axes = {
        value.name: tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.output)
    }
    assert axes["tokens"] == ("batch", "block")
    assert axes["positions"] == ("asked", 2)
    assert axes["logits"] == ("asked", 27)
    assert sum(node.op_type == "GatherND" for node in graph.node) == 1


def test_nodes_are_as_many_as_they_should_be(tiny_translation_bundle, tiny_generation_bundle):
    """A fusion that fails is silent; so is an exporter that starts to write an operator in pieces."""
    encode, decode = operators(tiny_translation_bundle, "encode"), operators(tiny_translation_bundle, "decode")
    layers = 2
    assert encode["MatMul"] == layers * 4 + layers  # 4 weights a layer, then keys and values
    assert (encode["GroupQueryAttention"], encode["Softmax"]) == (layers, 0)
    assert encode["LayerNormalization"] == 2 * layers + 1
    assert decode["GroupQueryAttention"] == 2 * layers
    assert decode["MatMul"] == layers * 6
    assert decode["LayerNormalization"] == 3 * layers + 1
    assert decode["Split"] == decode["Identity"] == decode["Transpose"] == decode["Reshape"] == 0
    assert (decode["LogSoftmax"], decode["TopK"]) == (0, 0)
    assert sum(decode.values()) <= 59
    decode = operators(tiny_generation_bundle, "decode")
    assert decode["GroupQueryAttention"] == layers
    assert decode["MatMul"] == layers * 4
    assert decode["Split"] == decode["Identity"] == decode["Transpose"] == decode["Reshape"] == 0


def test_tied_embeddings_are_one_constant_of_gather_and_head(tiny_translation_bundle):
    graph = onnx.load(tiny_translation_bundle / "fp32/decode.onnx").graph
    table = numpy_helper.to_array(next(t for t in graph.initializer if t.name.endswith("embedding.tokens.weight")))
    same = [tensor.name for tensor in graph.initializer if sorted(tensor.dims) == sorted(table.shape)]
    assert same == ["encoder.embedding.tokens.weight"]
    users = [node.op_type for node in graph.node if same[0] in node.input]
    assert users == ["Gather", "Gemm"]


SLOW = (
    "layered",
    "whole-norms",
    "rotary",
    "rotary-source",
    "post-norm",
    "shaw",
    "bucketed",
    "beside",
    "unequal-sides",
    "experts",
    "two-experts",
    "ssru",
)
"""Imported checkpoints, of Marian's too, other kinds and quantized graphs have what they have."""


@pytest.mark.parametrize(
    "config",
    [pytest.param(KINDS[name], id=name, marks=[pytest.mark.slow] if name in SLOW else []) for name in KINDS],
)
def test_every_kind_of_model_passes_verification(config, tmp_path):
    model = tiny_model(config, seed=3)
    traced = trace_model(model, attention=not config.num_experts)  # experts attend like all others
    variant = save_variant(traced, tmp_path, SCHEMES["fp32"])
    verification = verify_graphs(tmp_path, variant, model, sample_inputs(config))
    assert [check for check in verification.checks if not check.passed] == []
    assert common_golden([verification.answers]) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["experts", "two-experts", "layered", "whole-norms", "ssru"])
def test_half_precision_supports_experts_and_layers_that_differ(name, tmp_path):
    """Of this seed no two experts are so close that rounding chooses the other one, which verification would refuse."""
    config = KINDS[name]
    model = tiny_model(config, seed=2)
    variant = save_variant(trace_model(copy.deepcopy(model).half()), tmp_path, SCHEMES["fp16"])
    checks = verify_graphs(tmp_path, variant, model, sample_inputs(config)).checks
    assert [(check.name, check.note) for check in checks if not check.passed] == []


@pytest.mark.parametrize(
    ("name", "schemes"),
    [
        pytest.param("bucketed", "w8a8-dynamic w8a8-static-kv8", marks=pytest.mark.slow),
        ("alibi-window", "w8a8-static w8a8-dynamic-kv8"),
        pytest.param("two-experts", "w8a8-dynamic w8a8-static", marks=pytest.mark.slow),
        pytest.param("layered", "w8a8-dynamic w8a8-static-kv8 w8-block64 w4-block32", marks=pytest.mark.slow),
        pytest.param("whole-norms", "w8a8-static", marks=pytest.mark.slow),
        pytest.param("ssru", "w8a8-dynamic w8a8-static", marks=pytest.mark.slow),
    ],
)
def test_quantization_supports_position_biases_experts_and_layers_that_differ(name, schemes, tmp_path):
    config = KINDS[name]
    model, samples = tiny_model(config, seed=3), sample_inputs(config)
    sources = samples.sources or ((),) * len(samples.targets)
    ranges = calibrate(model, list(zip(sources, samples.targets, strict=True)))
    traced = trace_model(model)
    for scheme in schemes.split():
        place = tmp_path / scheme
        variant = save_variant(traced, place, SCHEMES[scheme], ranges=ranges)
        checks = verify_graphs(place, variant, model, samples).checks
        assert [(check.name, check.note) for check in checks if not check.passed] == []
