"""Rotation inside the attention operator: the same answers as the traced graph, and no other graph is touched."""

from collections import Counter

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import ModelProto, numpy_helper

from export.bundle.manifest import PAD_MULTIPLE, largest_capacity
from export.graphs.encoder_decoder import signatures
from export.graphs.tracing import trace
from export.passes.fuse_rotary import fuse_rotary
from export.passes.optimize import name_weights, optimize, round_up_tables, weight_names
from model.architecture_config import DecoderConfig
from model.architectures import build

POSITIONS = 72
CAPACITY = largest_capacity(POSITIONS)  # 96: the caches are roomier than the tables are long


def traced(**changes):
    shape = {"d_model": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "d_ff": 64, "num_decoder_layers": 2}
    config = DecoderConfig(vocab_size=50, max_target_len=POSITIONS, **{"positions": "rotary", **shape, **changes})
    torch.manual_seed(1)
    model = build(config).eval()
    weights = {name: tensor.detach().numpy() for name, tensor in (*model.named_buffers(), *model.state_dict().items())}
    graph = name_weights(optimize(trace(signatures(model)["decode"])), weight_names(weights))
    return round_up_tables(graph, PAD_MULTIPLE)


@pytest.fixture(scope="module", params=[{}, {"head_dim": 48, "rotary_dims": 16}], ids=["all", "some"])
def graph(request):
    """All dimensions of a head turn, or some."""
    return traced(**request.param)


def copied(graph):
    model = ModelProto()
    model.CopyFrom(graph)
    return model


def run(graph, tokens, starts, lengths, total):
    """Logits (B, V) and the caches after them, over caches of random numbers."""
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {
        "tokens": np.array(tokens),
        "starts": np.array(starts),
        "lengths": np.array(lengths, np.int32),
        "total_length": np.array(total, np.int32),
        "positions": np.stack([np.arange(len(tokens)), np.array(lengths) - np.array(starts) - 1], 1),
    }
    draw = np.random.default_rng(1)
    for value in session.get_inputs():
        if value.name.startswith("past."):
            past = draw.standard_normal((1, 2, CAPACITY, value.shape[3])).astype(np.float32)
            feeds[value.name] = np.repeat(past, len(tokens), 0)
    logits, *caches = session.run(None, feeds)
    return logits, caches


def test_attention_turns_queries_and_keys_and_takes_them_packed(graph):
    fused = fuse_rotary(copied(graph), CAPACITY)
    attention = [node for node in fused.graph.node if node.op_type == "GroupQueryAttention"]
    assert len(attention) == 2
    assert all(not node.input[1] and not node.input[2] for node in attention)
    operators = Counter(node.op_type for node in fused.graph.node)
    assert not {"Neg", "Reshape", "Split", "Slice"} & set(operators)


def test_the_total_length_reaches_every_attention_as_it_is_fed_and_nothing_else(graph):
    """On CUDA the operator reads it in main memory: a node between would bring a copy from the device."""
    fused = fuse_rotary(copied(graph), CAPACITY)
    readers = [node for node in fused.graph.node if "total_length" in node.input]
    assert [node.op_type for node in readers] == ["GroupQueryAttention"] * 2
    tables = {tensor.name: numpy_helper.to_array(tensor) for tensor in fused.graph.initializer}
    for node in readers:
        assert node.input[6] == "total_length"
        for name in node.input[7:9]:
            assert len(tables[name]) == CAPACITY
            assert (tables[name][80:] == tables[name][79]).all(), "80: positions rounded up for padding"


@pytest.mark.parametrize(
    ("tokens", "starts", "lengths", "total"),
    [
        ([[7], [8], [9]], [0, 5, 71], [1, 6, 72], CAPACITY),  # a step of rows of several lengths
        ([[5, 6, 7, 0], [5, 6, 7, 8]], [0, 0], [3, 4], 4),  # prompts, one of them padded
        ([[5, 6, 7, 8]], [10], [14], 14),  # a block after cached positions
    ],
)
def test_answers_and_caches_stay(graph, tokens, starts, lengths, total):
    expected, caches = run(graph, tokens, starts, lengths, total)
    actual, fused_caches = run(fuse_rotary(copied(graph), CAPACITY), tokens, starts, lengths, total)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    for row, end in enumerate(lengths):
        for before, after in zip(caches, fused_caches, strict=True):
            np.testing.assert_allclose(after[row, :, :end], before[row, :, :end], atol=1e-5)


def test_a_row_alone_has_the_bits_it_has_in_a_batch(graph):
    fused = fuse_rotary(copied(graph), CAPACITY)
    together, _ = run(fused, [[7], [8], [9]], [3, 5, 71], [4, 6, 72], CAPACITY)
    for row, (token, start) in enumerate([(7, 3), (8, 5), (9, 71)]):
        alone, _ = run(fused, [[token]], [start], [start + 1], CAPACITY)
        assert alone[0].tobytes() == together[row].tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"head_dim": 8}, marks=pytest.mark.slow),
        pytest.param({"positions": "learned"}, marks=pytest.mark.slow),
        pytest.param({"head_dim": 32, "rotary_dims": 8}, marks=pytest.mark.slow),
        {"head_dim": 24, "rotary_dims": 16},
    ],
)
def test_models_whose_rotation_the_operator_lacks_stay(changes):
    graph = traced(num_decoder_layers=1, **changes)
    before = graph.SerializeToString()
    assert fuse_rotary(graph, CAPACITY).SerializeToString() == before


def test_a_table_with_two_different_halves_stays(graph):
    model = copied(graph)
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name.endswith(".sin"))
    other = numpy_helper.to_array(table).copy()
    other[3, -1] += 1.0
    table.CopyFrom(numpy_helper.from_array(other, table.name))
    before = model.SerializeToString()
    assert fuse_rotary(model, CAPACITY).SerializeToString() == before


def test_a_rotation_the_other_way_stays(graph):
    model = copied(graph)
    for node in model.graph.node:
        if node.op_type == "Concat" and any("Neg" in name for name in node.input):
            node.input[0], node.input[1] = node.input[1], node.input[0]
    before = model.SerializeToString()
    assert fuse_rotary(model, CAPACITY).SerializeToString() == before


def test_a_part_of_a_head_that_is_not_its_beginning_stays():
    model = traced(num_decoder_layers=1, head_dim=48, rotary_dims=16)
    for node in model.graph.node:
        if node.op_type == "Concat" and any("Slice" in name for name in node.input):
            node.input[0], node.input[1] = node.input[1], node.input[0]
    before = model.SerializeToString()
    assert fuse_rotary(model, CAPACITY).SerializeToString() == before
