import pytest
import torch
from torch import nn

from model.config import TrainConfig
from model.training.optimiser import learning_rate, make_optimiser


def test_the_learning_rate_warms_up_and_decays_to_nothing():
    config = TrainConfig(steps=100, warmup_steps=10, learning_rate=1.0)
    rates = [learning_rate(config, step, step / 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(0.91)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == 0
    assert learning_rate(config.replace(warmup_steps=0), 0, 0.0) == 1.0


def test_only_matrices_decay():
    torch.manual_seed(1)
    layer = nn.Linear(3, 2)
    nn.init.ones_(layer.bias)
    before = layer.weight.detach().clone()
    optimiser = make_optimiser(layer, TrainConfig(steps=1, learning_rate=0.5, weight_decay=0.1))
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    torch.testing.assert_close(layer.weight.detach(), before * (1 - 0.5 * 0.1))
    assert torch.equal(layer.bias.detach(), torch.ones(2))
