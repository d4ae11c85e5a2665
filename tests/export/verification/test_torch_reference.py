"""PyTorch's expected outputs against numpy and against other code of the model, in float32 and float64."""

import copy
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from export.verification.torch_reference import LAST, Expectations, TorchReference, in_float64
from model.reference.greedy import cross_attention, greedy
from tests.tiny import tiny_config, tiny_encoder, tiny_model

SOURCE, TARGET = (4, 5, 9, 2), (1, 6, 8)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "recurrent"])
def test_a_reference_in_float64_agrees_with_float32(architecture):
    expected = Expectations(tiny_model(tiny_config(architecture)))
    outputs = [
        expected.logits(SOURCE, TARGET),
        *expected.source(SOURCE).values(),
        *expected.caches(SOURCE, TARGET).values(),
    ]
    for output in outputs:
        assert output.other.dtype == np.float64
        assert output.own.dtype == np.float32
        assert not np.array_equal(output.own, output.other)
        np.testing.assert_allclose(output.own, output.other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "config",
    [
        tiny_config("encoder_decoder"),
        tiny_config("decoder"),
        tiny_config("decoder", logits_softcap=0.5, attention_softcap=0.5),
        tiny_config("recurrent"),
    ],
)
def test_a_model_in_float64_computes_what_a_converted_copy_does_and_shares_the_matrices(config):
    model = tiny_model(config)
    exact: Any = in_float64(model)
    converted = copy.deepcopy(model).double()
    assert exact.decoder.unembedding.weight is model.decoder.unembedding.weight
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    source = SOURCE if model.config.has_encoder else ()
    found, expected = TorchReference(exact), TorchReference(converted)
    np.testing.assert_array_equal(found.logits(source, TARGET), expected.logits(source, TARGET))
    for name, array in expected.caches(source, TARGET).items():
        np.testing.assert_array_equal(found.caches(source, TARGET)[name], array)


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


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder", "recurrent"])
@pytest.mark.parametrize("ends", [(), (10,)])
def test_a_greedy_answer_is_told_up_to_the_first_token_that_was_guessed_wrongly(architecture, ends):
    model = tiny_model(tiny_config(architecture))
    source = SOURCE if model.config.has_encoder else ()
    if ends:
        third = greedy(model, TARGET, source=source, max_tokens=3)[2]
        model.config = model.config.replace(eos_id=third)
    right = tuple(greedy(model, TARGET, source=source, max_tokens=8))
    reference = TorchReference(model)
    assert reference.greedy(source, TARGET, 8, right) == right
    for length in range(len(right)):
        assert reference.greedy(source, TARGET, 8, right[:length]) == right[: length + 1], "one that ended too early"
        wrong = (*right[:length], (right[length] + 1) % model.config.vocab_size, *right[length + 1 :])
        assert reference.greedy(source, TARGET, 8, wrong) == right[: length + 1]


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_caches_are_those_of_cached_decoding(architecture):
    model = tiny_model(tiny_config(architecture))
    source = SOURCE if model.config.has_encoder else ()
    caches, tokens, start = (
        model.decoder.empty_caches(1, len(TARGET)),
        torch.tensor([TARGET]),
        torch.zeros(1, dtype=torch.int64),
    )
    with torch.inference_mode():
        if source:
            lengths = torch.tensor([len(source)])
            model.decode(tokens, start, caches, model.encode(torch.tensor([source]), lengths)[1], lengths)
        else:
            model.decode(tokens, start, caches)
    found = TorchReference(model).caches(source, TARGET)
    assert len(found) == 2 * len(caches)
    for layer, cache in enumerate(caches):
        np.testing.assert_allclose(found[f"self_key.{layer}"], cache.key[0], atol=1e-6)
        np.testing.assert_allclose(found[f"self_value.{layer}"], cache.value[0], atol=1e-6)


def test_what_several_checks_read_is_computed_once():
    model = tiny_model(tiny_config())
    reference, passes = TorchReference(model), mock.Mock(return_value=None)
    model.decoder.norm.register_forward_hook(passes)
    reference.logits(SOURCE, TARGET), reference.logprobs(SOURCE, TARGET, LAST), reference.caches(SOURCE, TARGET)
    reference.caches(SOURCE, TARGET[:2])
    assert passes.call_count == 1, "the beginning of a longer target is not read again"
    assert reference.source(SOURCE) is reference.source(SOURCE)
    assert reference.source(SOURCE) is not reference.source(SOURCE[1:])
