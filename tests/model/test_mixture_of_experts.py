"""Mixture of experts against its definition, token by token."""

import pytest
import torch

from model.architecture_config import DecoderConfig, EncoderDecoderConfig
from model.architectures import build
from model.layers import FeedForward
from model.mixture_of_experts import ExpertFeedForward, balance_loss
from model.training.data.examples import Batch
from model.training.objective.loss import batch_loss


def experts(chosen, **changes):
    torch.manual_seed(0)
    config = EncoderDecoderConfig(d_model=8, num_heads=2, d_ff=12, num_experts=4, experts_per_token=chosen, **changes)
    return ExpertFeedForward(config, [FeedForward(config) for _ in range(config.num_experts)])


@pytest.mark.parametrize("chosen", [1, 2])
def test_each_token_is_read_by_the_experts_it_is_routed_to(chosen):
    layer, x = experts(chosen), torch.randn(2, 5, 8)
    out = layer(x)
    for row, token in [(row, token) for row in range(2) for token in range(5)]:
        best = layer.router(x[row, token]).softmax(-1).topk(chosen)
        weights = best.values if chosen == 1 else best.values / best.values.sum()
        expected = sum(
            weight * layer.experts[i](x[row, token]) for weight, i in zip(weights, best.indices, strict=True)
        )
        torch.testing.assert_close(out[row, token], expected)


def test_a_sum_of_two_experts_in_half_precision_is_rounded_once():
    layer, x = experts(2).half(), torch.randn(1, 7, 8).half()
    weights_NK, best_NK = layer.router(x[0]).float().softmax(-1).topk(2)
    weights_NK = (weights_NK / weights_NK.sum(-1, keepdim=True)).half()
    rows = [
        sum(
            (weight * layer.experts[i](x[:, n])[0]).float() for weight, i in zip(weights_NK[n], best_NK[n], strict=True)
        )
        for n in range(7)
    ]
    out = layer(x)
    assert out.dtype == torch.float16
    assert torch.equal(out[0], torch.stack(rows).half())


def test_autocast_does_not_round_the_router_s_logits():
    layer, x = experts(1).train(), torch.randn(1, 50, 8)
    expected = balance_loss(layer.router(x[0])).item()
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
    assert layer.balance is not None
    assert layer.balance.item() == pytest.approx(expected, rel=1e-6)
    assert layer.balance.grad_fn is not None


@pytest.mark.parametrize("chosen", [1, 2])
def test_the_answer_trains_the_router(chosen):
    layer = experts(chosen).train()
    layer(torch.randn(1, 6, 8)).sum().backward()
    gradient = layer.router.weight.grad
    assert gradient is not None
    assert gradient.any()


def test_balance_is_one_when_all_experts_are_alike_and_most_when_one_takes_all():
    assert balance_loss(torch.eye(4) * 20).item() == pytest.approx(1.0)
    assert balance_loss(torch.tensor([[20.0, 0, 0, 0]] * 6)).item() == pytest.approx(4.0, rel=1e-3)


def test_the_loss_of_a_batch_counts_the_balance_of_every_layer():
    torch.manual_seed(0)
    config = DecoderConfig(vocab_size=11, d_model=8, num_heads=2, d_ff=12, num_decoder_layers=2, num_experts=3)
    model = build(config).train()
    tokens = torch.randint(4, 11, (2, 6))
    batch = Batch(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), tokens, tokens, 12)
    plain, weighted = batch_loss(model, batch), batch_loss(model, batch, balance_weight=0.5)
    balances = [part.balance for part in model.modules() if isinstance(part, ExpertFeedForward)]
    assert len(balances) == 2
    expected = plain.smoothed + sum(0.5 * 12 * balance for balance in balances if balance is not None)
    torch.testing.assert_close(weighted.smoothed, expected)
    model.eval()
    torch.testing.assert_close(batch_loss(model, batch, balance_weight=0.5).smoothed, plain.smoothed)
