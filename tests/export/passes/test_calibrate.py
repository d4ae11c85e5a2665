import numpy as np
import pytest
import torch

from export.passes.calibrate import HALF_LEVELS, LEVELS, Histogram, calibrate, input_moments
from tests.tiny import tiny_config, tiny_model

PAIRS = [((5, 6, 7, 2), (1, 8, 9)), ((6, 2), (1, 4, 5, 6, 7)), ((9, 8, 7, 6, 5, 2), (1, 5))]


def histogram(values, bins=2048):
    low, high = min(0.0, values.min()), max(0.0, values.max())
    return Histogram(low, high, np.histogram(values, bins, (low, high))[0])


def rounding_error(values, share, levels):
    """Mean squared error of rounding to so many steps within a share of the range, by doing it."""
    low, high = share * min(0.0, values.min()), share * max(0.0, values.max())
    step = (high - low) / levels
    return np.square(np.clip(np.rint(values / step) * step, low, high) - values).mean()


@pytest.mark.parametrize("seed", range(4))
def test_the_chosen_clip_rounds_as_well_as_the_best_one_found_by_trying(seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_t(3, 40_000)  # heavy tails: clipping pays
    share = histogram(values).clip(LEVELS)
    tried = {trial: rounding_error(values, trial, LEVELS) for trial in np.linspace(0.25, 1, 61)}
    assert share < 1
    assert rounding_error(values, share, LEVELS) <= 1.05 * min(tried.values())


def test_values_without_outliers_are_not_clipped():
    assert histogram(np.random.default_rng(1).uniform(-1, 2, 40_000)).clip(LEVELS) > 0.97


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_every_product_and_every_cache_has_its_range(architecture):
    config = tiny_config(architecture)
    model = tiny_model(config)
    ranges = calibrate(model, [(source if config.has_encoder else (), target) for source, target in PAIRS])
    weights = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    expected = {f"{name}.weight" for name in weights}
    if config.tie_embeddings:  # the head is known by the first name of the tensor it shares
        tied = "encoder.embedding.tokens.weight" if config.has_encoder else "decoder.embedding.tokens.weight"
        expected = (expected - {"decoder.unembedding.weight"}) | {tied}
    assert set(ranges.inputs) == expected
    kinds = ("self", "cross") if config.has_encoder else ("self",)
    assert set(ranges.caches) == {f"{kind}.{layer}" for kind in kinds for layer in range(config.num_decoder_layers)}


def test_ranges_are_what_went_into_the_products():
    model = tiny_model(tiny_config())
    inner, seen = model.decoder.blocks[1].feed_forward.inner, []
    handle = inner.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].detach()))
    with torch.no_grad():
        for source, target in PAIRS:
            model(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([target]))
    handle.remove()
    values = torch.cat([part.flatten() for part in seen]).numpy()
    found = calibrate(model, PAIRS).inputs["decoder.blocks.1.feed_forward.inner.weight"]
    assert (found.low, found.high) == (values.min(), values.max())
    assert found.counts.sum() == values.size


def test_rectified_inputs_have_zero_point_zero_and_all_steps_for_what_is_positive():
    ranges = calibrate(tiny_model(tiny_config(activation="relu")), PAIRS)
    name = "decoder.blocks.0.feed_forward.outer.weight"
    step, zero = ranges.input_grid(name)
    assert zero == 0
    assert step == pytest.approx(ranges.inputs[name].clip(LEVELS) * ranges.inputs[name].high / LEVELS)
    assert 100 < ranges.input_grid("decoder.blocks.0.feed_forward.inner.weight")[1] < 156


def test_turned_keys_fit_whatever_the_angle():
    model = tiny_model(tiny_config("decoder", positions="rotary"))
    config, projection = model.config, model.decoder.blocks[0].self_attention.query_key_value
    keys = []
    width = config.attention_kv_heads * config.attention_head_dim
    handle = projection.register_forward_hook(lambda m, i, out: keys.append(out[..., -2 * width : -width].detach()))
    with torch.no_grad():
        for _, target in PAIRS:
            model(torch.tensor([target]))
    handle.remove()
    pairs = torch.cat([k[0].unflatten(-1, (config.attention_kv_heads, 2, -1)) for k in keys])
    seen, _ = calibrate(model, [((), target) for _, target in PAIRS]).caches["self.0"]
    assert seen.high == pytest.approx(pairs.square().sum(-2).sqrt().max().item())


def test_steps_of_caches_reach_what_is_kept_of_the_range():
    ranges = calibrate(tiny_model(tiny_config()), PAIRS)
    for name, (keys, values) in ranges.caches.items():
        for step, seen in zip(ranges.cache_steps(name), (keys, values), strict=True):
            assert step == pytest.approx(seen.clip(HALF_LEVELS) * seen.high / HALF_LEVELS)


def test_the_model_is_left_as_it_was():
    model = tiny_model(tiny_config())
    calibrate(model, PAIRS)
    assert not any(module._forward_hooks for module in model.modules())


def test_calibrating_on_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one sample"):
        calibrate(tiny_model(tiny_config()), [])


def test_moments_are_those_of_what_products_read():
    """Of the last product's inputs: the states after the norm. Few rows are none."""
    model = tiny_model(tiny_config("decoder"))
    texts = [((), [1 + (3 * row + column) % 20 for column in range(16)]) for row in range(20)]
    moments = input_moments(model, texts)
    with torch.no_grad():
        states_NM = torch.cat([model(torch.tensor([text]))[0] for _, text in texts])
    (found_MM,) = moments["decoder.embedding.tokens.weight"]
    np.testing.assert_allclose(found_MM, states_NM.T @ states_NM, rtol=1e-4, atol=1e-2)
    assert input_moments(model, texts[:7]) == {}, "112 rows of 32 inputs"
