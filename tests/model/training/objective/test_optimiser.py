import pytest
import torch
from torch import nn

from model.config import TrainConfig
from model.training.objective.optimiser import learning_rate, make_optimiser, set_learning_rate
from tests.tiny import tiny_config, tiny_model


def test_the_learning_rate_warms_up_and_decays_to_nothing():
    config = TrainConfig(steps=100, warmup_steps=10, learning_rate=1.0)
    rates = [learning_rate(config, step, step / 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(0.91)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == 0
    assert learning_rate(config.replace(warmup_steps=0), 0, 0.0) == 1.0


@pytest.mark.parametrize("steps", [1, 8, 100, 1000])
def test_a_run_that_is_too_short_for_its_warm_up_reaches_the_peak_after_a_quarter(steps):
    config = TrainConfig(steps=steps, warmup_steps=400, learning_rate=1.0)
    rates = [learning_rate(config, step, step / steps) for step in range(steps)]
    assert rates[0] == pytest.approx(1 / 400)
    for step, rate in enumerate(rates):
        if step >= steps / 4:
            assert rate == pytest.approx(1 - step / steps), step
    of_minutes = TrainConfig(minutes=1.0, warmup_steps=400, learning_rate=1.0)
    assert learning_rate(of_minutes, 20, 0.25) == 0.75
    assert learning_rate(of_minutes, 20, 0.125) == pytest.approx(0.5 * 0.875)


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


def test_lower_layers_learn_more_slowly():
    model = tiny_model(tiny_config())
    optimiser = make_optimiser(model, TrainConfig(steps=1, learning_rate=0.5), layer_decay=0.8)
    set_learning_rate(optimiser, 0.1)
    rates = {id(parameter): group["lr"] for group in optimiser.param_groups for parameter in group["params"]}
    found = {name: rates[id(parameter)] for name, parameter in model.named_parameters()}
    assert found["decoder.norm.bias"] == 0.1
    assert found["encoder.blocks.1.self_attention.output.weight"] == pytest.approx(0.08)
    assert found["decoder.blocks.0.feed_forward.inner.bias"] == pytest.approx(0.064)
    assert found["encoder.embedding.tokens.weight"] == pytest.approx(0.0512)


def test_frozen_parameters_have_no_place_in_the_optimiser():
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    (group,) = make_optimiser(layer, TrainConfig(steps=1)).param_groups
    assert [id(parameter) for parameter in group["params"]] == [id(layer.weight)]
