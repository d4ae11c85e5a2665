"""The oracle itself is checked against a model whose every next token is known by construction."""

import numpy as np
import pytest
import torch

from model.architecture_config import model_config
from model.architectures import build
from model.reference.greedy import ModelPredictor, cross_attention, greedy, next_logits, score
from tests.tiny import usable

TINY = {"vocab_size": 12, "d_model": 16, "num_heads": 2, "d_ff": 32, "max_source_len": 6, "max_target_len": 8}


def tiny(architecture, **changes):
    torch.manual_seed(0)
    return build(model_config({**usable(architecture, TINY), **changes})).eval()


def successor_model(architecture):
    """After token v comes v + 1, whatever went before: blocks that add nothing, one-hot vectors, shifted outputs."""
    model = tiny(
        architecture, vocab_size=12, d_model=12, tie_embeddings=False, norm_position="pre", positions="learned"
    )
    with torch.no_grad():
        for name, parameter in model.decoder.blocks.named_parameters():
            if name.endswith(("output.weight", "outer.weight")):
                parameter.zero_()
        model.decoder.embedding.positions.zero_()
        model.decoder.embedding.tokens.weight.copy_(torch.eye(12))
        model.decoder.unembedding.weight.copy_(torch.eye(12).roll(1, dims=0))
    return model


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_greedy_counts_upwards_in_a_model_built_to_count(architecture):
    source = (5, 2) if architecture == "encoder_decoder" else ()
    assert greedy(successor_model(architecture), [3], source=source, max_tokens=5) == [4, 5, 6, 7, 8]


def test_greedy_stops_after_the_end_of_the_sentence_and_keeps_it():
    assert greedy(successor_model("decoder"), [1], max_tokens=8) == [2]
    assert greedy(successor_model("decoder"), [11], max_tokens=6) == [0, 1, 2]


def test_an_end_of_sentence_inside_the_prompt_does_not_stop_the_decoding():
    assert greedy(successor_model("decoder"), [2], max_tokens=3) == [3, 4, 5]


def test_of_equal_logits_the_lowest_id_wins():
    model = tiny("decoder")
    with torch.no_grad():
        model.decoder.unembedding.weight.fill_(0.5)
    assert greedy(model, [5], max_tokens=3) == [0, 0, 0]


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_greedy_is_the_argmax_of_the_model_at_every_position(architecture):
    model = tiny(architecture, eos_id=9)
    source = [4, 5, 9] if model.config.has_encoder else []
    new = greedy(model, [1], source=source, max_tokens=8)
    inputs = torch.tensor([[1, *new[:-1]]])
    arguments = (torch.tensor([source]), torch.tensor([len(source)]), inputs) if source else (inputs,)
    assert new == model.decoder.unembedding(model(*arguments))[0].argmax(-1).tolist()


def test_next_logits_depend_on_the_source():
    model = tiny("encoder_decoder")
    assert not torch.equal(next_logits(model, [1], source=[4, 2]), next_logits(model, [1], source=[5, 2]))


def test_the_longest_sequence_the_model_can_hold_is_decoded():
    assert len(greedy(successor_model("decoder"), [3], max_tokens=8)) == 8


@pytest.mark.parametrize(
    ("architecture", "prompt", "source", "max_tokens", "message"),
    [
        ("decoder", [1], [], 0, "max_tokens: must be at least 1, got 0"),
        ("decoder", [1], [], 9, "max_tokens: 1 prompt tokens and 9 new ones need 9 positions, the model has 8"),
        ("decoder", [], [], 1, "prompt: must hold at least one token"),
        ("decoder", [1], [4], 1, "source: a decoder-only model takes none, got 1 tokens"),
        ("encoder_decoder", [1], [], 1, "source: must hold 1..6 tokens, got 0"),
        ("encoder_decoder", [1], [4] * 7, 1, "source: must hold 1..6 tokens, got 7"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(architecture, prompt, source, max_tokens, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        greedy(tiny(architecture), prompt, source=source, max_tokens=max_tokens)


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"call model\.eval\(\)"):
        greedy(tiny("decoder").train(), [1], max_tokens=1)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_score_is_the_log_probability_of_each_token_after_those_before_it(architecture):
    model = tiny(architecture)
    source = [4, 5, 2] if model.config.has_encoder else []
    target = [6, 3, 2, 7]
    expected = [
        float(next_logits(model, [1, 8, *target[:i]], source=source).log_softmax(-1)[token])
        for i, token in enumerate(target)
    ]
    assert score(model, [1, 8], target, source=source) == pytest.approx(expected, abs=1e-6)


def test_a_target_that_does_not_fit_the_model_is_refused():
    with pytest.raises(ValueError, match="need 9 positions"):
        score(tiny("decoder"), [1], [3] * 9)
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        score(tiny("decoder"), [1], [])


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_predictor_computes_for_each_hypothesis_what_the_model_computes_for_it(architecture, rows):
    model = tiny(architecture)
    source = [4, 5, 2] if model.config.has_encoder else []
    predictor = ModelPredictor(model, [1], source=source, max_tokens=8)
    for length in (0, 1, 3):
        hypotheses = [[3 + row + place for place in range(length)] for row in range(rows)]
        logprobs_RV = predictor.logprobs(hypotheses)
        assert logprobs_RV.shape == (rows, 12)
        assert logprobs_RV.dtype == np.float32
        for tokens, logprobs_V in zip(hypotheses, logprobs_RV, strict=True):
            alone_V = next_logits(model, [1, *tokens], source=source).log_softmax(-1)
            assert logprobs_V == pytest.approx(alone_V.numpy(), abs=1e-6)


def test_cross_attention_is_a_distribution_over_the_source_for_every_layer_head_and_input():
    model = tiny("encoder_decoder", num_decoder_layers=3)
    weights_LHTS = cross_attention(model, [1, 5, 6, 7], source=[4, 5, 2])
    assert weights_LHTS.shape == (3, 2, 4, 3)
    assert torch.allclose(weights_LHTS.sum(-1), torch.ones(3, 2, 4))


def test_cross_attention_finds_the_source_position_whose_key_fits_the_query():
    """A query that ignores its input and a key that is large at one source token only."""
    model = tiny("encoder_decoder", num_decoder_layers=1, num_encoder_layers=1, norm_position="post")
    with torch.no_grad():
        attention = model.decoder.blocks[0].cross_attention
        attention.query.weight.zero_()
        attention.query.bias.fill_(1.0)
        states_SM = model.encoder(torch.tensor([[4, 9, 2]]), torch.tensor([3]))[0]
        selector_M = torch.linalg.pinv(states_SM)[:, 1]  # 1 of the second state, 0 of the others
        attention.key_value.weight[:16].copy_(100 * selector_M.expand(16, 16))
        attention.key_value.bias.zero_()
    weights_LHTS = cross_attention(model, [1, 5], source=[4, 9, 2])
    assert (weights_LHTS[..., 1] > 0.99).all()


def test_coverage_sums_the_attention_of_the_steps_that_produced_the_tokens():
    model = tiny("encoder_decoder")
    predictor = ModelPredictor(model, [1, 7], source=[4, 5, 2], max_tokens=4)
    mean_TS = cross_attention(model, [1, 7, 6, 3], source=[4, 5, 2]).mean((0, 1))
    assert predictor.coverage([6, 3, 2]) == pytest.approx(mean_TS[1:].sum(0).numpy(), abs=1e-6)


def test_coverage_of_a_model_without_a_source_is_refused():
    with pytest.raises(ValueError, match="a decoder-only model has no source"):
        ModelPredictor(tiny("decoder"), [1], max_tokens=3).coverage([4])
