import math
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.decoding.sampling import TOP_CANDIDATES, Sampler
from service.errors import Unsatisfiable
from service.options import DecodingOptions
from tests.service.decoding.chi_square import (
    FILTERS,
    SIGNIFICANT,
    best_of,
    chi_square,
    measure,
    survival,
    zipf_row,
)

NINF = -math.inf
ALL = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "all" else [pytest.mark.slow]) for name in FILTERS]
)


def oracle(scores, uniform, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0):
    """The token that is drawn, in plain Python: every filter sorts everything and normalises anew."""
    best = max(scores)
    weights = {token: math.exp((score - best) / temperature) for token, score in enumerate(scores)}
    order = sorted(weights, key=lambda token: (-scores[token], token))

    def shares(tokens):
        total = math.fsum(weights[token] for token in tokens)
        return {token: weights[token] / total for token in tokens if weights[token] > 0}

    def first(tokens, probabilities, mass):
        kept, reached = [], 0.0
        for token in tokens:
            kept.append(token)
            reached += probabilities[token]
            if reached >= mass:
                break
        return kept

    kept = shares(order[:top_k] if top_k else order)
    if top_p < 1:
        kept = shares(first(kept, kept, top_p))
    if min_p > 0:
        least = min_p * max(kept.values())
        kept = shares([token for token in kept if kept[token] >= least])
    if typical_p < 1:
        entropy = -math.fsum(share * math.log(share) for share in kept.values())
        by_distance = sorted(kept, key=lambda token: (abs(-math.log(kept[token]) - entropy), token))
        kept = shares(first(by_distance, kept, typical_p))
    return first([token for token in order if token in kept], kept, uniform)[-1]


def uniforms(seed, index):
    random = Random(seed << 32 | index)
    while True:
        yield random.random()


def normalised(logits):
    logits = np.asarray(logits, dtype=np.float64)
    return (logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())).astype(np.float32)


def never_read(size):
    return np.full(size, np.nan, dtype=np.float32)


def masses():
    return st.floats(0.0123, 0.9871)  # hardly ever the very sum of some probabilities


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.05, 0.3, 0.7, 1.0, 1.3, 4.0]),
        "top_k": st.integers(1, 80),
        "top_p": masses(),
        "min_p": masses().map(lambda p: p / 3),
        "typical_p": masses(),
    },
)
ROWS = st.builds(
    lambda size, spread, step, seed: normalised(
        np.round(np.random.default_rng(seed).normal(scale=spread, size=size) / step) * step
    ),
    size=st.integers(1, 700),
    spread=st.sampled_from([0.3, 2.0, 6.0]),
    step=st.sampled_from([1e-6, 0.25]),  # 0.25: many tokens are equal
    seed=st.integers(0, 10**6),
)


@given(row=ROWS, options=OPTIONS, seed=st.integers(0, 2**64 - 1))
@settings(max_examples=250)
def test_draws_what_sorting_everything_draws(row, options, seed):
    sampler, stream = Sampler(DecodingOptions(seed=seed, **options), seed, 3), uniforms(seed, 3)
    expected = [oracle(row.tolist(), next(stream), **options) for _ in range(4)]
    assert [sampler.draw(row) for _ in range(4)] == expected


@given(row=ROWS, options=OPTIONS, seed=st.integers(0, 2**64 - 1), sizes=st.sets(st.integers(1, 700), max_size=6))
@settings(max_examples=250)
def test_the_draw_is_the_same_with_however_many_best_tokens(row, options, seed, sizes):
    options = DecodingOptions(seed=seed, **options)
    alone = Sampler(options, seed, 0)
    expected = [alone.draw(row) for _ in range(6)]
    for size in {1, min(TOP_CANDIDATES, len(row)), *(min(size, len(row)) for size in sizes)}:
        sampler = Sampler(options, seed, 0)
        assert [sampler.draw(row, best_of(row, size)) for _ in range(6)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("vocab_size", [300, 8193, 32000])
def test_the_draw_is_the_same_with_however_many_best_tokens_of_a_large_vocabulary(name, vocab_size):
    row = zipf_row(vocab_size, seed=vocab_size)
    options = DecodingOptions(**FILTERS[name])
    alone, stream = Sampler(options, 5, 0), uniforms(5, 0)
    expected = [alone.draw(row) for _ in range(80)]
    for size in (1, 63, 64, 65, 300):
        sampler = Sampler(options, 5, 0)
        assert [sampler.draw(row, best_of(row, size)) for _ in range(80)] == expected
    for token in expected[:20]:
        assert token == oracle(row.tolist(), next(stream), **FILTERS[name])


@ALL
def test_draws_what_sorting_everything_draws_from_a_large_vocabulary(name):
    row = zipf_row(20_000, seed=2)
    sampler, stream = Sampler(DecodingOptions(**FILTERS[name]), 1, 0), uniforms(1, 0)
    for _ in range(5):
        assert sampler.draw(row) == oracle(row.tolist(), next(stream), **FILTERS[name])


@ALL
def test_tokens_are_drawn_as_often_as_the_reference_says(name):
    assert measure(FILTERS[name], zipf_row(250, seed=1), draws=10_000, seed=1).p > SIGNIFICANT


@pytest.mark.slow
@pytest.mark.parametrize("name", FILTERS)
def test_many_tokens_are_drawn_as_often_as_the_reference_says(name):
    assert measure(FILTERS[name], zipf_row(2000, seed=2), draws=100_000, seed=2).p > SIGNIFICANT


def test_the_chi_square_test_notices_a_wrong_distribution():
    row = zipf_row(400, seed=1)
    tokens = [Sampler(DecodingOptions(temperature=0.9), 1, index).draw(row) for index in range(10_000)]
    assert chi_square(np.bincount(tokens, minlength=400), np.exp(row.astype(np.float64))).p < 1e-9
    for freedom, statistic in ((1, 3.841459), (10, 18.307038), (100, 124.342113)):  # the table's values for 0.05
        assert survival(statistic, freedom) == pytest.approx(0.05, abs=1e-6)


def test_streams_of_one_seed_are_independent():
    row = normalised(np.zeros(50))
    options = DecodingOptions(temperature=1.0)
    pairs = [[sampler.draw(row), sampler.draw(row)] for sampler in (Sampler(options, 7, i) for i in range(10_000))]
    for tokens in np.array(pairs).T:
        assert chi_square(np.bincount(tokens, minlength=50), np.full(50, 0.02)).p > SIGNIFICANT


def test_the_text_depends_on_seed_and_index():
    row = normalised(-np.log(np.arange(1, 501)))

    def tokens(seed, index):
        sampler = Sampler(DecodingOptions(temperature=1.0), seed, index)
        return [sampler.draw(row) for _ in range(8)]

    assert tokens(11, 0) == tokens(11, 0) == [27, 0, 0, 50, 3, 301, 0, 62]  # also in every other version
    assert len({tuple(tokens(seed, index)) for seed in (11, 12, 2**64 - 1) for index in range(5)}) == 15


def test_each_token_takes_one_number_of_the_stream():
    wide, lonely = zipf_row(500, seed=3), np.full(500, NINF, dtype=np.float32)
    lonely[7] = -2.0
    sampler, stream = Sampler(DecodingOptions(temperature=1.0), 4, 0), uniforms(4, 0)
    for row in (wide, lonely, wide):
        assert sampler.draw(row) == oracle(row.tolist(), next(stream))
    assert sampler.draw(wide, best_of(wide, 5)) == oracle(wide.tolist(), next(stream))
    assert sampler.draw(wide) == oracle(wide.tolist(), next(stream))


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 5},
        {"top_k": 20, "top_p": 0.7, "min_p": 0.01, "typical_p": 0.6, "temperature": 3.0},
        {"min_p": 0.1},
        {"min_p": 0.3, "temperature": 3.0},
        {"top_p": 0.5},
        {"temperature": 0.1},
    ],
)
def test_the_row_is_not_read_when_the_best_tokens_are_enough(options):
    row = normalised(np.linspace(0, -60, 300))  # probabilities fall by 18 % from token to token
    expected, sampler = (Sampler(DecodingOptions(**options), 1, 0) for _ in range(2))
    for _ in range(50):
        assert sampler.draw(never_read(300), best_of(row, 40)) == expected.draw(row)


def test_a_draw_among_the_best_tokens_needs_no_row_even_if_the_nucleus_is_larger():
    row = normalised([8.0, 7.0, *np.zeros(2000)])  # 0.51, 0.19, and 2000 times 0.00017
    choices: tuple[dict[str, Any], ...] = ({"top_p": 0.9}, {"temperature": 1.0}, {"temperature": 0.9, "top_p": 0.95})
    for options in choices:
        expected, sampler = (Sampler(DecodingOptions(**options), 1, 0) for _ in range(2))
        tokens = [expected.draw(row) for _ in range(40)]
        assert max(tokens) > 1
        for token in tokens:
            assert sampler.draw(row if token > 1 else never_read(2002), best_of(row, 10)) == token


def test_equal_tokens_at_a_cut_keep_the_lower_ids():
    equal = normalised(np.zeros(400))
    cases: tuple[tuple[dict[str, Any], int], ...] = (
        ({"top_k": 3}, 3),
        ({"top_p": 0.0099}, 4),  # 4 / 400 is the first to reach it
        ({"typical_p": 0.0124}, 5),
        ({"min_p": 0.99}, 400),
        ({"top_k": 8, "top_p": 0.49}, 4),
        ({"top_k": 300, "top_p": 0.49, "typical_p": 0.009}, 2),
    )
    for options, kept in cases:
        sampler = Sampler(DecodingOptions(**options), 1, 0)
        drawn = {sampler.draw(equal) for _ in range(1500)}
        assert drawn <= set(range(kept))
        assert len(drawn) > 0.95 * kept


def test_min_p_keeps_tokens_equal_to_the_threshold():
    row = normalised([3.0, 1.0, 1.0, 0.9, 1.0])
    least = float(np.exp(-2.0)) * (1 - 1e-6)
    assert {Sampler(DecodingOptions(min_p=least), 1, index).draw(row) for index in range(500)} == {0, 1, 2, 4}


def test_typical_sampling_excludes_a_most_likely_token_with_too_little_information():
    row = normalised(np.log([0.5, 0.2, 0.15, 0.15]))  # entropy 1.24; surprise 0.69, 1.61, 1.90, 1.90
    drawn = {Sampler(DecodingOptions(typical_p=0.19), 1, index).draw(row) for index in range(200)}
    assert drawn == {1}


def test_the_only_possible_token_is_drawn():
    for size in (1, 40, 5000):
        row = np.full(size, NINF, dtype=np.float32)
        row[size // 2] = -30.0
        for options in FILTERS.values():
            assert Sampler(DecodingOptions(**options), 1, 0).draw(row) == size // 2


def test_impossible_tokens_are_never_drawn():
    row = zipf_row(3000, seed=4)
    row[np.random.default_rng(1).random(3000) < 0.9] = NINF
    for options in (*FILTERS.values(), {"temperature": 100.0}, {"top_k": 2999}):
        sampler, stream = Sampler(DecodingOptions(**options), 1, 0), uniforms(1, 0)
        for _ in range(20):
            assert sampler.draw(row) == oracle(row.tolist(), next(stream), **options)


def test_no_possible_token_is_an_error():
    with pytest.raises(Unsatisfiable, match="no token is possible"):
        Sampler(DecodingOptions(top_p=0.9), 1, 0).draw(np.full(10, NINF, dtype=np.float32))


def test_a_tiny_temperature_draws_the_best_token_and_a_huge_one_any():
    row = zipf_row(1000, seed=5)
    cold, hot = Sampler(DecodingOptions(temperature=1e-3), 1, 0), Sampler(DecodingOptions(temperature=100.0), 1, 0)
    assert {cold.draw(row) for _ in range(50)} == {cold.draw(row, best_of(row, 5)) for _ in range(50)} == {row.argmax()}
    assert len({hot.draw(row) for _ in range(500)}) > 350  # of 1000 equal ones: 394


def test_scores_may_have_any_constant_added_and_are_not_changed():
    row = np.round(zipf_row(5000, seed=6) * 64) / 64
    before = row.copy()
    for options in FILTERS.values():
        plain, shifted = (Sampler(DecodingOptions(**options), 9, 0) for _ in range(2))
        assert [plain.draw(row) for _ in range(10)] == [shifted.draw(row + np.float32(37)) for _ in range(10)]
    assert (row == before).all()


def test_the_exponential_of_a_number_does_not_depend_on_its_neighbours():
    numbers = np.random.default_rng(1).uniform(-40, 0, size=3000)
    together = np.exp(numbers)
    for start, size in ((0, 1), (1, 63), (7, 64), (100, 1000), (2999, 1)):
        assert (np.exp(numbers[start : start + size].copy()) == together[start : start + size]).all()
