import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from model.architecture_config import EncoderDecoderConfig, model_config
from model.attention import FullAttention, SourceAttention, causal_mask
from model.layers import Block, Embedding, FeedForward, Residual, norm_layer
from model.positions import (
    EncodedPositions,
    PositionEncoding,
    frequencies,
    rotary_frequencies,
    rotary_tables,
    sinusoidal_table,
)

# B batch, T positions, M d_model, F d_ff


def small(**changes):
    return model_config({"vocab_size": 20, "d_model": 12, "num_heads": 3, "d_ff": 16, **changes})


def randomise(module):
    """Every parameter away from its special first value (1, 0), so that forgetting one shows."""
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def numpy_of(module):
    return SimpleNamespace(**{k.replace(".", "_"): v.detach().double().numpy() for k, v in module.named_parameters()})


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


ACTIVATIONS_BY_HAND = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_feed_forward_is_the_formula(activation, gated, bias):
    layer = randomise(FeedForward(small(activation=activation, gated=gated, bias=bias)))
    x = torch.randn(2, 4, 12)
    w = numpy_of(layer)
    inner = ACTIVATIONS_BY_HAND[activation](x.numpy() @ w.inner_weight.T + (w.inner_bias if bias else 0))
    if gated:
        inner = inner * (x.numpy() @ w.gate_weight.T + (w.gate_bias if bias else 0))
    expected = inner @ w.outer_weight.T + (w.outer_bias if bias else 0)
    np.testing.assert_allclose(layer(x).detach(), expected, rtol=1e-4, atol=1e-4)
    assert len(list(layer.parameters())) == (2 + gated) * (1 + bias)


def test_feed_forward_treats_every_position_alike():
    layer, x = FeedForward(small()), torch.randn(1, 5, 12)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


def test_layer_norm_subtracts_the_mean_over_d_and_divides_by_the_root_of_the_mean_square():
    # Lecture notes lose the 1/d of the mean and the minus sign of the variance: both typos give other numbers.
    norm, x = norm_layer(small(norm_eps=1e-5)), torch.randn(3, 12) * 4 + 2
    values = x.double().numpy()
    mean = values.sum(-1, keepdims=True) / 12
    variance = ((values - mean) ** 2).sum(-1, keepdims=True) / 12
    np.testing.assert_allclose(norm(x).detach(), (values - mean) / np.sqrt(variance + 1e-5), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm(x).mean(-1), torch.zeros(3), rtol=0, atol=1e-6)
    torch.testing.assert_close(norm(x).var(-1, unbiased=False), torch.ones(3), rtol=1e-4, atol=0)
    wrong_mean = values - values.sum(-1, keepdims=True)
    wrong_sign = (values + mean) ** 2
    for wrong in (wrong_mean / np.sqrt(variance), (values - mean) / np.sqrt(wrong_sign.mean(-1, keepdims=True))):
        assert np.abs(norm(x).detach().numpy() - wrong).max() > 0.1


def test_rms_norm_divides_by_the_root_of_the_mean_square():
    norm, x = randomise(norm_layer(small(norm="rms", norm_eps=0.1))), torch.randn(3, 12)
    values = x.double().numpy()
    expected = values / np.sqrt((values**2).mean(-1, keepdims=True) + 0.1) * numpy_of(norm).weight
    np.testing.assert_allclose(norm(x).detach(), expected, rtol=1e-5, atol=1e-5)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_norms_take_their_epsilon_from_the_configuration(norm):
    tiny_input = torch.full((1, 12), 1e-4)
    tiny_input[0, ::2] *= -1
    outputs = [norm_layer(small(norm=norm, norm_eps=eps))(tiny_input).abs().max().item() for eps in (1e-12, 1e-4)]
    assert outputs == pytest.approx([1.0, 0.01], rel=0.01)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_the_norm_stands_before_the_sublayer_or_after_the_sum(norm_position):
    residual = randomise(Residual(small(norm_position=norm_position)))
    x, norm = torch.randn(2, 3, 12), residual.norm
    expected = x + norm(x).sin() if norm_position == "pre" else norm(x + x.sin())
    assert torch.equal(residual(x, torch.sin), expected)


def test_the_gradient_through_a_residual_whose_sublayer_is_zero_is_the_identity():
    block = Block(small(norm_position="pre"), has_cross_attention=True)
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            if ".output." in name or ".outer." in name:
                parameter.zero_()
    x = torch.randn(1, 2, 12)
    source = SourceAttention(small(), torch.randn(1, 3, 4, 4), torch.randn(1, 3, 4, 4), torch.tensor([4]))

    def through(x):
        return block(x, FullAttention(small(), causal_mask(2)), EncodedPositions(), source)

    assert torch.equal(through(x), x)
    jacobian = torch.autograd.functional.jacobian(through, x)
    assert isinstance(jacobian, torch.Tensor)
    assert torch.equal(jacobian.view(24, 24), torch.eye(24))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_block_is_its_three_sublayers_in_order(norm_position):
    block = randomise(Block(small(norm_position=norm_position), has_cross_attention=True))
    x = torch.randn(2, 3, 12)
    attend = FullAttention(small(), causal_mask(3))
    source = SourceAttention(small(), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), torch.tensor([5, 2]))
    y = x
    for residual, sublayer in (
        (block.self_residual, lambda z: block.self_attention(z, attend)),
        (block.cross_residual, lambda z: block.cross_attention(z, source)),
        (block.feed_forward_residual, block.feed_forward),
    ):
        y = y + sublayer(residual.norm(y)) if norm_position == "pre" else residual.norm(y + sublayer(y))
    torch.testing.assert_close(block(x, attend, EncodedPositions(), source), y)


def test_a_block_without_cross_attention_has_no_weights_for_it():
    names = [name for name, _ in Block(small(), has_cross_attention=False).named_parameters()]
    assert not any("cross" in name for name in names)


SHARED_NAMES = {
    "self_attn.in_proj_{}": "self_attention.query_key_value.{}",
    "self_attn.out_proj.{}": "self_attention.output.{}",
    "linear1.{}": "feed_forward.inner.{}",
    "linear2.{}": "feed_forward.outer.{}",
    "norm1.{}": "self_residual.norm.{}",
}
ENCODER_NAMES = {**SHARED_NAMES, "norm2.{}": "feed_forward_residual.norm.{}"}
DECODER_NAMES = {
    **SHARED_NAMES,
    "multihead_attn.out_proj.{}": "cross_attention.output.{}",
    "norm2.{}": "cross_residual.norm.{}",
    "norm3.{}": "feed_forward_residual.norm.{}",
}


def torch_state(block, names):
    ours = block.state_dict()
    return {
        theirs.format(kind): ours[mine.format(kind)] for theirs, mine in names.items() for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_block_is_torchs_encoder_layer(norm_position, activation):
    block = randomise(Block(small(norm_position=norm_position, activation=activation), has_cross_attention=False))
    theirs = nn.TransformerEncoderLayer(
        12, 3, 16, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_position == "pre"
    )
    theirs.load_state_dict(torch_state(block, ENCODER_NAMES))
    x = torch.randn(2, 5, 12)
    expected = theirs(x, src_mask=~causal_mask(5))
    torch.testing.assert_close(
        block(x, FullAttention(small(), causal_mask(5)), EncodedPositions()), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_block_with_cross_attention_is_torchs_decoder_layer(norm_position):
    block = randomise(Block(small(norm_position=norm_position), has_cross_attention=True))
    theirs = nn.TransformerDecoderLayer(12, 3, 16, dropout=0.0, batch_first=True, norm_first=norm_position == "pre")
    cross = block.cross_attention
    assert cross is not None
    packed = {
        f"multihead_attn.in_proj_{kind}": torch.cat((getattr(cross.query, kind), getattr(cross.key_value, kind)))
        for kind in ("weight", "bias")
    }
    theirs.load_state_dict({**torch_state(block, DECODER_NAMES), **packed})
    x, states, lengths = torch.randn(2, 5, 12), torch.randn(2, 7, 12), torch.tensor([7, 3])
    key, value = cross.project_source(states)
    source = SourceAttention(small(), key, value, lengths)
    expected = theirs(x, states, tgt_mask=~causal_mask(5), memory_key_padding_mask=torch.arange(7) >= lengths[:, None])
    ours = block(x, FullAttention(small(), causal_mask(5)), EncodedPositions(), source)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_sinusoidal_table_has_the_published_values():
    table = sinusoidal_table(EncoderDecoderConfig(d_model=8), 5)
    assert table.dtype == torch.float32
    assert table[0].tolist() == [0, 1] * 4
    assert table[1, 0::2].tolist() == pytest.approx([0.841471, 0.099833, 0.010000, 0.001000], abs=1e-6)
    assert table[1, 1::2].tolist() == pytest.approx([0.540302, 0.995004, 0.999950, 1.0], abs=1e-6)


def test_sinusoidal_table_is_exact_at_late_positions():
    table = sinusoidal_table(EncoderDecoderConfig(d_model=64), 20_000)
    for position in (1, 511, 19_999):
        for i in (0, 1, 13, 31):
            angle = position / 10000 ** (2 * i / 64)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_sinusoids_in_halves_are_the_same_numbers_elsewhere():
    halves = sinusoidal_table(EncoderDecoderConfig(d_model=8, sinusoids="halves"), 5)
    torch.testing.assert_close(
        halves, sinusoidal_table(EncoderDecoderConfig(d_model=8), 5)[:, [0, 2, 4, 6, 1, 3, 5, 7]]
    )


def test_sinusoids_of_fairseq_begin_after_padding_and_turn_by_their_own_frequencies():
    table = sinusoidal_table(EncoderDecoderConfig(d_model=8, sinusoids="fairseq", pad_id=1), 3)
    expected = [10000 ** (-i / 3) * 4 for i in range(4)]  # row 2 is position 4
    assert table[2].tolist() == pytest.approx([*map(math.sin, expected), *map(math.cos, expected)], abs=1e-6)


def test_rotary_tables_hold_each_angle_in_both_halves():
    cos, sin = rotary_tables(300, frequencies(6, base=500.0))
    assert cos.shape == sin.shape == (300, 6)
    assert cos.dtype == sin.dtype == torch.float32
    for i in range(3):
        angle = 299 * 500.0 ** (-2 * i / 6)
        assert cos[299, i].item() == cos[299, i + 3].item() == pytest.approx(math.cos(angle), abs=1e-6)
        assert sin[299, i].item() == sin[299, i + 3].item() == pytest.approx(math.sin(angle), abs=1e-6)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_embeddings_are_scaled_by_the_root_of_d_model_and_positions_added(positions):
    embedding = Embedding(small(positions=positions), max_len=6)
    tokens = torch.tensor([[4, 7, 5], [6, 6, 0]])
    x = embedding(tokens)
    torch.testing.assert_close(x, embedding.tokens.weight[tokens] * math.sqrt(12) + embedding.positions[:3])


def test_rotary_embeddings_add_nothing_and_hand_out_the_rotation():
    config = small(positions="rotary")
    embedding, encoding = Embedding(config, max_len=6), PositionEncoding(config, 6, is_causal=True)
    tokens, starts = torch.tensor([[4, 7], [6, 6]]), torch.tensor([0, 3])
    x, rotation = embedding(tokens, starts), encoding(tokens, starts).rotation
    assert rotation is not None
    torch.testing.assert_close(x, embedding.tokens.weight[tokens] * math.sqrt(12))
    for given, table in zip(rotation, rotary_tables(6, rotary_frequencies(config)), strict=True):
        assert torch.equal(given, torch.stack((table[:2], table[3:5])))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_each_row_has_its_own_start(positions):
    embedding = Embedding(small(positions=positions), max_len=6)
    whole = embedding(torch.tensor([[4, 5, 6, 7, 8, 9]]))
    parts = embedding(torch.tensor([[4, 5], [8, 9]]), torch.tensor([0, 4]))
    assert torch.equal(parts, torch.stack((whole[0, :2], whole[0, 4:])))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_a_position_beyond_the_table_is_an_error(positions):
    config = small(positions=positions)
    table = PositionEncoding(config, 3, is_causal=True) if positions == "rotary" else Embedding(config, max_len=3)
    table(torch.tensor([[4, 4]]), torch.tensor([1]))
    with pytest.raises(IndexError):
        table(torch.tensor([[4, 4]]), torch.tensor([2]))
    with pytest.raises(IndexError):
        table(torch.tensor([[4, 4, 4, 4]]))


def test_padding_has_no_gradient_and_a_zero_vector():
    embedding = Embedding(small(pad_id=5, bos_id=0), max_len=6)
    embedding(torch.tensor([[5, 4, 5]])).square().sum().backward()
    gradient = embedding.tokens.weight.grad
    assert gradient is not None
    assert (gradient[5] == 0).all()
    assert (gradient[4] != 0).all()
    assert (embedding.tokens.weight[5] == 0).all()


def test_only_learned_positions_are_weights():
    for positions, expected in (("sinusoidal", 1), ("learned", 2), ("rotary", 1)):
        embedding = Embedding(small(positions=positions), max_len=6)
        assert len(embedding.state_dict()) == len(list(embedding.parameters())) == expected


def test_dropout_works_in_training_only():
    embedding = Embedding(small(dropout=0.5), max_len=6)
    tokens = torch.full((1, 6), 4)
    assert (embedding(tokens) == 0).any()
    embedding.eval()
    assert not (embedding(tokens) == 0).any()
