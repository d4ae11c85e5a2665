"""PyTorch's expected outputs against numpy and against other code of the model, in float32 and float64."""

from unittest import mock

import numpy as np
import pytest
import torch

from export.verification.torch_reference import Expectations, TorchReference
from model.reference.greedy import cross_attention, greedy
from tests.tiny import tiny_config, tiny_encoder, tiny_model

SOURCE, TARGET = (4, 5, 9, 2), (1, 6, 8)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "recurrent"])
def test_a_reference_in_float64_agrees_with_float32(architecture):
    expected = Expectations(tiny_model(tiny_config(architecture)), in_float64=True)
    outputs = [
        expected.logits(SOURCE, TARGET),
        *expected.source(SOURCE).values(),
        *expected.caches(SOURCE, TARGET).values(),
    ]
    for output in outputs:
        assert output.exact.dtype == np.float64
        assert output.other.dtype == np.float32
        assert not np.array_equal(output.exact, output.other)
        np.testing.assert_allclose(output.exact, output.other, rtol=1e-3, atol=1e-3)


def test_without_float64_the_own_outputs_count_as_exact():
    logprobs = Expectations(tiny_model(tiny_config("decoder")), in_float64=False).logprobs((), TARGET)
    assert logprobs.exact is logprobs.other
    np.testing.assert_allclose(np.exp(logprobs.exact).sum(-1), 1, rtol=1e-5)


@torch.no_grad()
def projections_of(model, tokens):
    """Queries, keys and values of the only layer, (T, H, D) each, in numpy."""
    (block,) = model.decoder.blocks
    layer = block.self_attention.query_key_value
    x = model.decoder.embedding(torch.tensor([tokens]))[0].numpy()
    norm = block.self_residual.norm
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + norm.eps)
    x = x * norm.weight.numpy() + norm.bias.numpy()
    joined = x @ layer.weight.numpy().T + layer.bias.numpy()
    return [part.reshape(len(tokens), model.config.num_heads, -1) for part in np.split(joined, 3, axis=-1)]


def test_attention_and_caches_of_a_layer_are_those_of_numpy():
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    reference = TorchReference(model)
    query, key, value = projections_of(model, TARGET)
    caches = reference.caches((), TARGET)
    np.testing.assert_allclose(caches["self_key.0"], key.transpose(1, 0, 2), atol=1e-5)
    np.testing.assert_allclose(caches["self_value.0"], value.transpose(1, 0, 2), atol=1e-5)
    (weights,) = reference.every_attention((), TARGET)["decoder_attention"]
    for head in range(4):
        for i in range(len(TARGET)):
            scores = [query[i, head] @ key[j, head] / np.sqrt(8) for j in range(i + 1)]
            expected = np.exp(scores) / np.exp(scores).sum()
            np.testing.assert_allclose(weights[head, i], [*expected, *[0] * (len(TARGET) - i - 1)], atol=1e-5)


@pytest.mark.parametrize("score", ["dot", "multiplicative", "additive"])
def test_attention_of_a_recurrent_model_is_that_which_mixes_the_source(score):
    config = tiny_config("recurrent", score=score, input_feeding=False, encoder_dim=0 if score == "dot" else 48)
    model = tiny_model(config)
    with torch.inference_mode():
        encoded = model.encode(torch.tensor([SOURCE]), torch.tensor([len(SOURCE)]))
        attend = model.source_attention(encoded, torch.tensor([len(SOURCE)]))
        model.decoder(torch.tensor([TARGET]), model.start(encoded), encoded.keys_BSA, attend)
    weights = TorchReference(model).attention(SOURCE, TARGET)
    np.testing.assert_allclose(weights[0, 0], attend.weights_BTS[0].numpy(), atol=1e-6)


def test_the_outputs_of_an_encoder_are_those_of_its_head():
    outputs = TorchReference(tiny_encoder("masked")).source(SOURCE)
    assert outputs["encoder_states"].shape == (4, 32)
    assert outputs["place_logprobs"].shape == (3, 28), "three of the four positions are predicted"
    np.testing.assert_allclose(np.exp(outputs["place_logprobs"]).sum(-1), 1, rtol=1e-5)
    outputs = TorchReference(tiny_encoder("attention")).source(SOURCE)
    assert outputs["label_logits"].shape == (2,)
    assert outputs["token_weights"].sum() == pytest.approx(1)
    assert TorchReference(tiny_encoder("tokens")).source(SOURCE)["token_label_logits"].shape == (4, 5)


def test_attention_of_an_encoder_decoder_is_that_of_the_model():
    model = tiny_model(tiny_config())
    source, target = (5, 6, 7, 8, model.config.eos_id), (model.config.bos_id, 9, 10, 11)
    weights = TorchReference(model).every_attention(source, target)
    np.testing.assert_allclose(weights["cross_attention"], cross_attention(model, target, source=source), atol=1e-5)
    assert weights["encoder_attention"].shape == (2, 4, 5, 5)
    assert weights["decoder_attention"].shape == (2, 4, 4, 4)
    for part in weights.values():
        np.testing.assert_allclose(part.sum(-1), 1, rtol=1e-5)
    assert not np.triu(weights["decoder_attention"], 1).any()


def test_what_several_checks_read_is_computed_once(monkeypatch):
    asked = mock.Mock(wraps=greedy)
    monkeypatch.setattr("export.verification.torch_reference.greedy", asked)
    model = tiny_model(tiny_config())
    reference = TorchReference(model)
    answers = [reference.greedy(SOURCE, (1,), 4) for _ in range(2)]
    assert answers == [tuple(greedy(model, (1,), source=SOURCE, max_tokens=4))] * 2
    assert asked.call_count == 1
    assert reference.source(SOURCE) is reference.source(SOURCE)
    assert reference.source(SOURCE) is not reference.source(SOURCE[1:])
