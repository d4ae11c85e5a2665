import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from model.adapters import AdaptedLinear, adapt, merge, merged_weights
from model.checkpoints.checkpoint import weights_of
from model.config import ConfigError
from tests.tiny import tiny_config, tiny_model

SOURCE, LENGTHS, TARGET = torch.tensor([[5, 6, 7, 2]]), torch.tensor([4]), torch.tensor([[1, 8, 9]])


def model_of(architecture="encoder_decoder") -> Any:
    return tiny_model(tiny_config(architecture))


def lively(model, seed=1):
    """Gives both matrices of each adapted layer values, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)


def test_an_adapted_model_starts_as_the_plain_one_and_has_its_parameters():
    plain = model_of()
    adapted = copy.deepcopy(plain)
    adapt(adapted, ["*attention*"], rank=3, scale=2.0)
    assert torch.equal(adapted(SOURCE, LENGTHS, TARGET), plain(SOURCE, LENGTHS, TARGET))
    before, after = weights_of(plain), weights_of(adapted)
    assert {name for name in after if ".lora_" not in name} == before.keys()
    added = after.keys() - before.keys()
    assert len(added) == 2 * (2 * 2 + 2 * 5)  # 2 blocks of 2 layers, and 2 of 2 and 3
    assert all("attention" in name for name in added)
    shapes = {tuple(after[name].shape) for name in added if name.endswith("lora_a")}
    assert shapes == {(3, 32)}


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder", "recurrent"])
def test_merged_equals_unmerged(architecture):
    adapted: Any = model_of(architecture)
    adapt(adapted, ["*"], rank=3, scale=0.5)
    plain: Any = copy.deepcopy(adapted)
    lively(adapted)
    inputs = (TARGET,) if architecture == "decoder" else (SOURCE, LENGTHS, TARGET)
    expected = adapted(*inputs)
    merge(adapted)
    assert not any(isinstance(module, AdaptedLinear) for module in adapted.modules())
    torch.testing.assert_close(adapted(*inputs), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(plain(*inputs), expected, atol=0.1), "the update changes the output"


def test_the_merged_weight_is_the_sum_of_definition():
    layer = nn.Linear(5, 4)
    model: Any = nn.Sequential(layer)
    adapt(model, ["0"], rank=2, scale=3.0)
    lively(model)
    parts = {name: tensor.numpy().astype(np.float64) for name, tensor in weights_of(model).items()}
    merge(model)
    expected = parts["0.weight"] + 3.0 * parts["0.lora_b"] @ parts["0.lora_a"]
    np.testing.assert_allclose(model[0].weight.detach().numpy(), expected, rtol=1e-6, atol=1e-6)
    assert np.array_equal(model[0].bias.detach().numpy(), parts["0.bias"].astype(np.float32))


def test_files_are_merged_as_models_are():
    model = model_of()
    base = weights_of(copy.deepcopy(model))
    adapt(model, ["*feed_forward*"], rank=2, scale=1.5)
    lively(model)
    with torch.no_grad():
        model.decoder.norm.bias.add_(1.0)
        model.decoder.blocks[0].feed_forward.inner.weight.mul_(1.5)  # a target that was trained itself
    adapter = {name: weight.clone() for name, weight in weights_of(model).items() if ".lora_" in name}
    for name in ("decoder.norm.bias", "decoder.blocks.0.feed_forward.inner.weight"):
        adapter[name] = weights_of(model)[name].clone()
    merge(model)
    merged = merged_weights(base, adapter, 1.5)
    assert merged.keys() == weights_of(model).keys()
    assert all(torch.equal(merged[name], weight) for name, weight in weights_of(model).items())


def test_a_pattern_that_matches_nothing_is_refused_with_names_that_exist():
    with pytest.raises(ConfigError, match=r"^lora_targets: '\*atention\*' matches no linear layer.*encoder\.blocks\.0"):
        adapt(model_of(), ["*attention*", "*atention*"], rank=2, scale=1.0)
    with pytest.raises(ConfigError, match="matches no linear layer but the output projection"):
        adapt(model_of(), ["decoder.unembedding"], rank=2, scale=1.0)


def test_only_the_new_matrices_get_gradients_where_the_rest_is_frozen():
    model = model_of()
    adapt(model, ["decoder.blocks.1.self_attention.output"], rank=2, scale=1.0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    model(SOURCE, LENGTHS, TARGET).square().sum().backward()
    with_gradient = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert with_gradient == {f"decoder.blocks.1.self_attention.output.lora_{part}" for part in "ab"}
