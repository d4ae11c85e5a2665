"""Dropout against its definition: shares, scale, gradients, seeds."""

import pytest
import torch

from model.dropout import PER_DRAW, Dropout, drop


@pytest.mark.parametrize("share", [0.001, 0.1, 0.3, 0.5, 0.99])
def test_drops_the_share_of_each_element_of_a_draw_and_keeps_the_mean(share):
    torch.manual_seed(1)
    kept = drop(torch.ones(100_000, PER_DRAW), share)
    deviation = (share * (1 - share) / len(kept)) ** 0.5
    for lane in kept.T:  # the elements that one draw decides about are different bits of it
        assert abs(float((lane == 0).double().mean()) - share) < 5 * deviation
    assert kept.unique().tolist() == pytest.approx([0, 1 / (1 - share)], rel=2e-3)
    assert float(kept.double().mean()) == pytest.approx(1, abs=5 * deviation / (1 - share))


def test_a_share_next_to_one_keeps_finite_values():
    kept = drop(torch.ones(1_000_000), 1 - 1e-7)
    assert kept.isfinite().all()


def test_elements_are_independent():
    torch.manual_seed(1)
    is_kept = (drop(torch.ones(200_000, PER_DRAW), 0.5) != 0).double()
    neighbours = is_kept.flatten()
    following = torch.corrcoef(torch.stack([neighbours[:-1], neighbours[1:]]))[0, 1]
    assert torch.corrcoef(is_kept.T).fill_diagonal_(0).abs().max() < 0.01
    assert abs(float(following)) < 0.01


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3, 5), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_keeps_shape_and_dtype(shape, dtype):
    dropped = drop(torch.ones(shape, dtype=dtype), 0.3)
    assert (dropped.shape, dropped.dtype) == (shape, dtype)


def test_drops_elements_of_strided_input():
    torch.manual_seed(1)
    x = torch.arange(1.0, 25).view(4, 6).T
    dropped = drop(x, 0.5)
    kept = dropped != 0
    assert 0 < int(kept.sum()) < 24
    torch.testing.assert_close(dropped[kept], x[kept] * 2, rtol=0, atol=0)


def test_gradient_passes_where_the_element_was_kept():
    torch.manual_seed(1)
    x = torch.randn(50, 3, requires_grad=True)
    dropped = drop(x, 0.25)
    dropped.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, dropped)


def test_one_seed_gives_one_result():
    module, x = Dropout(0.3), torch.ones(100)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(module(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_no_share_and_no_training_change_nothing_and_draw_nothing():
    x, state = torch.ones(100), torch.get_rng_state()
    assert drop(x, 0.0) is x
    assert Dropout(0.3).eval()(x) is x
    assert torch.equal(torch.get_rng_state(), state)
