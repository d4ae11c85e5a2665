"""The arithmetic that lectures teach, through the operators of exported graphs: worked numbers, loops, torch's own
attention, and what no position may see."""

from functools import cache

import numpy as np
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from export.graphs import encoder_decoder
from export.graphs.group_query_attention import GraphAttention, GraphEncoderAttention
from export.graphs.tracing import Input, Signature, trace
from export.passes.optimize import optimize
from export.sessions import open_session
from model.architecture_config import DecoderConfig, EncoderDecoderConfig
from model.attention import SelfAttention
from model.positions import AlibiBias
from tests.tiny import tiny_config, tiny_model
from tests.worked_numbers import LECTURE_CASES, LECTURE_KEY, LECTURE_QUERY, LECTURE_VALUE, LECTURE_X

# B batch, T positions, M d_model, D head_dim
HEAD_DIM = 8  # the operator takes multiples of it: vectors of three numbers are followed by five zeros


class CausalLayer(nn.Module):
    """Self-attention as `decode` computes it, over a block that begins at position 0."""

    def __init__(self, config):
        super().__init__()
        self.config, self.layer = config, SelfAttention(config)

    def forward(self, x_BTM, key_BKCD, value_BKCD):
        batch, length = x_BTM.shape[:2]
        starts = torch.zeros(batch, dtype=torch.int64)
        total = torch.tensor(0, dtype=torch.int32) + length
        lengths = starts.int() + length
        attend = GraphAttention(self.config, (key_BKCD, value_BKCD), starts, lengths, total)
        return self.layer(x_BTM, attend)


class EncoderLayer(nn.Module):
    """Self-attention as `encode` computes it."""

    def __init__(self, config):
        super().__init__()
        self.config, self.layer = config, SelfAttention(config)

    def forward(self, x_BTM, _key, _value):
        batch, length = x_BTM.shape[:2]
        total = torch.tensor(0, dtype=torch.int32) + length
        last = torch.zeros(batch, dtype=torch.int32) + length - 1
        return self.layer(x_BTM, GraphEncoderAttention(self.config, last, total))


@cache
def traced(is_causal, heads, scale, length=3):
    """The graph of a layer whose two weights, of query, key and value and of the output, are its own."""
    config = EncoderDecoderConfig(
        d_model=8 * heads, num_heads=heads, head_dim=HEAD_DIM, bias=False, positions="none", attention_scale=scale
    )
    layer = (CausalLayer if is_causal else EncoderLayer)(config)
    torch.manual_seed(1)
    key, value = (Input(name, (1, heads, length, HEAD_DIM), torch.float32) for name in ("key", "value"))
    x = Input("x", (1, length, 8 * heads), torch.float32)
    signature = Signature(module=layer, arguments=(x, key, value), outputs=("y",))
    return optimize(trace(signature)), layer.layer.state_dict()


def run(x_TM, weights, *, is_causal, heads=1, scale=0.0):
    """x (T, M) through the exported layer with other weights: query, key and value, (M, heads, D) each, and the output
    (heads, D, M)."""
    (length, width), (query, key, value, output) = x_TM.shape, weights
    graph, own = traced(is_causal, heads, scale, length)
    joined = np.concatenate([part.reshape(width, -1) for part in (query, key, value)], axis=1)
    new = {"query_key_value": joined, "output": output.reshape(-1, width)}
    copy = type(graph)()
    copy.CopyFrom(graph)
    found = set()
    for tensor in copy.graph.initializer:
        array = numpy_helper.to_array(tensor)
        for name, weight in new.items():
            if np.array_equal(array, own[f"{name}.weight"].numpy().T):
                tensor.CopyFrom(numpy_helper.from_array(weight.astype(np.float32), tensor.name))
                found.add(name)
    assert found == set(new)
    feeds = {"x": x_TM[None].astype(np.float32)}
    for name in ("key", "value"):
        feeds[name] = np.full((1, heads, length, HEAD_DIM), 37.0, np.float32)
    session = open_session(copy.SerializeToString())
    (y_BTM,) = session.run(["y"], {value.name: feeds[value.name] for value in session.get_inputs()})
    return y_BTM[0]


@pytest.mark.parametrize(
    ("is_scaled", "is_causal", "weights", "outputs"),
    [pytest.param(*case, marks=[] if case[0] == case[1] else [pytest.mark.slow]) for case in LECTURE_CASES],
)
def test_the_three_tokens_come_out_of_the_exported_operators(is_scaled, is_causal, weights, outputs):
    """Beside its four numbers each token has a 1 in a place of its own. Values carry it along, so that what is mixed
    of it are the weights."""
    x = np.concatenate((np.array(LECTURE_X), np.eye(3), np.zeros((3, 1))), axis=1)
    query, key, value = np.zeros((3, 8, 1, HEAD_DIM))
    for whole, part in ((query, LECTURE_QUERY), (key, LECTURE_KEY), (value, LECTURE_VALUE)):
        whole[:4, 0, :3] = part
    value[4:7, 0, 3:6] = np.eye(3)
    mixed = run(x, (query, key, value, np.eye(8)[None]), is_causal=is_causal, scale=3**-0.5 if is_scaled else 1.0)
    np.testing.assert_allclose(mixed[:, :3], outputs, rtol=0, atol=2e-6)
    np.testing.assert_allclose(mixed[:, 3:6], weights, rtol=0, atol=1e-6)
    if is_causal:
        assert [int((row > 0).sum()) for row in mixed[:, 3:6]] == [1, 2, 3]


def test_raw_dot_products_of_the_tokens_are_identity_weights_without_a_scale():
    x = np.random.default_rng(0).normal(size=(3, 8))
    identity = np.eye(8)
    mixed = run(x, (*[identity[:, None]] * 3, identity[None]), is_causal=False, scale=1.0)
    powers = np.exp(x @ x.T)
    np.testing.assert_allclose(mixed, powers / powers.sum(-1, keepdims=True) @ x, rtol=0, atol=2e-6)


def random_weights(heads, width):
    random = np.random.default_rng(heads)
    parts = [random.normal(size=(width, heads, HEAD_DIM)) * 0.4 for _ in range(3)]
    return (*parts, random.normal(size=(heads, HEAD_DIM, width)) * 0.4)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_matrix_form_of_the_graph_is_the_loop_over_queries_and_keys(heads, is_causal):
    width, length = 8 * heads, 3
    weights = random_weights(heads, width)
    query, key, value, output = weights
    x = np.random.default_rng(9).normal(size=(length, width))
    expected = np.zeros((length, width))
    for head in range(heads):
        for i in range(length):
            seen = range(i + 1 if is_causal else length)
            scores = [(x[i] @ query[:, head]) @ (x[j] @ key[:, head]) / np.sqrt(HEAD_DIM) for j in seen]
            powers = [np.exp(score) for score in scores]
            for j in seen:
                expected[i] += powers[j] / sum(powers) * (x[j] @ value[:, head]) @ output[head]
    np.testing.assert_allclose(run(x, weights, is_causal=is_causal, heads=heads), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
@torch.no_grad()
def test_the_exported_layer_is_torchs_multi_head_attention_with_the_same_weights(heads, is_causal):
    width = inner = heads * HEAD_DIM
    query, key, value, output = random_weights(heads, width)
    theirs = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
    stacked = np.concatenate([part.reshape(width, inner).T for part in (query, key, value)])
    theirs.in_proj_weight.copy_(torch.tensor(stacked))
    theirs.out_proj.weight.copy_(torch.tensor(output.reshape(inner, width).T))
    x = np.random.default_rng(8).normal(size=(3, width))
    inputs = torch.tensor(x[None], dtype=torch.float32)
    mask = nn.Transformer.generate_square_subsequent_mask(3) if is_causal else None
    expected = theirs(inputs, inputs, inputs, attn_mask=mask, need_weights=False)[0][0]
    actual = run(x, (query, key, value, output), is_causal=is_causal, heads=heads)
    np.testing.assert_allclose(actual, expected.numpy(), rtol=0, atol=1e-5)


@cache
def session_of(architecture, role, positions, **changes):
    model = tiny_model(tiny_config(architecture, positions=positions, **changes))
    return open_session(optimize(trace(encoder_decoder.signatures(model)[role])).SerializeToString())


@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
def test_an_encoder_without_positions_does_not_know_the_order_of_its_tokens(positions):
    session = session_of("encoder_decoder", "encode", positions)
    random = np.random.default_rng(3)
    tokens, lengths = random.integers(4, 27, (1, 12)), np.array([12], np.int32)
    (states,) = session.run(["encoder_states"], {"source": tokens, "source_lengths": lengths})
    for _ in range(10):
        order = random.permutation(12)
        (moved,) = session.run(["encoder_states"], {"source": tokens[:, order], "source_lengths": lengths})
        error = np.abs(moved - states[:, order]).max()
        if positions == "none":
            assert error < 2e-5
        else:
            assert error > 0.1


def test_a_token_changes_no_bit_of_what_is_said_before_it():
    session, length = session_of("decoder", "decode", "sinusoidal", num_decoder_layers=1), 16
    tokens = np.random.default_rng(4).integers(4, 27, (1, length))

    def logits_of(tokens):
        feeds = {
            "tokens": tokens,
            "starts": np.zeros(1, np.int64),
            "lengths": np.full(1, length, np.int32),
            "total_length": np.array(length, np.int32),
            "positions": np.array([(0, place) for place in range(length)]),
            "past.self_key.0": np.zeros((1, 4, length, 8), np.float32),
            "past.self_value.0": np.zeros((1, 4, length, 8), np.float32),
        }
        (logits,) = session.run(["logits"], feeds)
        return logits

    before = logits_of(tokens)
    for place in range(1, length):
        changed = tokens.copy()
        changed[0, place] = 4 + (changed[0, place] - 3) % 23
        after = logits_of(changed)
        assert np.array_equal(after[:place], before[:place])
        assert np.abs(after[place] - before[place]).max() > 1e-3


class BiasedNode(nn.Module):
    """One attention node over a block that begins at position 0, with ALiBi."""

    def __init__(self, config):
        super().__init__()
        self.config, self.bias = config, AlibiBias(config)

    def forward(self, query_1TE, key_1TE, value_1TE, past_key, past_value):
        length = query_1TE.shape[1]
        starts, lengths = torch.zeros(1, dtype=torch.int64), torch.full((1,), length, dtype=torch.int32)
        total = torch.tensor(0, dtype=torch.int32) + length
        attend = GraphAttention(
            self.config, (past_key, past_value), starts, lengths, total, key_positions_N=torch.arange(length)
        )
        return attend(query_1TE, key_1TE, value_1TE, lambda _, queries, keys: self.bias(queries, keys))


def test_scores_are_scaled_then_capped_then_biased_then_masked():
    length, heads, window, cap, scale = 7, 2, 4, 1.5, 0.7
    config = DecoderConfig(
        d_model=16, num_heads=heads, num_kv_heads=1, head_dim=HEAD_DIM, positions="alibi", sliding_window=window,
        attention_scale=scale, attention_softcap=cap,
    )  # fmt: skip
    sizes = {"query": heads * HEAD_DIM, "key": HEAD_DIM, "value": HEAD_DIM}
    inputs = [Input(name, (1, length, size), torch.float32) for name, size in sizes.items()]
    inputs += [Input(f"past_{name}", (1, 1, length, HEAD_DIM), torch.float32) for name in ("key", "value")]
    graph = trace(Signature(module=BiasedNode(config), arguments=tuple(inputs), outputs=("y",)))
    random = np.random.default_rng(0)
    feeds = {one.name: random.normal(size=one.example.shape).astype(np.float32) for one in inputs}
    (y_1TE,) = open_session(graph.SerializeToString()).run(["y"], feeds)
    query_THD, key_SD, value_SD = feeds["query"].reshape(length, heads, HEAD_DIM), feeds["key"][0], feeds["value"][0]
    expected = np.zeros((length, heads, HEAD_DIM))
    for head, slope in enumerate((2.0**-4, 2.0**-8)):
        for i in range(length):
            seen = range(max(0, i - window + 1), i + 1)
            scores = [cap * np.tanh(query_THD[i, head] @ key_SD[j] * scale / cap) - slope * (i - j) for j in seen]
            powers = np.exp(scores)
            expected[i, head] = powers @ value_SD[seen.start : seen.stop] / powers.sum()
    np.testing.assert_allclose(y_1TE[0].reshape(expected.shape), expected, rtol=0, atol=2e-6)
