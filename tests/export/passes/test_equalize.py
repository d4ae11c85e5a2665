"""Equalized models compute what the original computes, and lose less when their activations are rounded."""

import numpy as np
import pytest
import torch
from torch import nn

from export.passes.equalize import can_equalize, equalized, find_exponents
from export.verification.input_rounding import round_rows
from model.encoder import Encoder
from model.transformer import EncoderDecoder
from tests.tiny import tiny_config, tiny_encoder, tiny_model

LLAMA = {"norm": "rms", "positions": "rotary", "gated": True, "activation": "silu", "bias": False}
MODELS = {
    "llama": tiny_config("decoder", **LLAMA, num_kv_heads=2),
    "llama with an output of its own": tiny_config("decoder", **LLAMA, tie_embeddings=False, output_bias=True),
    "biases, parallel": tiny_config("decoder", norm="rms", positions="alibi", parallel_residual=True),
    "experts": tiny_config("decoder", **LLAMA, num_experts=4, experts_per_token=2),
    "qwen3": tiny_config("decoder", **LLAMA, qk_norm=True, head_dim=16, num_kv_heads=1),
    "gpt2": tiny_config("decoder", norm="layer", positions="learned", activation="gelu"),
    "post-norm": tiny_config("decoder", norm="rms", norm_position="post", positions="none"),
    "translation": tiny_config("encoder_decoder"),
    "ssru": tiny_config("encoder_decoder", decoder_mixing="ssru", norm_position="post"),
    "t5": tiny_config("encoder_decoder", **{**LLAMA, "positions": "bucketed"}, num_kv_heads=2),
}
TOKENS = [(5, 6, 7, 2), (1, 9, 8, 5, 12, 6, 10)]
SAMPLES = [((5, 6, 2), (1, 9, 8)), ((7, 7, 10, 2), (1, 5, 12, 11, 6))]


def outputs(model, source, target):
    with torch.no_grad():
        if isinstance(model, Encoder):
            return model(torch.tensor([source]), torch.tensor([len(source)]))
        tokens = torch.tensor([target])
        if isinstance(model, EncoderDecoder):
            states = model(torch.tensor([source]), torch.tensor([len(source)]), tokens)
        else:
            states = model(tokens)
        return model.decoder.unembedding(states)


def samples_of(model):
    """Samples of a model's kind."""
    has_source, has_target = model.config.has_encoder, model.config.has_decoder
    return [(source if has_source else (), target if has_target else ()) for source, target in SAMPLES]


@pytest.mark.parametrize("name", MODELS)
def test_an_equalized_model_computes_the_same(name):
    model = tiny_model(MODELS[name])
    assert can_equalize(model)
    made = equalized(model, find_exponents(model, samples_of(model)))
    pairs = zip(model.state_dict().values(), made.state_dict().values(), strict=True)
    assert any(not torch.equal(*pair) for pair in pairs)
    expected = outputs(model, *TOKENS)
    torch.testing.assert_close(outputs(made, *TOKENS), expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


def test_a_channel_that_the_text_never_opens_keeps_its_scale():
    """Text that opens it would find it thousands of times as large as the others, whose integers become 0."""
    model = tiny_model(MODELS["translation"])
    layer = model.encoder.blocks[0].feed_forward
    with torch.no_grad():
        layer.inner.bias[3] = -1e4
    found = find_exponents(model, samples_of(model))["encoder.blocks.0.feed_forward"]
    assert found[3] == 0
    assert np.count_nonzero(found) > len(found) // 2


@pytest.mark.parametrize("kind", ["masked", "classify"])
def test_an_equalized_encoder_computes_the_same(kind):
    model = tiny_encoder(kind)
    expected = outputs(model, *TOKENS)
    made = outputs(equalized(model, find_exponents(model, samples_of(model))), *TOKENS)
    torch.testing.assert_close(made, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


def test_the_model_that_is_given_stays_as_it_is():
    model = tiny_model(MODELS["llama"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = equalized(model, {})
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.config.tie_embeddings
    assert not made.config.tie_embeddings


def rounded(model):
    """The model's logits with the inputs of all products rounded to 8 bits by row."""
    handles = [
        module.register_forward_pre_hook(lambda _, given: (round_rows(given[0]),))
        for module in model.modules()
        if isinstance(module, nn.Linear)
    ]
    found = outputs(model, *TOKENS)
    for handle in handles:
        handle.remove()
    return found


def with_outliers(model):
    """The same function of its input, but for a few channels that are a hundred times as large: in the states, by the
    gains of norms and the weights after them, and in the feed-forward, by its two branches."""
    with torch.no_grad():
        for block in model.decoder.blocks:
            for residual, readers in (
                (block.self_residual, [block.self_attention.query_key_value]),
                (block.feed_forward_residual, [block.feed_forward.inner, block.feed_forward.gate]),
            ):
                residual.norm.weight[3] *= 100
                for reader in readers:
                    reader.weight[:, 3] /= 100
            block.feed_forward.gate.weight[5] *= 100
            block.feed_forward.outer.weight[:, 5] /= 100
    return model


def test_rounding_costs_a_model_with_large_channels_less():
    plain = tiny_model(MODELS["llama"])
    model = with_outliers(tiny_model(MODELS["llama"]))
    exact = outputs(model, *TOKENS)
    torch.testing.assert_close(outputs(plain, *TOKENS), exact, rtol=1e-4, atol=1e-4)
    made = equalized(model, find_exponents(model, samples_of(model)))
    before, after = (float((rounded(one) - exact).square().mean()) ** 0.5 for one in (model, made))
    assert after < before / 5
    assert after < 2 * float((rounded(plain) - exact).square().mean()) ** 0.5


def test_exponents_follow_the_sizes_of_channels():
    model = with_outliers(tiny_model(MODELS["llama"]))
    exponents = find_exponents(model, samples_of(model))
    assert set(exponents) == {f"decoder.blocks.{layer}.feed_forward" for layer in range(2)}
    for values in exponents.values():
        assert values.dtype == np.int8
        assert values.argmax() == 5


def test_models_with_states_of_several_positions_are_left_alone():
    compressed = tiny_config("decoder", compression_stride=2, sliding_window=8, positions="none")
    assert not can_equalize(tiny_model(compressed))
    assert not can_equalize(tiny_model(tiny_config("recurrent")))
