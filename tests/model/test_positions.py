"""Positions that turn queries and keys or bias scores, against definitions written down here."""

import math

import pytest
import torch

from model.architecture_config import EncoderDecoderConfig
from model.attention import CachedAttention, FullAttention, scaled_dot_product_attention, split_heads
from model.positions import (
    AlibiBias,
    BucketedBias,
    PositionEncoding,
    ShawBias,
    alibi_slopes,
    frequencies,
    rotary_frequencies,
)


def config(**changes):
    return EncoderDecoderConfig(d_model=16, num_heads=4, **changes)


def test_alibi_slopes_are_the_published_geometric_series():
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(6).tolist() == pytest.approx([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])


def test_alibi_takes_the_distance_times_the_slope():
    bias = AlibiBias(config(positions="alibi"))(torch.tensor([[2], [0]]), torch.arange(4))
    assert bias.shape == (2, 4, 1, 4)
    slopes = alibi_slopes(4)
    for row, place in enumerate((2, 0)):
        for head in range(4):
            for key in range(4):
                assert bias[row, head, 0, key].item() == pytest.approx(-abs(place - key) * slopes[head].item())


def bucket_by_hand(distance, *, causal, buckets, most):
    """Raffel et al. 2020: half the buckets are exact, the rest grow logarithmically up to `most`."""
    first = 0
    if causal:
        distance = max(-distance, 0)
    else:
        buckets //= 2
        first, distance = (buckets if distance > 0 else 0), abs(distance)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    place = exact + int(math.log(distance / exact) / math.log(most / exact) * (buckets - exact))
    return first + min(place, buckets - 1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (6, 7)])
def test_distances_fall_into_their_buckets(causal, buckets, most):
    bias = BucketedBias(config(positions="bucketed", position_buckets=buckets, position_range=most), is_causal=causal)
    distances = torch.arange(-300, 301)
    expected = [bucket_by_hand(d, causal=causal, buckets=buckets, most=most) for d in distances.tolist()]
    assert bias.bucket(distances).tolist() == expected


def test_shaw_matches_the_query_with_the_vector_of_the_clipped_distance():
    bias = ShawBias(config(positions="shaw", position_range=2))
    query = torch.randn(2, 4, 3, 4, generator=torch.Generator().manual_seed(0))
    places = torch.tensor([[0, 1, 2], [4, 5, 6]])
    scores = bias(query, places, torch.arange(7))
    for row in range(2):
        for t in range(3):
            for key in range(7):
                vector = bias.vectors[max(-2, min(2, key - int(places[row, t]))) + 2]
                torch.testing.assert_close(scores[row, :, t, key], query[row, :, t] @ vector)


@pytest.mark.parametrize("positions", ["shaw", "bucketed", "alibi"])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_cached_step_adds_what_the_whole_sequence_does(positions, scale):
    shape = config(positions=positions, position_buckets=8, position_range=9, attention_scale=scale)
    generator = torch.Generator().manual_seed(1)
    shaw, encoding = ShawBias(shape), PositionEncoding(shape, 8, is_causal=True)
    with torch.no_grad():
        for parameter in (*shaw.parameters(), *encoding.parameters()):
            parameter.normal_(generator=generator)
    query, key, value = torch.randn(3, 1, 6, 16, generator=generator)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()

    def bias():
        return shaw if positions == "shaw" else encoding(torch.zeros(1, 1)).bias

    whole = FullAttention(shape, causal)(query, key, value, bias())
    cache = torch.zeros(2, 1, 4, 8, 4)
    for t in range(6):
        attend = CachedAttention(shape, cache[0], cache[1], torch.tensor([t]))
        step = attend(query[:, t : t + 1], key[:, t : t + 1], value[:, t : t + 1], bias())
        torch.testing.assert_close(step, whole[:, t : t + 1])
    assert not torch.allclose(whole, FullAttention(shape, causal)(query, key, value))


def test_the_unscaled_form_is_attention_with_scale_one():
    query, key, value = torch.randn(3, 2, 5, 16, generator=torch.Generator().manual_seed(2))
    heads = [split_heads(x, 4) for x in (query, key, value)]
    expected, _ = scaled_dot_product_attention(*heads, scale=1.0)
    ours = FullAttention(config(attention_scale=1.0), None)(query, key, value)
    torch.testing.assert_close(split_heads(ours, 4), expected)


def test_a_window_hides_what_lies_before_it():
    query, key, value = torch.randn(3, 1, 6, 16, generator=torch.Generator().manual_seed(3))
    cache = torch.zeros(2, 1, 4, 8, 4)
    for t in range(6):
        attend = CachedAttention(config(sliding_window=3), cache[0], cache[1], torch.tensor([t]))
        step = attend(query[:, t : t + 1], key[:, t : t + 1], value[:, t : t + 1])
        seen = slice(max(0, t - 2), t + 1)
        single = FullAttention(config(), None)(query[:, t : t + 1], key[:, seen], value[:, seen])
        torch.testing.assert_close(step, single)


def test_linear_scaling_slows_all_turns_and_llama3_only_the_slow_ones():
    plain = frequencies(8, 10000.0).float()
    linear = rotary_frequencies(config(head_dim=8, positions="rotary", rotary_scaling="linear", rotary_factor=4.0))
    torch.testing.assert_close(linear, plain / 4)
    shape = config(head_dim=8, positions="rotary", rotary_scaling="llama3", rotary_factor=8.0, rotary_original_len=1000)
    scaled = rotary_frequencies(shape)
    wavelengths = 2 * math.pi / plain
    for before, after, wavelength in zip(plain.tolist(), scaled.tolist(), wavelengths.tolist(), strict=True):
        if wavelength < 1000 / 4.0:
            assert after == pytest.approx(before)
        elif wavelength > 1000 / 1.0:
            assert after == pytest.approx(before / 8)
        else:
            smooth = (1000 / wavelength - 1.0) / (4.0 - 1.0)
            assert after == pytest.approx((1 - smooth) * before / 8 + smooth * before)
