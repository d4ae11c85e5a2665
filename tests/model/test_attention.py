"""Oracles: torch's own attention, numpy by hand, and the three-token worked example of an introductory lecture."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from model.architecture_config import EncoderDecoderConfig
from model.attention import (
    CachedAttention,
    CrossAttention,
    FullAttention,
    SelfAttention,
    SourceAttention,
    causal_mask,
    merge_heads,
    padding_mask,
    rotate,
    scaled_dot_product_attention,
    split_heads,
)
from model.positions import frequencies, rotary_tables
from tests.worked_numbers import LECTURE_CASES, LECTURE_KEY, LECTURE_QUERY, LECTURE_VALUE, LECTURE_X

# B batch, H query heads, K key-value heads, T query positions, S key positions, D head_dim, M d_model,
# E heads side by side


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def shape(d_model, num_heads, num_kv_heads, head_dim, *, bias=True):
    """A configuration of these sizes, for attention layers."""
    return EncoderDecoderConfig(
        d_model=d_model, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, bias=bias, positions="none"
    )


def random_heads(heads=4, kv_heads=4, queries=5, keys=7, dim=6, dtype=torch.float32):
    return (
        draw(2, heads, queries, dim, seed=1, dtype=dtype),
        draw(2, kv_heads, keys, dim, seed=2, dtype=dtype),
        draw(2, kv_heads, keys, dim, seed=3, dtype=dtype),
    )


@pytest.mark.parametrize(("is_scaled", "is_causal", "weights", "outputs"), LECTURE_CASES)
def test_the_lecture_example_comes_out_of_the_self_attention_layer(is_scaled, is_causal, weights, outputs):
    layer = SelfAttention(shape(4, 1, 1, 3, bias=False))
    with torch.no_grad():
        stacked = torch.cat([torch.tensor(w).float().T for w in (LECTURE_QUERY, LECTURE_KEY, LECTURE_VALUE)])
        layer.query_key_value.weight.copy_(stacked)
        layer.output.weight = nn.Parameter(torch.eye(3))  # the example has no output projection
    seen = []

    def attend(query_BTE, key_BTE, value_BTE, bias=None):
        mask = causal_mask(3) if is_causal else None
        mixed, weights = scaled_dot_product_attention(
            query_BTE[:, None], key_BTE[:, None], value_BTE[:, None], mask, scale=None if is_scaled else 1.0
        )
        seen.append((query_BTE[0], key_BTE[0], value_BTE[0], weights[0, 0]))
        return mixed[:, 0]

    mixed = layer(torch.tensor([LECTURE_X]).float(), attend)[0]
    query, key, value, seen_weights = seen[0]
    assert query.tolist() == [[1, 0, 2], [2, 2, 2], [2, 1, 3]]
    assert key.tolist() == [[0, 1, 1], [4, 4, 0], [2, 3, 1]]
    assert value.tolist() == [[1, 2, 3], [2, 8, 0], [2, 6, 3]]
    assert (query @ key.T).tolist() == [[2, 4, 4], [4, 16, 12], [4, 12, 10]]
    # The example is given to six decimals: half a unit of the last one, and float32's own error on top.
    torch.testing.assert_close(seen_weights, torch.tensor(weights), rtol=0, atol=1e-6)
    torch.testing.assert_close(mixed, torch.tensor(outputs), rtol=0, atol=1.5e-6)


def test_matrix_form_is_the_loop_over_pairs_of_positions():
    query, key, value = random_heads()
    mask = torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(4)) < 0.6
    mask[..., 0] = True
    mixed, weights = scaled_dot_product_attention(query, key, value, mask)
    q, k, v = query.double().numpy(), key.double().numpy(), value.double().numpy()
    for batch, head, i in np.ndindex(2, 4, 5):
        raw = [
            math.exp(q[batch, head, i] @ k[batch, head, j] / math.sqrt(6)) if mask[batch, head, i, j] else 0.0
            for j in range(7)
        ]
        expected = np.array(raw) / sum(raw)
        np.testing.assert_allclose(weights[batch, head, i], expected, atol=1e-6)
        np.testing.assert_allclose(mixed[batch, head, i], expected @ v[batch, head], atol=1e-6)


@settings(max_examples=30)
@given(
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 4]),
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    dim=st.integers(1, 5),
    seed=st.integers(0, 1000),
    is_masked=st.booleans(),
)
def test_agrees_with_torchs_own_kernel(kv_heads, group, queries, keys, dim, seed, is_masked):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(2, kv_heads * group, queries, dim, generator=generator)
    key, value = torch.randn(2, 2, kv_heads, keys, dim, generator=generator)
    mask = torch.rand(2, 1, queries, keys, generator=generator) < 0.5
    mask[..., 0] = True
    mixed, weights = scaled_dot_product_attention(query, key, value, mask if is_masked else None)
    expected = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask if is_masked else None, enable_gqa=True
    )
    torch.testing.assert_close(mixed, expected, rtol=1e-5, atol=1e-6)
    assert mixed.shape == (2, kv_heads * group, queries, dim)
    assert weights.shape == (2, kv_heads * group, queries, keys)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, kv_heads * group, queries))


def test_grouped_queries_are_attention_over_repeated_heads():
    query, key, value = random_heads(heads=6, kv_heads=2)
    mixed, _ = scaled_dot_product_attention(query, key, value)
    for head in range(6):
        single, _ = scaled_dot_product_attention(
            query[:, head, None], key[:, head // 3, None], value[:, head // 3, None]
        )
        torch.testing.assert_close(mixed[:, head, None], single)


def test_the_lectures_softmax_of_three_words():
    query, key = torch.tensor([[[[1.0]]]]), torch.tensor([[[[0.005], [0.085], [0.91]]]]).log()
    _, weights = scaled_dot_product_attention(query, key, torch.zeros(1, 1, 3, 1))
    torch.testing.assert_close(weights[0, 0, 0], torch.tensor([0.005, 0.085, 0.91]))


def test_the_lectures_projections_from_300_to_100():
    """Embeddings of 300 become queries, keys and values of 100, and so does the third output, by numpy."""
    generator = np.random.default_rng(0)
    x_TM = generator.standard_normal((3, 300)) / 300**0.5
    query_TD, key_TD, value_TD = (x_TM @ generator.standard_normal((300, 100)) for _ in range(3))
    scores_TT = query_TD @ key_TD.T / 100**0.5
    weights_TT = np.exp(scores_TT) / np.exp(scores_TT).sum(axis=1, keepdims=True)
    mixed, weights = scaled_dot_product_attention(*(torch.tensor(x)[None, None] for x in (query_TD, key_TD, value_TD)))
    assert mixed[0, 0, 2].shape == (100,)
    np.testing.assert_allclose(weights[0, 0].numpy(), weights_TT, atol=1e-12)
    np.testing.assert_allclose(mixed[0, 0].numpy(), weights_TT @ value_TD, atol=1e-12)


def test_causal_rows_see_themselves_and_what_came_before():
    query, key, value = random_heads(queries=7)
    _, weights = scaled_dot_product_attention(query, key, value, causal_mask(7))
    for i in range(7):
        assert (weights[:, :, i, : i + 1] > 0).all()
        assert (weights[:, :, i, i + 1 :] == 0).all()


def test_padding_mask_opens_the_first_positions_of_each_row():
    mask = padding_mask(torch.tensor([0, 2, 3], dtype=torch.int32), 3)
    assert mask.shape == (3, 1, 1, 3)
    assert mask[:, 0, 0].int().tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_query_that_may_look_nowhere_gets_the_mean(dtype):
    query, key, value = random_heads(dtype=dtype)
    mixed, weights = scaled_dot_product_attention(query, key, value, torch.zeros(1, 1, 5, 7, dtype=torch.bool))
    torch.testing.assert_close(weights.float(), torch.full((2, 4, 5, 7), 1 / 7), rtol=0, atol=1e-3)
    torch.testing.assert_close(
        mixed.float(), value.mean(2, keepdim=True).expand(-1, -1, 5, -1).float(), rtol=0, atol=0.02
    )


def test_a_query_that_may_look_nowhere_keeps_gradients_finite():
    query, key, value = (x.requires_grad_() for x in random_heads())
    mask = causal_mask(7)[:5].clone()
    mask[2] = False
    scaled_dot_product_attention(query, key, value, mask)[0].sum().backward()
    assert all(x.grad.isfinite().all() for x in (query, key, value))


def test_what_a_mask_hides_changes_no_bit():
    query, key, value = random_heads()
    mask = padding_mask(torch.tensor([7, 4]), 7)
    mixed, _ = scaled_dot_product_attention(query, key, value, mask)
    key[1, :, 4:], value[1, :, 4:] = 1e4, -1e4
    assert torch.equal(scaled_dot_product_attention(query, key, value, mask)[0], mixed)


def test_scores_of_ten_thousand_stay_finite_in_float16():
    query = torch.full((1, 1, 2, 64), 35.0, dtype=torch.float16)  # 35 * 35 * 64 = 78,400 is beyond float16's 65,504
    value = draw(1, 1, 2, 64, dtype=torch.float16)
    mixed, weights = scaled_dot_product_attention(query, query, value, causal_mask(2))
    assert mixed.isfinite().all()
    assert weights.tolist() == [[[[1.0, 0.0], [0.5, 0.5]]]]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_is_near_float32(dtype, tolerance):
    query, key, value = random_heads(dtype=dtype)
    mixed, weights = scaled_dot_product_attention(query, key, value, causal_mask(7)[:5])
    assert mixed.dtype == weights.dtype == dtype
    expected, _ = scaled_dot_product_attention(query.float(), key.float(), value.float(), causal_mask(7)[:5])
    torch.testing.assert_close(mixed.float(), expected, rtol=0, atol=tolerance)


def test_softmax_is_at_least_float32_and_keeps_float64():
    query, key, value = random_heads(dtype=torch.float64)
    mixed, _ = scaled_dot_product_attention(query, key, value)
    expected = functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(mixed, expected, rtol=1e-13, atol=1e-13)


def test_gradients_are_those_of_finite_differences():
    query, key, value = (x.requires_grad_() for x in random_heads(2, 1, 3, 3, 2, torch.float64))
    mask = causal_mask(3)
    assert torch.autograd.gradcheck(lambda q, k, v: scaled_dot_product_attention(q, k, v, mask)[0], (query, key, value))


def test_dropout_removes_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1, 1000, 4), torch.zeros(1, 1, 10, 4)
    mixed, weights = scaled_dot_product_attention(query, key, torch.eye(10)[None, None], dropout=0.4)
    assert torch.equal(weights, torch.full((1, 1, 1000, 10), 0.1))  # as they were before dropout
    dropped = mixed[0, 0]
    assert (dropped == 0).float().mean().item() == pytest.approx(0.4, abs=0.02)
    torch.testing.assert_close(dropped[dropped > 0], torch.full_like(dropped[dropped > 0], 0.1 / 0.6))


def torch_self_attention(layer, heads):
    theirs = nn.MultiheadAttention(layer.output.out_features, heads, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": layer.query_key_value.weight,
            "in_proj_bias": layer.query_key_value.bias,
            "out_proj.weight": layer.output.weight,
            "out_proj.bias": layer.output.bias,
        }
    )
    return theirs


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("is_padded", [False, True])
def test_self_attention_is_torchs_with_the_same_weights(heads, is_causal, is_padded):
    torch.manual_seed(0)
    layer, x, lengths = (
        SelfAttention(shape(12, heads, heads, 12 // heads)),
        torch.randn(3, 6, 12),
        torch.tensor([6, 1, 4]),
    )
    nn.init.normal_(layer.query_key_value.bias)
    open_mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    causal = causal_mask(6) if is_causal else open_mask[0, 0]
    padding = padding_mask(lengths, 6) if is_padded else open_mask[:, :, :1].expand(3, -1, -1, -1)
    mask = causal & padding if is_causal or is_padded else None
    ours = layer(x, FullAttention(shape(12, heads, heads, 12 // heads), mask))
    theirs, _ = torch_self_attention(layer, heads)(x, x, x, attn_mask=~causal, key_padding_mask=~padding[:, 0, 0])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_padded", [False, True])
def test_cross_attention_is_torchs_with_the_same_weights(is_padded):
    torch.manual_seed(0)
    layer, target, source = CrossAttention(shape(12, 4, 4, 3)), torch.randn(2, 10, 12), torch.randn(2, 20, 12)
    lengths = torch.tensor([20, 11]) if is_padded else torch.tensor([20, 20])
    key, value = layer.project_source(source)
    assert key.shape == value.shape == (2, 4, 20, 3)
    ours = layer(target, SourceAttention(shape(12, 4, 4, 3), key, value, lengths))
    theirs = nn.MultiheadAttention(12, 4, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat((layer.query.weight, layer.key_value.weight)),
            "in_proj_bias": torch.cat((layer.query.bias, layer.key_value.bias)),
            "out_proj.weight": layer.output.weight,
            "out_proj.bias": layer.output.bias,
        }
    )
    padding = ~padding_mask(lengths, 20)[:, 0, 0] if is_padded else None
    expected, weights = theirs(target, source, source, key_padding_mask=padding)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    assert ours.shape == (2, 10, 12)
    _, ours_weights = scaled_dot_product_attention(
        split_heads(layer.query(target), 4), key, value, padding_mask(lengths, 20)
    )
    torch.testing.assert_close(ours_weights.mean(1), weights, rtol=1e-5, atol=1e-6)  # torch averages over heads


def test_grouped_query_layer_is_multi_head_with_its_key_heads_repeated():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    shapes = shape(16, 4, 2, 4), shape(16, 4, 4, 4)
    grouped, full = map(SelfAttention, shapes)
    with torch.no_grad():
        for name in ("weight", "bias"):
            packed = getattr(grouped.query_key_value, name)
            query, key, value = packed.split([16, 8, 8])
            repeated = [part.unflatten(0, (2, 4)).repeat_interleave(2, dim=0).flatten(0, 1) for part in (key, value)]
            getattr(full.query_key_value, name).copy_(torch.cat((query, *repeated)))
        full.output.load_state_dict(grouped.output.state_dict())
    of_grouped, of_full = (FullAttention(one, causal_mask(5)) for one in shapes)
    torch.testing.assert_close(grouped(x, of_grouped), full(x, of_full))


def test_heads_split_and_merge_are_inverse_and_keep_heads_together():
    x = torch.arange(24.0).view(1, 2, 12)
    heads = split_heads(x, 3)
    assert heads.shape == (1, 3, 2, 4)
    assert heads[0, 1, 0].tolist() == [4, 5, 6, 7]
    assert torch.equal(merge_heads(heads), x)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_without_bias_has_none(bias):
    for layer in (SelfAttention(shape(8, 2, 1, 4, bias=bias)), CrossAttention(shape(8, 2, 1, 4, bias=bias))):
        assert any("bias" in name for name, _ in layer.named_parameters()) == bias


def cached_call(starts, block, capacity=6, seed=0, cache=None):
    heads, kv_heads, dim, batch = 4, 2, 3, len(starts)
    cache = cache or (torch.zeros(batch, kv_heads, capacity, dim), torch.zeros(batch, kv_heads, capacity, dim))
    query = draw(batch, block, heads * dim, seed=seed)
    key, value = draw(2, batch, block, kv_heads * dim, seed=seed + 1)
    mixed = CachedAttention(shape(12, heads, kv_heads, dim), cache[0], cache[1], torch.tensor(starts))(
        query, key, value
    )
    return (query, key, value), mixed, cache


def test_a_block_is_written_after_each_rows_earlier_positions():
    (_, key, value), _, cache = cached_call([0, 2, 4], 2)
    for written, new in zip(cache, (key, value), strict=True):
        for row, start in enumerate([0, 2, 4]):
            assert torch.equal(written[row, :, start : start + 2].transpose(0, 1).flatten(1), new[row])
            untouched = torch.cat((written[row, :, :start], written[row, :, start + 2 :]), dim=1)
            assert (untouched == 0).all()


@pytest.mark.parametrize("blocks", [[6], [1, 1, 1, 1, 1, 1], [3, 1, 2], [5, 1]])
def test_cached_blocks_are_the_causal_whole(blocks):
    query, key, value = draw(2, 6, 12, seed=5), draw(2, 6, 6, seed=6), draw(2, 6, 6, seed=7)
    config = shape(12, 4, 2, 3)
    expected = FullAttention(config, causal_mask(6))(query, key, value)
    cache, start, parts = (torch.zeros(2, 2, 9, 3), torch.zeros(2, 2, 9, 3)), 0, []
    for block in blocks:
        attend = CachedAttention(config, *cache, torch.tensor([start, start]))
        parts.append(attend(*(x[:, start : start + block] for x in (query, key, value))))
        start += block
    torch.testing.assert_close(torch.cat(parts, dim=1), expected)


def test_stale_positions_after_the_row_change_no_bit():
    _, mixed, _ = cached_call([1, 3], 2)
    stale = torch.zeros(2, 2, 6, 3)
    stale[0, :, 3:] = stale[1, :, 5:] = 1e4
    _, with_stale, _ = cached_call([1, 3], 2, cache=(stale.clone(), stale.clone()))
    assert torch.equal(with_stale, mixed)


def test_a_block_past_the_capacity_is_an_error_not_an_overwrite():
    with pytest.raises(IndexError):
        cached_call([0, 5], 2, capacity=6)


def test_a_cache_wider_than_the_block_keeps_its_dtype():
    cache = (torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2))
    block = torch.ones(1, 1, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        CachedAttention(shape(2, 1, 1, 2), *cache, torch.tensor([0]))(block, block, block)
    assert cache[0].dtype == torch.float32
    assert cache[0][0, 0, :, 0].tolist() == [1, 0, 0, 0]


def test_rotation_is_that_of_complex_numbers_in_halves():
    x = draw(1, 3, 8)
    cos, sin = rotary_tables(3, frequencies(4, base=100.0))
    turned = rotate(x, cos[None], sin[None])
    for position in range(3):
        for head in range(2):
            first, second = x[0, position, head * 4 : head * 4 + 2], x[0, position, head * 4 + 2 : head * 4 + 4]
            for i in range(2):
                z = complex(first[i], second[i]) * np.exp(1j * position * 100.0 ** (-2 * i / 4))
                assert turned[0, position, head * 4 + i].item() == pytest.approx(z.real, abs=1e-6)
                assert turned[0, position, head * 4 + 2 + i].item() == pytest.approx(z.imag, abs=1e-6)


def test_rotation_at_position_zero_changes_nothing():
    x = draw(2, 1, 8)
    cos, sin = rotary_tables(1, frequencies(4, base=10000.0))
    assert torch.equal(rotate(x, cos[None], sin[None]), x)


@settings(max_examples=25)
@given(i=st.integers(0, 60), j=st.integers(0, 60), shift=st.integers(0, 60), seed=st.integers(0, 100))
def test_rotated_scores_depend_only_on_distance(i, j, shift, seed):
    cos, sin = rotary_tables(128, frequencies(8, base=10000.0))
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))

    def score(a, b):
        turned = [rotate(x[None, None], cos[None, None, p], sin[None, None, p]) for x, p in ((query, a), (key, b))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(i, j), score(i + shift, j + shift), rtol=1e-4, atol=1e-4)


def test_rotation_keeps_the_dtype_of_half_precision():
    cos, sin = rotary_tables(3, frequencies(4, base=10000.0))
    assert rotate(draw(1, 3, 4, dtype=torch.bfloat16), cos[None], sin[None]).dtype == torch.bfloat16
