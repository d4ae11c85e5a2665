"""The arithmetic of single claims, on inputs small enough to compute by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from glossa.client.types import Classification, LabelProbability, TokenWeight
from lectures.claims import ablations, coreference, overflow, pooling, reach, senses, tagging
from lectures.corpora import schedule
from lectures.graphs import fresh_model
from model.architecture_config import EncoderConfig
from model.architectures import build
from model.checkpoints.checkpoint import Checkpoint
from model.presets import PRESETS
from model.tokenizer import Tokenizer
from model.training.data.embedded import copy_examples
from model.training.data.examples import PairBatches
from tests.tiny import tiny_config, tiny_model, tiny_tokenizer

COST: Any = {"prompt_tokens": 2, "generated_tokens": 0, "queue_s": 0.0, "prefill_s": 0.0, "total_s": 0.0}


def test_formula_in_half_precision_overflows_where_the_products_do():
    rng = np.random.default_rng(1)
    query, key, value = (rng.normal(size=(5, overflow.HEAD_DIM)).astype(np.float16) for _ in range(3))
    scores = query.astype(float) @ key.T.astype(float) / overflow.HEAD_DIM**0.5
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert overflow.formula_in_half(query, key, value) == pytest.approx(weights @ value.astype(float), abs=5e-3)
    large = np.full((5, overflow.HEAD_DIM), 40.0, np.float16)  # products of 102,400
    assert not np.isfinite(overflow.formula_in_half(large, large, value)).any()
    assert overflow.relative(np.array([np.nan]), np.array([1.0])) is None


def test_scores_are_scaled_to_the_size_asked_for():
    model: Any = fresh_model(EncoderConfig(vocab_size=20, d_model=64, num_heads=1, d_ff=64, num_encoder_layers=1))
    source = torch.tensor([[5, 6, 7, 8]])
    assert overflow.scale_scores(model, source, 1e4) == pytest.approx(1e4, rel=1e-4)
    query, key, _ = overflow.layer_inputs(model, source)
    assert float((query @ key.mT).detach().abs().max()) / 8 == pytest.approx(1e4, rel=1e-4)


def test_shares_of_the_multiplications_are_those_of_the_formulas():
    found, d, f, n = reach.shares(64, 192, 100), 64, 192, 100
    counts = {"products": 2 * n * n * d, "projections": 4 * n * d * d, "feed-forward": 2 * n * d * f}
    assert found == pytest.approx({name: count / sum(counts.values()) for name, count in counts.items()})


def test_gradients_of_a_recurrence_fade_and_those_of_attention_do_not():
    recurrent, transformer = (reach.gradients(reach.shape(name, 256), draws=2) for name in reach.NAMES)
    assert len(recurrent) == len(transformer) == len(reach.DISTANCES)
    assert recurrent[-1] < 1e-3 * recurrent[0]
    assert transformer[-1] > 0.1 * transformer[0]


def test_cosines_are_split_by_sense():
    cosines = np.full((10, 10), -1.0)
    cosines[:5, :5] = cosines[5:, 5:] = 0.5
    within, between = senses.by_sense(cosines.tolist())
    assert (within, between) == ([0.5] * 20, [-1.0] * 25)


def test_a_head_that_follows_the_antecedent_is_found(monkeypatch):
    (pair, *_) = coreference.minimal_pairs()
    assert pair[0].en == "The animal did not cross the street because it was too tired."
    assert pair[1].en == "The animal did not cross the street because it was too wide."

    def weights(_, one):
        words = one.en.rstrip(".").split()
        both = np.zeros((1, 2, len(words)))
        both[0, 0, words.index(one.animal if one.antecedent == "animal" else one.place)] = 0.75
        both[0, 1, words.index(one.animal)] = 1.0
        return words, both

    monkeypatch.setattr(coreference, "weights_of", weights)
    checkpoint: Any = None
    found = coreference.heads(checkpoint, [pair])
    assert (coreference.gains(found["1.1"]), found["1.1"]["clear"]) == ((0.75, 0.75), 1.0)
    assert (coreference.gains(found["1.2"]), found["1.2"]["clear"]) == ((0.0, 0.0), 0.5)
    assert coreference.followers(found) == ["1.1", "1.2"]


def test_served_pooling_is_compared_with_the_formula():
    tokenizer = tiny_tokenizer()
    config = PRESETS["scene-animals"].model.replace(vocab_size=tokenizer.vocab_size, labels=("animal",))
    checkpoint = Checkpoint(tiny_model(config), config, tokenizer, {}, {})
    text = "a black cat"
    weights = (TokenWeight((0, 1), 0.25), TokenWeight((1, 7), 0.25), TokenWeight((7, 11), 0.5))
    answer = Classification(labels=(LabelProbability("animal", 0.5),), token_weights=weights, **COST)
    row = pooling.compared(checkpoint, text, answer)
    assert not row["is_above"]  # 0.5 is exactly twice the mean of the others
    assert (row["on_animals"], row["even_share"], row["ratio"]) == (0.5, pytest.approx(1 / 3), 2.0)
    model, ids = checkpoint.model, torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        logits, right = model.classify(model(ids, torch.tensor([3])), torch.tensor([3]))
    expected = max(abs(0.5 - logits.sigmoid().item()), float((right[0] - torch.tensor([0.25, 0.25, 0.5])).abs().max()))
    assert row["difference"] == pytest.approx(expected, abs=1e-6)


def test_the_most_frequent_label_of_a_word_ignores_its_neighbours():
    seen = [("the small red house", "4:9:size"), ("the small cat", "4:9:size"), ("a small tree", "-")]
    (found,) = tagging.looked_up(tiny_tokenizer(), seen, ["a small house"])
    assert found == [(2, 7, "size")]


def test_ablations_remove_what_they_name():
    config = tiny_config(num_encoder_layers=1, num_decoder_layers=1)
    plain, bare = build(config), build(config)
    ablations.without_norm(bare)
    assert not any(isinstance(module, nn.LayerNorm) for module in bare.modules())
    less = build(config)
    ablations.without_feed_forward(less)
    removed = 2 * (2 * 32 * 64 + 64 + 32)
    assert sum(p.numel() for p in plain.parameters()) - sum(p.numel() for p in less.parameters()) == removed
    cut = build(config).eval()
    ablations.without_residual(cut)
    with torch.no_grad():
        for block in cut.encoder.blocks:
            block.feed_forward.outer.weight.zero_()
            block.feed_forward.outer.bias.fill_(1.0)
        x = cut.encoder.blocks[0](torch.randn(1, 3, 32), lambda query, key, value, bias=None: value, _no_positions())
    assert torch.equal(x, torch.ones(1, 3, 32))


def _no_positions():
    class Positions:
        rotation = bias = None

    return Positions()


def test_ablations_learn():
    examples = copy_examples(200, seed=1)
    tokenizer = Tokenizer.train([text for pair in examples.pairs for text in pair], kind="words", vocab_size=64)
    config = tiny_config(vocab_size=tokenizer.vocab_size)
    model = ablations.built(ablations.VARIANTS[0], config)
    train = schedule(12, batch_tokens=256, learning_rate=1e-2, warmup_steps=2)
    batches = PairBatches(examples, tokenizer, config, train)
    before = ablations.scores(model, batches)
    ablations.fit(model, batches, train, 12)
    after = ablations.scores(model, batches)
    assert after[0] < before[0] - 0.5
    assert 0 <= after[1] <= 1
