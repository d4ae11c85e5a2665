"""Cells and encoders against PyTorch's, scores against loops, a model against itself, unpadded, padded and in steps."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from model.architecture_config import RecurrentConfig
from model.config import ConfigError
from model.presets import load_preset
from model.recurrent import GruCell, LstmCell, Score, SourceAttention, initial_state_names, state_names
from model.reference.beam import beam_search
from model.reference.greedy import ModelPredictor, cross_attention, greedy, next_logits
from model.training.data.embedded import embedded_examples
from model.training.evaluate import greedy_batch
from model.training.objective.loss import batch_loss
from model.training.train import train
from tests.tiny import tiny_config, tiny_model

SOURCES = ([4, 5, 6, 2], [7, 8, 9, 10, 11, 2], [12, 2])
KINDS = [
    {"cell": cell, "score": score, "input_feeding": feeding, "bidirectional": both, "encoder_dim": dim}
    for (cell, score, feeding, both, dim) in (
        ("lstm", "none", False, True, 48),
        ("gru", "none", False, False, 24),
        ("lstm", "dot", False, True, 0),
        ("gru", "dot", True, False, 0),
        ("lstm", "multiplicative", True, True, 48),
        ("gru", "multiplicative", False, True, 16),
        ("lstm", "additive", False, False, 24),
        ("gru", "additive", True, True, 48),
    )
]


def name_of(kind):
    return "-".join(str(kind[name]) for name in ("cell", "score", "input_feeding", "bidirectional"))


@pytest.fixture(params=KINDS, ids=name_of)
def model(request):
    return tiny_model(tiny_config("recurrent", **request.param))


def padded(rows, fill=0):
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows]), torch.tensor(list(map(len, rows)))


# ---- cells and encoder


@pytest.mark.parametrize(("ours", "theirs"), [(LstmCell, nn.LSTM), (GruCell, nn.GRU)])
def test_a_cell_is_torchs(ours, theirs):
    torch.manual_seed(1)
    cell, layer = ours(5, 7), theirs(5, 7, batch_first=True)
    with torch.no_grad():
        for part, linear in (("ih", cell.input), ("hh", cell.hidden)):
            linear.weight.copy_(getattr(layer, f"weight_{part}_l0"))
            linear.bias.copy_(getattr(layer, f"bias_{part}_l0"))
    x_BTP, first = torch.randn(3, 6, 5), torch.randn(2, 3, 7)
    states = [first[0][:, None], first[1][:, None]][: 2 if ours is LstmCell else 1]
    given = (first[:1], first[1:]) if ours is LstmCell else first[:1]
    expected, last = layer(x_BTP, given)
    for t in range(6):
        states = cell(cell.input(x_BTP[:, t : t + 1]), states)
        assert torch.allclose(states[0][:, 0], expected[:, t], atol=1e-6)
    if ours is LstmCell:
        assert torch.allclose(states[1][:, 0], last[1][0], atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_an_encoder_is_torchs_and_knows_no_padding(cell, both, layers):
    config = tiny_config("recurrent", cell=cell, bidirectional=both, num_encoder_layers=layers)
    model = tiny_model(config)
    source_BS, lengths_B = padded(SOURCES, fill=9)
    states_BSN, last_BN = model.encoder(source_BS, lengths_B)
    theirs = (nn.LSTM if cell == "lstm" else nn.GRU)(
        32, 24 if both else 48, layers, batch_first=True, bidirectional=both
    )
    weights = {
        name.replace("_l0", f"_l{i}"): parameter
        for i, layer in enumerate(model.encoder.layers)
        for name, parameter in layer.named_parameters()
    }
    theirs.load_state_dict(weights)
    for row, source in enumerate(SOURCES):
        x_1SM = model.encoder.embedding(torch.tensor([source]))
        expected, last = theirs(x_1SM)
        last_DBH = last[0] if cell == "lstm" else last
        assert torch.allclose(states_BSN[row, : len(source)], expected[0], atol=1e-6)
        assert torch.allclose(last_BN[row], last_DBH[-2 if both else -1 :, 0].flatten(), atol=1e-6)


def test_what_is_carried_has_names_in_the_order_of_the_layers():
    config = tiny_config("recurrent")
    assert state_names(config) == ("hidden.0", "cell.0", "hidden.1", "cell.1", "fed")
    assert initial_state_names(config) == state_names(config)[:-1]
    assert state_names(tiny_config("recurrent", cell="gru", input_feeding=False)) == ("hidden.0", "hidden.1")


# ---- scores


def scores_by_loops(score, kind, states, source):
    """e of one decoder state s (d2,) and encoder states (S, d1), as the definitions have it."""
    found = []
    for h in source:
        if kind == "dot":
            e = sum(float(a) * float(b) for a, b in zip(states, h, strict=True))
        elif kind == "multiplicative":
            matrix = score.query.weight.T  # W, d2 x d1
            assert matrix.shape == (len(states), len(h))
            e = sum(
                float(states[i]) * float(matrix[i, j]) * float(h[j]) for i in range(len(states)) for j in range(len(h))
            )
        else:
            one, two = score.key.weight, score.query.weight  # W1, d3 x d1, and W2, d3 x d2
            assert one.shape == (len(score.vector), len(h))
            assert two.shape == (len(score.vector), len(states))
            e = sum(float(score.vector[k]) * math.tanh(float(one[k] @ h + two[k] @ states)) for k in range(len(one)))
        found.append(e)
    return np.array(found)


@pytest.mark.parametrize("kind", ["dot", "multiplicative", "additive"])
def test_scores_and_weights_are_those_of_the_definitions(kind):
    torch.manual_seed(2)
    config = RecurrentConfig(d_model=6, score=kind, encoder_dim=6 if kind == "dot" else 4, attention_dim=5)
    score = Score(config)
    states_BTM, source_BSN, lengths_B = torch.randn(2, 3, 6), torch.randn(2, 5, config.source_dim), torch.tensor([5, 2])
    attend = SourceAttention(source_BSN, lengths_B)
    with torch.no_grad():
        mixed_BTN = attend(*score(states_BTM, score.project_source(source_BSN)))
        for b, t in itertools.product(range(2), range(3)):
            length = int(lengths_B[b])
            e_S = scores_by_loops(score, kind, states_BTM[b, t], source_BSN[b, :length])
            alpha_S = np.exp(e_S) / np.exp(e_S).sum()
            assert attend.weights_BTS[b, t, :length].numpy() == pytest.approx(alpha_S, abs=1e-6)
            assert mixed_BTN[b, t].numpy() == pytest.approx(alpha_S @ source_BSN[b, :length].numpy(), abs=1e-5)
    assert attend.weights_BTS.sum(-1).numpy() == pytest.approx(1.0, abs=1e-6)
    assert not attend.weights_BTS[1, :, 2:].any()


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        (
            {"score": "dot", "encoder_dim": 48},
            "score",
            "dot needs states of one width, got encoder_dim 48 and d_model 32",
        ),
        ({"score": "none", "input_feeding": True}, "input_feeding", "needs a score, got none"),
        ({"encoder_dim": 31}, "encoder_dim", "must be even for a bidirectional encoder, got 31"),
        ({"d_model": 33, "encoder_dim": 0}, "d_model", "must be even for a bidirectional encoder, got 33"),
        ({"cell": "rnn"}, "cell", "must be one of lstm, gru, got 'rnn'"),
        ({"attention_dim": -1}, "attention_dim", "must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_is_refused(changes, field, problem):
    with pytest.raises(ConfigError, match=problem) as refused:
        tiny_config("recurrent", **changes)
    assert refused.value.field == field


def test_fields_of_transformers_are_refused():
    with pytest.raises(ConfigError, match="positions: architecture recurrent does not use it; leave it out, or choose"):
        tiny_config("recurrent", positions="rotary")


# ---- the whole model


def test_attention_is_concatenated_with_the_state_and_fed_to_the_next_token():
    model = tiny_model(tiny_config("recurrent", cell="gru", num_decoder_layers=1))
    lengths, source = torch.tensor([4]), torch.tensor([SOURCES[0]])
    encoded, decoder = model.encode(source, lengths), model.decoder
    attend, (hidden,) = model.source_attention(encoded, lengths), encoded.initial_states
    fed, cell = torch.zeros(1, 1, 32), decoder.cells[0]
    hidden = hidden[:, None]
    vectors = model(source, lengths, torch.tensor([[1, 7, 9]]))
    for t, token in enumerate((1, 7, 9)):
        x = decoder.embedding(torch.tensor([[token]]))
        (hidden,) = cell(cell.input(x) + decoder.feed(fed), (hidden,))
        both = torch.cat((attend(*decoder.score(hidden, encoded.keys_BSA)), hidden), dim=-1)
        assert both.shape == (1, 1, 48 + 32)
        fed = torch.tanh(both @ decoder.combine.weight.T)
        assert torch.allclose(fed[:, 0], vectors[:, t], atol=1e-6)


def test_a_row_is_the_same_unpadded_and_beside_longer_ones(model):
    source_BS, lengths_B = padded(SOURCES)
    targets_BT = torch.tensor([[1, 4, 5, 6], [1, 9, 8, 7], [1, 3, 3, 3]])
    together = model(source_BS, lengths_B, targets_BT)
    for row, source in enumerate(SOURCES):
        single = model(torch.tensor([source]), torch.tensor([len(source)]), targets_BT[row : row + 1])
        assert torch.allclose(together[row], single[0], atol=1e-5)


def test_steps_compute_what_the_whole_sequence_does(model):
    source_BS, lengths_B = padded(SOURCES)
    targets_BT = torch.tensor([[1, 4, 5, 6, 9], [1, 9, 8, 7, 4], [1, 3, 3, 3, 3]])
    expected = model.decoder.unembedding(model(source_BS, lengths_B, targets_BT))
    encoded = model.encode(source_BS, lengths_B)
    states, parts = model.start(encoded), []
    for block in (targets_BT[:, :1], targets_BT[:, 1:2], targets_BT[:, 2:]):
        logits, states = model.decode(block, states, encoded, lengths_B)
        parts.append(logits)
    assert torch.allclose(torch.cat(parts, dim=1), expected, atol=1e-5)


def test_a_bottleneck_hides_all_but_the_last_state():
    model = tiny_model(tiny_config("recurrent", score="none", input_feeding=False))
    encoded = model.encode(*padded(SOURCES[:1]))
    other = encoded._replace(states_BSN=torch.randn_like(encoded.states_BSN))
    tokens, lengths = torch.tensor([[1, 5]]), torch.tensor([4])
    one, _ = model.decode(tokens, model.start(encoded), encoded, lengths)
    two, _ = model.decode(tokens, model.start(other), other, lengths)
    assert torch.equal(one, two)


def test_every_weight_learns(model):
    model.train()
    source_BS, lengths_B = padded(SOURCES)
    model(source_BS, lengths_B, torch.tensor([[1, 4], [1, 9], [1, 3]])).square().sum().backward()
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert unused == ([] if model.config.tie_embeddings else ["decoder.unembedding.weight"])


def test_decoding_in_batches_is_that_of_the_reference(model):
    prompts = [[1], [1, 5, 6], [1, 4]]
    expected = [greedy(model, p, source=s, max_tokens=9) for p, s in zip(prompts, SOURCES, strict=True)]
    assert greedy_batch(model, prompts, sources=SOURCES, max_tokens=9) == expected
    assert greedy_batch(model, prompts, sources=SOURCES, max_tokens=9, rows=1) == expected


def test_references_read_it_as_any_other_model(model):
    predictor = ModelPredictor(model, [1], source=SOURCES[0], max_tokens=8)
    logprobs = predictor.logprobs([[5, 6], [7, 8]])
    for row, tokens in zip(logprobs, ([1, 5, 6], [1, 7, 8]), strict=True):
        assert row == pytest.approx(next_logits(model, tokens, source=SOURCES[0]).log_softmax(-1).numpy(), abs=1e-5)
    best = beam_search(model, [1], source=SOURCES[0], max_tokens=5, beam_size=1)
    assert list(best[0].tokens) == greedy(model, [1], source=SOURCES[0], max_tokens=5)
    if model.config.score == "none":
        with pytest.raises(ValueError, match="without a score has no attention"):
            predictor.coverage([5, 6])
    else:
        weights = cross_attention(model, [1, 5, 6], source=SOURCES[0])
        assert weights.shape == (1, 1, 3, 4)
        assert weights.sum(-1).numpy() == pytest.approx(1.0, abs=1e-6)
        assert predictor.coverage([5, 6]) == pytest.approx(weights[0, 0, :2].sum(0).numpy(), abs=1e-6)


def test_half_precision_products_train_as_well(model):
    from model.training.data.examples import Batch

    source_BS, lengths_B = padded(SOURCES)
    targets_BT = torch.tensor([[4, 5, 2], [9, 8, 2], [3, 2, 0]])
    batch = Batch(source_BS, lengths_B, torch.tensor([[1, 4, 5], [1, 9, 8], [1, 3, 2]]), targets_BT, 8)
    with torch.no_grad():
        full, half = batch_loss(model, batch).plain, batch_loss(model, batch, bf16=True).plain
    assert float(half) == pytest.approx(float(full), rel=0.05)


@pytest.mark.slow
def test_it_learns_to_copy(tmp_path):
    preset = load_preset("tiny-copy-recurrent")
    train(preset.model, preset.train, data=embedded_examples("copy"), out=tmp_path / "copy")
    metrics = json.loads((tmp_path / "copy" / "metrics.json").read_text())
    assert metrics["exact_match"] > 0.7
