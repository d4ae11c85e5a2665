"""An ensemble has the mean of its members' distributions, whatever its shape, and decodes as they would together."""

import math
from pathlib import Path

import pytest
import torch

from model.architectures import build
from model.checkpoints.checkpoint import load_weights, weights_of
from model.config import ConfigError
from model.ensemble import Ensemble, ensemble_config, ensemble_weights, shares
from model.reference.greedy import greedy
from tests.tiny import tiny_config, tiny_model

SOURCE, LENGTHS = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]]), torch.tensor([4, 3])
TARGET = torch.tensor([[1, 5, 6], [1, 7, 8]])


def ensemble_of(members):
    config = ensemble_config([member.config for member in members])
    model = build(config).eval()
    load_weights(model, ensemble_weights([weights_of(member) for member in members], config), Path("members"))
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": False, "share_embeddings": False, "output_bias": True, "norm_position": "post"},
        {"positions": "shaw", "norm": "rms"},
        {"source_vocab_size": 40, "share_embeddings": False},
        {"positions": "learned", "encoder_num_heads": 2, "encoder_d_ff": 48, "num_kv_heads": 2},
    ],
)
def test_the_distribution_is_the_mean_of_the_members(changes):
    members = [tiny_model(tiny_config(**changes), seed=seed) for seed in (1, 2, 3)]
    model = ensemble_of(members)
    assert isinstance(model, Ensemble)
    with torch.no_grad():
        found = model.decoder.unembedding(model(SOURCE, LENGTHS, TARGET)).softmax(-1)
        each = [member.decoder.unembedding(member(SOURCE, LENGTHS, TARGET)).softmax(-1) for member in members]
    torch.testing.assert_close(found, torch.stack(each).mean(0), rtol=1e-5, atol=1e-6)
    assert (each[0] - each[1]).abs().max() > 0.02  # else any of them would pass


def test_cached_steps_are_those_of_the_whole_target():
    model = ensemble_of([tiny_model(tiny_config(), seed=seed) for seed in (1, 2)])
    caches = model.decoder.empty_caches(2, 3)
    assert len(caches) == 4
    with torch.no_grad():
        whole = model.decoder.unembedding(model(SOURCE, LENGTHS, TARGET))
        _, cross = model.encode(SOURCE, LENGTHS)
        for step in range(3):
            starts = torch.full((2,), step)
            logits = model.decode(TARGET[:, step : step + 1], starts, caches, cross, LENGTHS)
            torch.testing.assert_close(logits[:, 0], whole[:, step], rtol=1e-4, atol=1e-4)


def test_equal_members_answer_as_one():
    member = tiny_model(tiny_config(), seed=6)
    with torch.no_grad():
        both = ensemble_of([member, member])
        found = both.decoder.unembedding(both(SOURCE, LENGTHS, TARGET))
        expected = member.decoder.unembedding(member(SOURCE, LENGTHS, TARGET))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # logits, not only their softmax
    answers = [
        greedy(model, [1], source=[5, 6, 7, 2], max_tokens=20) for model in (member, ensemble_of([member, member]))
    ]
    assert answers[0] == answers[1]


def test_vanishing_probabilities_stay_finite():
    member = tiny_model(tiny_config(), seed=1)
    with torch.no_grad():
        member.decoder.unembedding.weight.mul_(1000)
        model = ensemble_of([member, member])
        logs = model.decoder.unembedding(model(SOURCE, LENGTHS, TARGET))
    assert torch.isfinite(logs).all()
    assert logs.log_softmax(-1).min() >= math.log(1e-37) - 1e-3


def test_members_must_have_one_shape():
    with pytest.raises(ConfigError, match=r"d_ff: must be the same in all members .* member 2 has 32, member 1 64"):
        ensemble_config([tiny_config(), tiny_config(d_ff=32)])
    with pytest.raises(ConfigError, match="at least two members, got 1"):
        ensemble_config([tiny_config()])
    assert ensemble_config([tiny_config(dropout=0.1), tiny_config(dropout=0.3)]).ensemble_size == 2


def test_a_configuration_of_an_ensemble_is_checked():
    config = ensemble_config([tiny_config()] * 2)
    assert (config.num_encoder_layers, config.num_decoder_layers, config.source_dim) == (4, 4, 64)
    assert config.member == tiny_config()
    with pytest.raises(ConfigError, match="num_decoder_layers: must be a multiple of ensemble_size 2, got 3"):
        config.replace(num_decoder_layers=3)
    with pytest.raises(ConfigError, match="ensemble_size: must be 1 for training, got 2"):
        config.check_trainable()
    with pytest.raises(ConfigError, match="ensembles of experts"):
        tiny_config(num_experts=2, ensemble_size=2)


def test_shares_are_equal_parts_in_order():
    assert list(shares(range(6), 3)) == [[0, 1], [2, 3], [4, 5]]
