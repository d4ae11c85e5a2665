"""Roundings by hand, and the errors of wrong integers, products and biases."""

import numpy as np
import pytest
import torch
from torch import nn

from export.verification.emulated_quantization import (
    RecordedProduct,
    RoundedWeight,
    Roundings,
    emulated_model,
    product_error,
    weight_error,
)
from export.verification.input_rounding import round_rows
from tests.tiny import tiny_config, tiny_model


def rounded(weight, **changes):
    """A weight in 8 bits with one scale per output."""
    weight_NK = weight.detach().numpy()
    scales_NK = np.broadcast_to(np.abs(weight_NK).max(1, keepdims=True) / 64, weight_NK.shape)
    fields = {"most": 64, "round_input": round_rows, **changes}
    return RoundedWeight(np.rint(weight_NK / scales_NK), scales_NK, **fields)


@pytest.fixture
def model():
    return tiny_model(tiny_config("decoder", num_decoder_layers=1, tie_embeddings=False))


def roundings_of(model):
    modules = dict(model.named_modules())
    linears = {f"{name}.weight": rounded(m.weight) for name, m in modules.items() if isinstance(m, nn.Linear)}
    tables = {f"{name}.weight": rounded(m.weight) for name, m in modules.items() if isinstance(m, nn.Embedding)}
    return Roundings(products=linears, tables=tables)


OUTPUT = "decoder.blocks.0.self_attention.output"


def test_int8_states_are_rounded_and_clipped():
    roundings = Roundings(steps={"self_key.0": 0.5})
    values = np.array([0.2, 0.3, -100.0, 100.0], np.float32)
    kept = roundings.kept("self_key.0", values)
    assert kept.dtype == np.int8
    assert kept.tolist() == [0, 1, -128, 127]
    assert roundings.values("self_key.0", kept).tolist() == [0.0, 0.5, -64.0, 63.5]
    assert roundings.kept("self_value.0", values) is values
    assert roundings.values("self_value.0", values) is values


def test_rounded_weights_are_within_half_a_step(model):
    roundings = roundings_of(model)
    assert 0.4 < weight_error(model, roundings).error <= 0.5001
    roundings.products[f"{OUTPUT}.weight"].integers_NK[3, 5] += 1
    error, note, _ = weight_error(model, roundings)
    assert 0.5001 < error <= 1.5
    assert note == f"worst in {OUTPUT}.weight"


def test_a_weight_that_is_too_large_for_exact_products_is_infinitely_wrong(model):
    roundings = roundings_of(model)
    roundings.products[f"{OUTPUT}.weight"] = rounded(model.get_submodule(OUTPUT).weight, most=63)
    assert weight_error(model, roundings)[:2] == (float("inf"), f"worst in {OUTPUT}.weight")


def test_every_weight_must_be_rounded_unless_only_a_part_is_expected(model):
    roundings = roundings_of(model)
    del roundings.products[f"{OUTPUT}.weight"]
    with pytest.raises(KeyError, match=f"{OUTPUT}.weight is not rounded"):
        weight_error(model, roundings)
    assert weight_error(model, roundings, is_whole=False).error <= 0.5001
    assert weight_error(model, Roundings(), is_whole=False) == (0.0, "no weights", 0.0)


@torch.no_grad()
def test_a_product_of_the_copy_rounds_its_input_and_its_weight(model):
    roundings, x = roundings_of(model), torch.linspace(-1, 2, 64).reshape(2, 32)
    weight = roundings.products[f"{OUTPUT}.weight"]
    layer, copy = model.get_submodule(OUTPUT), emulated_model(model, roundings).get_submodule(OUTPUT)
    expected = round_rows(x).numpy() @ (weight.integers_NK * weight.scales_NK).T + layer.bias.numpy()
    np.testing.assert_allclose(copy(x), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(layer(x).numpy() - expected).max() > 1e-3, "the model itself is not rounded"


@torch.no_grad()
def test_the_product_with_a_wrong_output_is_named(model):
    roundings = roundings_of(model)
    recorded = []
    for name in (OUTPUT, "decoder.unembedding"):
        weight, bias = roundings.products[f"{name}.weight"], model.get_submodule(name).bias
        x = np.random.default_rng(1).normal(size=(3, weight.integers_NK.shape[1])).astype(np.float32)
        output = round_rows(torch.from_numpy(x)).numpy() @ weight.values_NK.T
        recorded.append(RecordedProduct(f"{name}.weight", x, output if bias is None else output + bias.numpy()))
    assert product_error(model, roundings, recorded).error < 1e-5
    without_bias = recorded[0].output_RN - model.get_submodule(OUTPUT).bias.numpy()
    recorded[0] = RecordedProduct(recorded[0].weight, recorded[0].input_RK, without_bias)
    error, note, _ = product_error(model, roundings, recorded)
    assert error > 1e-2
    assert note == f"worst in {OUTPUT}"
    recorded[0] = RecordedProduct(recorded[0].weight, recorded[0].input_RK, without_bias, has_bias=False)
    assert product_error(model, roundings, recorded).error < 1e-5
    no_rows = RecordedProduct(recorded[0].weight, recorded[0].input_RK[:0], recorded[0].output_RN[:0])
    assert product_error(model, roundings, [no_rows]) == (0.0, "no products", 0.0)
