"""Filters on distributions worked out by hand, drawing by position, and both together over a model."""

import math

import numpy as np
import pytest
import torch

from model.architecture_config import model_config
from model.architectures import build
from model.reference.greedy import greedy, next_logits
from model.reference.sampling import alternatives, draw, sample, sampling_distribution


def scores(*probabilities):
    """Log-probabilities plus a constant, which must not matter."""
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities, np.float32)) + np.float32(3)


HALF = (0.15, 0.5, 0.05, 0.3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, HALF),
        ({"temperature": 0.0}, (0, 1, 0, 0)),
        ({"temperature": 0.5}, (0.0225 / 0.365, 0.25 / 0.365, 0.0025 / 0.365, 0.09 / 0.365)),  # squares
        ({"top_k": 1}, (0, 1, 0, 0)),
        ({"top_k": 2}, (0, 0.625, 0, 0.375)),
        ({"top_k": 9}, HALF),
        ({"top_p": 0.49}, (0, 1, 0, 0)),
        ({"top_p": 0.51}, (0, 0.625, 0, 0.375)),
        ({"top_p": 0.79}, (0, 0.625, 0, 0.375)),
        ({"top_p": 0.94}, (0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95)),
        ({"top_p": 0.96}, HALF),
        ({"top_p": 1e-9}, (0, 1, 0, 0)),
        ({"min_p": 0.29}, (0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95)),
        ({"min_p": 0.31}, (0, 0.625, 0, 0.375)),
        ({"min_p": 1.0}, (0, 1, 0, 0)),
    ],
)
def test_a_filter_keeps_what_it_defines(options, expected):
    probabilities_V = sampling_distribution(scores(*HALF), **options)
    assert probabilities_V.dtype == np.float64
    assert probabilities_V == pytest.approx(np.array(expected), abs=1e-6)


def test_typical_sampling_keeps_the_tokens_whose_surprise_is_nearest_the_entropy():
    """Entropy of HALF 1.142 nats; surprises 1.897, 0.693, 2.996, 1.204: nearest is 3, then 1, then 0."""
    assert -sum(p * math.log(p) for p in HALF) == pytest.approx(1.142, abs=1e-3)
    assert sampling_distribution(scores(*HALF), typical_p=0.2) == pytest.approx(np.array([0, 0, 0, 1.0]))
    kept = sampling_distribution(scores(*HALF), typical_p=0.4)
    assert kept == pytest.approx(np.array([0, 0.625, 0, 0.375]), abs=1e-6)
    kept = sampling_distribution(scores(*HALF), typical_p=0.9)
    assert kept == pytest.approx(np.array([0.15, 0.5, 0, 0.3]) / 0.95, abs=1e-6)


def test_filters_come_in_order_and_each_sees_what_is_left_as_a_distribution():
    """Top-k leaves 0.625 and 0.375: top-p of 0.6 keeps only the first of them, though it had 0.5 of the whole."""
    assert sampling_distribution(scores(*HALF), top_k=2, top_p=0.6) == pytest.approx(np.array([0, 1.0, 0, 0]))
    # The square makes 0.68 of the 0.5: the temperature comes before top-p.
    assert sampling_distribution(scores(*HALF), temperature=0.5, top_p=0.6) == pytest.approx(np.array([0, 1.0, 0, 0]))


def test_a_masked_token_is_never_kept():
    masked = scores(0.0, 0.5, 0.0, 0.5)
    for options in ({}, {"top_k": 3}, {"top_p": 0.99}, {"min_p": 0.1}, {"typical_p": 0.999}, {"temperature": 2.0}):
        assert sampling_distribution(masked, **options) == pytest.approx(np.array([0, 0.5, 0, 0.5]))


@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.4}, {"typical_p": 0.4}])
def test_of_equal_tokens_at_the_cut_the_lower_ids_stay(options):
    assert sampling_distribution(scores(0.25, 0.25, 0.25, 0.25), **options) == pytest.approx(np.array([0.5, 0.5, 0, 0]))


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 1), (0.499, 1), (0.501, 3), (0.799, 3), (0.801, 0), (0.949, 0), (0.951, 2), (1 - 2**-53, 2)],
)
def test_a_uniform_number_picks_the_token_whose_share_holds_it(uniform, token):
    assert draw(np.array(HALF), uniform) == token


def test_equal_tokens_share_in_the_order_of_their_ids_and_the_impossible_is_never_drawn():
    probabilities_V = np.array([0.0, 0.25, 0.5, 0.25])
    assert [draw(probabilities_V, u) for u in (0.0, 0.5, 0.74, 0.75, 1 - 2**-53)] == [2, 1, 1, 3, 3]


def tiny(seed=0):
    torch.manual_seed(seed)
    shape = {"vocab_size": 12, "d_model": 16, "num_heads": 2, "d_ff": 32, "max_source_len": 6, "max_target_len": 8}
    model = build(model_config(shape)).eval()
    with torch.no_grad():
        model.decoder.unembedding.weight.mul_(0.4)
    return model


SOURCE = [4, 5, 2]


def test_each_token_is_drawn_from_the_distribution_after_those_before_it():
    model, uniforms = tiny(), [0.9, 0.3, 0.7, 0.5, 0.95]
    new = sample(model, [1], source=SOURCE, uniforms=uniforms, temperature=1.5, top_k=6)
    assert 2 not in new[:-1]
    assert len(new) == 5 or new[-1] == 2
    for i, token in enumerate(new):
        logprobs_V = next_logits(model, [1, *new[:i]], source=SOURCE).log_softmax(-1).numpy()
        assert token == draw(sampling_distribution(logprobs_V, temperature=1.5, top_k=6), uniforms[i])


def test_samples_are_as_frequent_as_they_are_probable():
    model = tiny()
    probabilities_V = next_logits(model, [1], source=SOURCE).softmax(-1).double().numpy()
    uniforms = (np.arange(400) + 0.5) / 400
    drawn = [sample(model, [1], source=SOURCE, uniforms=[uniform])[0] for uniform in uniforms]
    assert np.bincount(drawn, minlength=12) / 400 == pytest.approx(probabilities_V, abs=1 / 400)


def test_at_temperature_zero_sampling_is_greedy():
    model = tiny()
    new = sample(model, [1], source=SOURCE, uniforms=[0.99] * 8, temperature=0.0)
    assert new == greedy(model, [1], source=SOURCE, max_tokens=8)


def test_the_prefix_is_not_drawn_and_process_and_stop_are_called():
    model = tiny()

    def only_seven(logprobs_V, tokens):
        return np.where(np.arange(12) == 7, logprobs_V, np.float32(-np.inf))

    new = sample(
        model,
        [1],
        source=SOURCE,
        uniforms=[0.5] * 8,
        prefix=[9, 10],
        process=only_seven,
        stop=lambda tokens: len(tokens) == 5,
    )
    assert new == [9, 10, 7, 7, 7]


def test_alternatives_are_the_best_next_tokens_each_continued_greedily():
    model = tiny()
    logprobs_V = next_logits(model, [1, 6], source=SOURCE).log_softmax(-1)
    best = logprobs_V.argsort(descending=True)[:3].tolist()
    found = alternatives(model, [1], source=SOURCE, max_tokens=6, num_hypotheses=3, prefix=[6])
    assert [tokens[:2] for tokens in found] == [[6, token] for token in best]
    for tokens in found:
        if tokens[-1] != 2 or len(tokens) > 2:
            assert tokens[2:] == greedy(model, [1, *tokens[:2]], source=SOURCE, max_tokens=4)
    least = float(logprobs_V[best[1]].exp()) * 0.999
    some = alternatives(model, [1], source=SOURCE, max_tokens=6, num_hypotheses=3, prefix=[6], min_probability=least)
    assert some == found[:2]


def test_an_alternative_that_is_impossible_is_left_out():
    def only_two_and_seven(logprobs_V, tokens):
        return np.where(np.isin(np.arange(12), (2, 7)), logprobs_V, np.float32(-np.inf))

    found = alternatives(tiny(), [1], source=SOURCE, max_tokens=3, num_hypotheses=4, process=only_two_and_seven)
    assert sorted(tokens[0] for tokens in found) == [2, 7]
    assert [2] in found
