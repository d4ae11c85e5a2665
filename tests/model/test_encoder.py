"""Encoders: what their heads compute, from definitions written down here."""

import math

import pytest
import torch
from torch.nn import functional as F

from model.architectures import build
from model.config import ConfigError
from model.encoder import AttentionPooling, Encoder
from model.presets import PRESETS
from tests.tiny import EMBEDDER, ENCODERS, tiny_config, tiny_encoder, tiny_model

LENGTHS = torch.tensor([9, 4, 1])
SOURCE = torch.randint(5, 20, (3, 9), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_is_built_with_its_head(kind):
    model = build(tiny_config("encoder", **ENCODERS[kind]))
    assert isinstance(model, Encoder)
    heads = {"masked": model.masked, "classify": model.label, "attention": model.attention, "tokens": model.tag}
    assert [name for name, head in heads.items() if head is not None] == [kind]


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_result_of_a_text_does_not_depend_on_its_neighbours(kind):
    model = tiny_encoder(kind)
    with torch.no_grad():
        together = model(SOURCE, LENGTHS)
        for row, length in enumerate(LENGTHS.tolist()):
            single = model(SOURCE[row : row + 1, :length], LENGTHS[row : row + 1])
            torch.testing.assert_close(together[row, :length], single[0], rtol=1e-5, atol=1e-5)
            if kind == "tokens":
                result, expected = model.tag_logits(together)[row, :length], model.tag_logits(single)[0]
                torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
            elif kind != "masked":
                expected = model.classify(single, LENGTHS[row : row + 1])
                result = model.classify(together, LENGTHS)
                torch.testing.assert_close(result.logits_BL[row], expected.logits_BL[0], rtol=1e-5, atol=1e-5)


def test_the_masked_head_ends_in_the_embeddings():
    model = tiny_encoder("masked")
    assert model.masked.unembedding.weight is model.encoder.embedding.tokens.weight
    states = torch.randn(5, 32)
    head = model.masked
    hidden = F.gelu(states @ head.dense.weight.T + head.dense.bias)
    hidden = F.layer_norm(hidden, (32,), head.norm.weight, head.norm.bias, model.config.norm_eps)
    expected = hidden @ model.encoder.embedding.tokens.weight.T + head.unembedding.bias
    torch.testing.assert_close(model.token_logits(states), expected, rtol=1e-5, atol=1e-5)


def test_layers_after_the_pooling_are_products_with_activations():
    model, vectors = tiny_model(tiny_config("encoder", **EMBEDDER)), torch.randn(3, 32)
    first, second = (layer.linear for layer in model.dense)
    expected = torch.tanh(vectors @ first.weight.T + first.bias) @ second.weight.T
    assert second.bias is None
    torch.testing.assert_close(model.project(vectors), expected)
    assert model.project(vectors).shape == (3, model.config.vector_size) == (3, 8)


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("identity", lambda x: x),
        ("relu", lambda x: x.clamp(min=0)),
        ("gelu", lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2),
        ("silu", lambda x: x / (1 + torch.exp(-x))),
        ("sigmoid", lambda x: 1 / (1 + torch.exp(-x))),
    ],
)
def test_activations_after_the_pooling_follow_their_definitions(name, definition):
    model = build(tiny_config("encoder", **{**EMBEDDER, "dense": ({"size": 5, "activation": name},)}))
    vectors, layer = torch.randn(3, 32), model.dense[0].linear
    torch.testing.assert_close(model.project(vectors), definition(layer(vectors)), rtol=1e-5, atol=1e-6)


def test_a_label_is_read_from_the_first_token():
    model = tiny_encoder("classify")
    states = torch.randn(3, 9, 32)
    pooled = torch.tanh(states[:, 0] @ model.pooler.dense.weight.T + model.pooler.dense.bias)
    torch.testing.assert_close(model.pool(states), pooled)
    result = model.classify(states, LENGTHS)
    torch.testing.assert_close(result.logits_BL, pooled @ model.label.weight.T + model.label.bias)
    assert result.token_weights_BS is None


def test_without_a_pooler_the_first_state_stands_for_the_text():
    model = build(tiny_config("encoder", head="classify", labels=("a", "b"))).eval()
    states = torch.randn(2, 4, 32)
    torch.testing.assert_close(model.pool(states), states[:, 0])


def test_attention_pooling_is_the_loop_over_tokens():
    """Scores tanh(x . w), softmax over the text's own tokens, the weighted sum, then the labels: in float64."""
    torch.manual_seed(1)
    pooling = AttentionPooling(tiny_config("encoder", head="attention", labels=("a", "b", "c")))
    states = torch.randn(3, 9, 32)
    with torch.no_grad():
        logits, weights = pooling(states, LENGTHS)
    score, label = pooling.score.weight[0].detach().double(), pooling.label
    for row, length in enumerate(LENGTHS.tolist()):
        powers = [math.exp(math.tanh(float(states[row, place].double() @ score))) for place in range(length)]
        expected = torch.tensor([power / sum(powers) for power in powers])
        torch.testing.assert_close(weights[row, :length].double(), expected.double(), rtol=1e-5, atol=1e-6)
        assert weights[row, length:].eq(0).all()
        mixed = sum(weight * states[row, place].double() for place, weight in enumerate(expected))
        torch.testing.assert_close(
            logits[row].double(),
            label.weight.detach().double() @ mixed + label.bias.detach().double(),
            rtol=1e-5,
            atol=1e-5,
        )


def test_pooling_without_layers_is_that_of_the_lectures():
    """sigmoid(W_y a + b) with a = softmax(tanh(x W_s)) x over the word vectors x alone, in float64 (no norm, no
    positions, no special tokens)."""
    config = PRESETS["scene-animals"].model.replace(vocab_size=20, labels=("animal",))
    assert config.template.num_source_special == 0
    model = tiny_model(config)
    ids = [5, 9, 9, 17]
    with torch.no_grad():
        states = model(torch.tensor([[*ids, 0, 0]]), torch.tensor([4]))
        logits, weights = model.classify(states, torch.tensor([4]))
    values = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    x = values["encoder.embedding.tokens.weight"][ids]
    alpha = torch.softmax(torch.tanh(x @ values["attention.score.weight"][0]), 0)
    expected = torch.sigmoid(values["attention.label.weight"] @ (alpha @ x) + values["attention.label.bias"])
    torch.testing.assert_close(logits[0].double().sigmoid(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights[0, :4].double(), alpha, rtol=1e-5, atol=1e-6)
    assert sum(parameter.numel() for parameter in model.parameters()) == 20 * 64 + 64 + 64 + 1


def test_what_follows_a_text_is_never_weighed():
    pooling = AttentionPooling(tiny_config("encoder", head="attention", labels=("a", "b")))
    states = torch.randn(2, 5, 32)
    logits, _ = pooling(states, torch.tensor([5, 2]))
    states[1, 2:] = float("nan")
    again, weights = pooling(states, torch.tensor([5, 2]))
    assert torch.equal(logits, again)
    assert torch.isfinite(weights).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "decoder", "head": "masked"}, "head: architecture decoder does not use it"),
        ({"architecture": "decoder", "labels": ("a",)}, "labels: architecture decoder does not use it"),
        ({"labels": ("a", "b")}, "labels: go with head classify, attention or tokens, got head none"),
        (
            {"head": "tokens", "labels": ("a",), "multi_label": True},
            "multi_label: goes with head classify or attention",
        ),
        ({"head": "classify", "labels": ("a", "a")}, "labels: must be different names"),
        ({"head": "classify", "labels": ("a", "")}, "labels: must be a list of names"),
        ({"head": "pooled"}, "head: must be one of none, masked, classify, attention"),
        ({"mask_id": 10_000}, "mask_id: must be a token below vocab_size"),
        ({"mask_id": "4"}, "mask_id: must be a token below"),
        ({"compression_stride": 3}, "compression_stride: architecture encoder does not use it"),
        ({"head": "classify", "num_encoder_layers": 0}, "num_encoder_layers: must be at least 1, got 0"),
        ({"head": "masked", "position_dim": 8}, "tie_embeddings: must be false with position_dim"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config(**{"architecture": "encoder", **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "head: must be masked, classify, attention or tokens for training"),
        ({"head": "masked"}, "mask_id: must be a token of its own"),
        ({"head": "masked", "mask_id": 2}, "mask_id: must be a token of its own"),
        ({"head": "classify", "labels": ("one",)}, "labels: must be at least 2"),
        ({"head": "tokens", "labels": ("one",)}, "labels: must be at least 2"),
        ({"head": "attention", "multi_label": True}, "labels: must be at least 1"),
    ],
)
def test_what_could_not_be_learnt_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config("encoder", **changes).check_trainable()


def test_configurations_survive_json():
    for settings in ENCODERS.values():
        config = tiny_config("encoder", **settings)
        assert type(config).from_json(config.to_json()) == config
