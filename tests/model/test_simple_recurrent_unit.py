"""The recurrence against a loop in numpy, whole and in parts; a decoder of such layers against itself."""

import numpy as np
import pytest
import torch

from model.attention import CachedRecurrence, FullRecurrence, SimpleRecurrentUnit
from model.config import ConfigError
from model.ensemble import Ensemble, ensemble_config, ensemble_weights
from model.reference.greedy import greedy
from model.training.evaluate import greedy_batch
from tests.tiny import tiny_config, tiny_model

SSRU = {"decoder_mixing": "ssru", "norm_position": "post"}
SOURCES = [[4, 5, 6, 2], [7, 8, 9, 10, 11, 2], [12, 2]]


def looped(unit, x_BTM):
    """Kim et al. 2019, 3.2, in float64."""
    weight, bias = unit.input_forget.weight.detach().double().numpy(), unit.forget_bias.detach().double().numpy()
    (input_MM, forget_MM), x = np.split(weight, 2), x_BTM.double().numpy()
    state, states = np.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        forget = 1 / (1 + np.exp(-(x[:, t] @ forget_MM.T + bias)))
        state = forget * state + (1 - forget) * (x[:, t] @ input_MM.T)
        states.append(state)
    return np.stack(states, axis=1)


@pytest.fixture
def unit():
    torch.manual_seed(1)
    made = SimpleRecurrentUnit(tiny_config())
    torch.nn.init.normal_(made.forget_bias)
    torch.nn.init.normal_(made.input_forget.weight)
    return made


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 2), (3, 7), (2, 64)])
@torch.no_grad()
def test_a_layer_is_the_loop_of_its_definition(unit, batch, length):
    x_BTM = torch.randn(batch, length, 32)
    expected = np.maximum(looped(unit, x_BTM), 0)
    np.testing.assert_allclose(unit(x_BTM, FullRecurrence()), expected, atol=2e-5)
    np.testing.assert_allclose(unit(x_BTM, FullRecurrence(longest=100)), expected, atol=2e-5)


@torch.no_grad()
def test_a_state_continues_where_it_was_kept(unit):
    x_BTM, state_BM = torch.randn(2, 9, 32), torch.zeros(2, 32)
    parts = [unit(x_BTM[:, begin:end], CachedRecurrence(state_BM)) for begin, end in ((0, 4), (4, 5), (5, 9))]
    expected = looped(unit, x_BTM)
    np.testing.assert_allclose(torch.cat(parts, 1), np.maximum(expected, 0), atol=2e-5)
    np.testing.assert_allclose(state_BM, expected[:, -1], atol=2e-5)


def test_gates_near_their_ends_lose_nothing(unit):
    """Sums of logarithms of gates would."""
    forget_BTM = torch.sigmoid(torch.tensor([-30.0, 30.0, -8.0, 20.0]).repeat(64)[None, :, None].expand(1, 256, 32))
    update_BTM = torch.randn(1, 256, 32)
    state, states = torch.zeros(32).double(), []
    for forget, update in zip(forget_BTM[0].double(), update_BTM[0].double(), strict=True):
        state = forget * state + update
        states.append(state)
    torch.testing.assert_close(
        FullRecurrence()(forget_BTM, update_BTM)[0].double(), torch.stack(states), rtol=1e-5, atol=1e-5
    )


@torch.no_grad()
def test_steps_are_those_of_a_whole_target_and_padding_of_a_source_changes_nothing():
    model = tiny_model(tiny_config(**SSRU))
    lengths_B = torch.tensor([len(source) for source in SOURCES])
    source_BS = torch.tensor([[*source, *[0] * (6 - len(source))] for source in SOURCES])
    target_BT = torch.randint(4, 20, (3, 8), generator=torch.Generator().manual_seed(1))
    whole = model.decoder.unembedding(model(source_BS, lengths_B, target_BT))
    _, cross = model.encode(source_BS, lengths_B)
    states, parts = model.decoder.empty_caches(3, 0), []
    for begin, end in ((0, 3), (3, 4), (4, 8)):
        starts_B = torch.full((3,), begin)
        parts.append(model.decode(target_BT[:, begin:end], starts_B, states, cross, lengths_B))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


def test_batched_answers_are_those_of_the_reference_also_after_prompts_of_several_lengths():
    model = tiny_model(tiny_config(**SSRU))
    prompts = [[1], [1, 6, 7], [1, 5]]
    answers = greedy_batch(model, prompts, sources=SOURCES, max_tokens=10)
    assert answers == [
        greedy(model, prompt, source=source, max_tokens=10) for prompt, source in zip(prompts, SOURCES, strict=True)
    ]


def test_every_parameter_learns():
    model = tiny_model(tiny_config(**SSRU)).train()
    states = model(torch.tensor([SOURCES[0]]), torch.tensor([4]), torch.tensor([[1, 5, 6, 7]]))
    model.decoder.unembedding(states).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_an_ensemble_has_the_states_of_all_members():
    config = tiny_config(**SSRU)
    members = [tiny_model(config, seed) for seed in (1, 2)]
    both = ensemble_config([config, config])
    ensemble = Ensemble(both).eval()
    weights = ensemble_weights([dict(member.named_parameters()) for member in members], both)
    ensemble.load_state_dict(weights, strict=False)
    answers = greedy_batch(ensemble, [[1]] * 3, sources=SOURCES, max_tokens=6)
    assert answers == [greedy(ensemble, [1], source=source, max_tokens=6) for source in SOURCES]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"positions": "rotary"}, "positions: must be sinusoidal, learned or none with decoder_mixing ssru"),
        ({"positions": "shaw"}, "got shaw"),
        ({"sliding_window": 4}, "sliding_window: must be 0 with decoder_mixing ssru, got 4"),
        ({"decoder_mixing": "gru"}, "decoder_mixing"),
    ],
)
def test_what_needs_scores_is_refused(changes, problem):
    with pytest.raises(ConfigError, match=problem):
        tiny_config(**{**SSRU, **changes})
    with pytest.raises(ConfigError, match="decoder_mixing"):
        tiny_config("decoder", decoder_mixing="ssru")
