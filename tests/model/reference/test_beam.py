"""Beam search on trees small enough to search by hand: token 0 ends a hypothesis, 1, 2 and 3 are words."""

import itertools
import math

import numpy as np
import pytest

from model.reference.beam import beam_search, search
from model.reference.greedy import cross_attention, greedy, score
from tests.tiny import tiny_config, tiny_model


class Table:
    """A model whose probabilities after each list of tokens are written down; what is not in it is `otherwise`."""

    eos_ids: tuple[int, ...] = (0,)

    def __init__(self, probabilities, otherwise=(0.25, 0.25, 0.25, 0.25), coverage=None):
        self.probabilities, self.otherwise, self.covered = probabilities, otherwise, coverage or {}

    def logprobs(self, hypotheses):
        with np.errstate(divide="ignore"):
            return np.log(
                np.array([self.probabilities.get(tuple(tokens), self.otherwise) for tokens in hypotheses], np.float32)
            )

    def coverage(self, tokens):
        return np.array(self.covered[tokens])


def tokens_of(hypotheses):
    return [hypothesis.tokens for hypothesis in hypotheses]


GARDEN_PATH = {  # the better first word leads to worse answers: 1 0 has 0.24, 2 0 has 0.36
    (): (0.0, 0.6, 0.4, 0.0),
    (1,): (0.4, 0.3, 0.3, 0.0),
    (2,): (0.9, 0.1, 0.0, 0.0),
}


def test_beam_search_finds_what_greedy_search_walks_past():
    assert tokens_of(search(Table(GARDEN_PATH), max_tokens=2)) == [(1, 0)]
    best, second = search(Table(GARDEN_PATH), max_tokens=2, beam_size=2, num_hypotheses=2, length_penalty=0.0)
    assert (best.tokens, second.tokens) == ((2, 0), (1, 0))
    assert best.score == pytest.approx(math.log(0.4 * 0.9))
    assert best.token_logprobs == pytest.approx([math.log(0.4), math.log(0.9)])
    assert second.score == pytest.approx(math.log(0.6 * 0.4))


def test_the_score_is_divided_by_the_length_with_the_end_token():
    (answer,) = search(Table(GARDEN_PATH), max_tokens=2, beam_size=2)
    assert answer.score == pytest.approx(math.log(0.36) / 2)
    (answer,) = search(Table(GARDEN_PATH), max_tokens=2, beam_size=2, length_penalty=0.6)
    assert answer.score == pytest.approx(math.log(0.36) / 2**0.6)


def test_gnmt_divides_by_its_own_length():
    (answer,) = search(Table(GARDEN_PATH), max_tokens=2, beam_size=2, length_penalty=0.6, length_normalization="gnmt")
    assert answer.score == pytest.approx(math.log(0.36) / ((5 + 2) / 6) ** 0.6)


SHORT_OR_LONG = {  # short: 0 with 0.3; long: 1 1 0 with 0.7
    (): (0.3, 0.7, 0.0, 0.0),
    (1,): (0.0, 1.0, 0.0, 0.0),
    (1, 1): (1.0, 0.0, 0.0, 0.0),
}


def test_a_length_penalty_prefers_the_longer_answer():
    """Both with a beam of 2: -1.204 / 1 against -0.357 / 3 with the penalty."""
    best, second = search(Table(SHORT_OR_LONG), max_tokens=3, beam_size=2, num_hypotheses=2)
    assert (best.tokens, second.tokens) == ((1, 1, 0), (0,))
    assert [best.score, second.score] == pytest.approx([math.log(0.7) / 3, math.log(0.3)])


def test_a_candidate_after_the_first_beam_size_does_not_finish():
    """0 is the third candidate of the first step."""
    table = Table({(): (0.2, 0.3, 0.5, 0.0), (1,): (0.4, 0.6, 0.0, 0.0), (2,): (0.4, 0.0, 0.6, 0.0)})
    assert (0,) not in tokens_of(search(table, max_tokens=4, beam_size=2, num_hypotheses=9, patience=3.0))
    assert (0,) in tokens_of(search(table, max_tokens=4, beam_size=3, num_hypotheses=9, patience=3.0))


LATE = {  # scores: 0 -1.204, 2 0 -0.983, 2 2 0 -0.961, 2 2 2 0 -0.171, found in this order, one a step
    (): (0.3, 0.0, 0.7, 0.0),
    (2,): (0.2, 0.0, 0.8, 0.0),
    (2, 2): (0.1, 0.0, 0.9, 0.0),
    (2, 2, 2): (1.0, 0.0, 0.0, 0.0),
}


def test_early_stopping_ends_the_search_when_the_pool_is_full():
    found = search(Table(LATE), max_tokens=9, beam_size=2, num_hypotheses=2, early_stopping="true")
    assert tokens_of(found) == [(2, 0), (0,)]
    assert [answer.score for answer in found] == pytest.approx([math.log(0.14) / 2, math.log(0.3)])


@pytest.mark.parametrize(
    ("patience", "expected"),
    [
        (1.0, [(2, 0), (0,)]),
        (1.5, [(2, 2, 0), (2, 0), (0,)]),
        (2.0, [(2, 2, 2, 0), (2, 2, 0), (2, 0), (0,)]),
        (0.5, [(0,)]),
        (0.1, [(0,)]),  # the pool has one place at least
    ],
)
def test_patience_makes_the_pool_larger(patience, expected):
    found = search(Table(LATE), max_tokens=9, beam_size=2, num_hypotheses=9, patience=patience)
    assert tokens_of(found) == expected


@pytest.mark.parametrize(("patience", "expected"), [(0.7, [(0,)]), (1.3, [(2, 2, 0), (2, 0), (0,)])])
def test_every_group_has_the_patience_of_a_beam_of_its_size(patience, expected):
    """Two places of a beam of two, times 1.3, are three; half of a beam of four, times 1.3, would be two."""
    found = search(Table(LATE), max_tokens=9, beam_size=4, num_beam_groups=2, num_hypotheses=9, patience=patience)
    assert tokens_of(found) == [tokens for tokens in expected for _ in range(2)]


def test_without_early_stopping_the_search_goes_on_while_a_live_hypothesis_scores_better_than_the_worst_found():
    found = search(Table(LATE), max_tokens=9, beam_size=2, num_hypotheses=2, early_stopping="false")
    assert tokens_of(found) == [(2, 2, 2, 0), (2, 2, 0)]


HOPEFUL = {  # 0 -0.693 and 2 0 -0.655 are found; 3 3 has -0.805 then, but 3 3 3 0 will have -0.402
    (): (0.5, 0.0, 0.3, 0.2),
    (2,): (0.9, 0.0, 0.1, 0.0),
    (3,): (0.0, 0.0, 0.0, 1.0),
    (2, 2): (0.5, 0.0, 0.0, 0.5),
    (3, 3): (0.0, 0.0, 0.0, 1.0),
    (3, 3, 3): (1.0, 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize(
    ("early_stopping", "max_tokens", "length_penalty", "expected"),
    [
        ("false", 4, 1.0, (2, 0)),
        ("never", 4, 1.0, (3, 3, 3, 0)),  # 3 3 may still reach -1.609 / 4
        ("never", 4, 0.0, (0,)),  # nothing that goes on gets better: -1.609 against -1.309
        ("false", 4, 0.0, (0,)),
    ],
)
def test_never_stops_only_when_even_the_longest_continuation_could_not_win(
    early_stopping, max_tokens, length_penalty, expected
):
    (answer,) = search(
        Table(HOPEFUL),
        max_tokens=max_tokens,
        beam_size=2,
        early_stopping=early_stopping,
        length_penalty=length_penalty,
    )
    assert answer.tokens == expected


def test_a_live_hypothesis_that_equals_the_worst_found_does_not_keep_the_search_going():
    """After two steps 0 0.25 and 3 0 0.25 are found and 2 2 has 0.25: with a penalty of 0 all score the same."""
    table = Table({(): (0.25, 0.0, 0.5, 0.25), (2,): (0.5, 0.0, 0.5, 0.0), (2, 2): (1.0, 0.0, 0.0, 0.0)})
    found = search(
        table, max_tokens=9, beam_size=2, num_hypotheses=9, length_penalty=0.0, early_stopping="false", patience=1.0
    )
    assert tokens_of(found) == [(0,), (2, 0)]


def test_at_max_tokens_a_hypothesis_ends_without_the_end_token():
    found = search(Table({}), max_tokens=2, beam_size=2, num_hypotheses=2, process=without(0))
    assert tokens_of(found) == [(1, 1), (1, 2)]
    assert found[0].score == pytest.approx(math.log(0.0625) / 2)


def test_ties_go_to_the_better_hypothesis_then_to_the_lower_token_then_to_the_earlier_answer():
    assert tokens_of(search(Table({}), max_tokens=1, beam_size=3, num_hypotheses=3)) == [(0,), (1,), (2,)]
    table = Table({(): (0.0, 0.5, 0.5, 0.0)})
    assert tokens_of(search(table, max_tokens=2, beam_size=2, num_hypotheses=2)) == [(1, 0), (1, 1)]


def without(*banned):
    def process(logprobs_V, tokens):
        scores_V = logprobs_V.copy()
        scores_V[list(banned)] = -np.inf
        return scores_V

    return process


def test_process_changes_what_is_ranked_and_not_what_is_reported():
    def prefer_one(logprobs_V, tokens):
        return logprobs_V + np.array([0, 5, 0, 0], np.float32)

    best, _ = search(Table(GARDEN_PATH), max_tokens=2, beam_size=2, num_hypotheses=2, process=prefer_one)
    assert best.tokens == (1, 1)
    assert best.score == pytest.approx((math.log(0.6 * 0.3) + 10) / 2)
    assert best.token_logprobs == pytest.approx([math.log(0.6), math.log(0.3)])


def test_process_sees_the_new_tokens():
    seen = set()

    def watch(logprobs_V, tokens):
        seen.add(tuple(tokens))
        return logprobs_V

    search(Table(GARDEN_PATH), max_tokens=2, beam_size=2, process=watch)
    assert seen == {(), (1,), (2,)}


def test_when_nothing_may_follow_there_is_no_answer():
    assert search(Table({}), max_tokens=2, beam_size=2, process=without(0, 1, 2, 3)) == []


def test_stop_ends_a_hypothesis_as_the_end_token_does():
    (answer,) = search(Table(LATE), max_tokens=9, beam_size=2, patience=2.0, stop=lambda tokens: len(tokens) == 3)
    assert answer.tokens == (2, 2, 2)
    assert answer.score == pytest.approx(math.log(0.7 * 0.8 * 0.9) / 3)


def test_every_hypothesis_begins_with_the_prefix_and_pays_for_it():
    best, second = search(Table(LATE), max_tokens=4, beam_size=2, num_hypotheses=2, prefix=[2, 2])
    assert (best.tokens, second.tokens) == ((2, 2, 2, 0), (2, 2, 0))
    assert best.score == pytest.approx(math.log(0.7 * 0.8 * 0.9) / 4)


def test_a_prefix_that_ends_the_sentence_is_the_answer():
    (answer,) = search(Table(GARDEN_PATH), max_tokens=2, beam_size=3, num_hypotheses=3, prefix=[2, 0])
    assert answer.tokens == (2, 0)
    assert answer.score == pytest.approx(math.log(0.36) / 2)


def test_the_coverage_term_prefers_the_answer_that_looked_at_the_whole_source():
    table = Table(GARDEN_PATH, coverage={(2, 0): [0.1, 1.5], (1, 0): [1.0, 0.9]})
    best, second = search(table, max_tokens=2, beam_size=2, num_hypotheses=2, length_penalty=0.0, coverage_penalty=0.5)
    assert (best.tokens, second.tokens) == ((1, 0), (2, 0))
    assert best.score == pytest.approx(math.log(0.24) + 0.5 * math.log(0.9))
    assert second.score == pytest.approx(math.log(0.36) + 0.5 * math.log(0.1))


ONE_WAY = {(): (0.0, 0.5, 0.4, 0.1), (1,): (1.0, 0.0, 0.0, 0.0), (2,): (1.0, 0.0, 0.0, 0.0)}


def test_groups_avoid_the_tokens_of_the_groups_before_them():
    found = search(
        Table(ONE_WAY), max_tokens=3, beam_size=2, num_hypotheses=2, num_beam_groups=2, diversity_penalty=0.5
    )
    assert tokens_of(found) == [(1, 0), (2, 0)]
    assert [answer.score for answer in found] == pytest.approx([math.log(0.5) / 2, math.log(0.4) / 2])


def test_a_group_that_takes_the_same_token_pays_in_its_score_and_not_in_its_log_probability():
    """log 0.5 - 0.1 still is more than log 0.4. 0 ends both, and only tokens of live hypotheses are counted."""
    found = search(
        Table(ONE_WAY), max_tokens=3, beam_size=2, num_hypotheses=2, num_beam_groups=2, diversity_penalty=0.1
    )
    assert tokens_of(found) == [(1, 0), (1, 0)]
    assert [answer.score for answer in found] == pytest.approx([math.log(0.5) / 2, (math.log(0.5) - 0.1) / 2])
    assert found[1].token_logprobs == pytest.approx([math.log(0.5), 0.0])


def test_a_third_group_pays_for_both_before_it():
    """1 costs 2 * 0.2 by then: log 0.5 - 0.4 is less than log 0.4; the second group still prefers it."""
    found = search(
        Table(ONE_WAY), max_tokens=3, beam_size=3, num_hypotheses=3, num_beam_groups=3, diversity_penalty=0.2
    )
    assert sorted(tokens_of(found)) == [(1, 0), (1, 0), (2, 0)]


class RandomTable(Table):
    """Every list of tokens has its own random distribution."""

    def __init__(self, seed):
        super().__init__({})
        self.seed = seed

    def logprobs(self, hypotheses):
        rows = [np.random.default_rng([self.seed, *tokens, 7]).dirichlet(np.full(4, 0.5)) for tokens in hypotheses]
        return np.log(np.array(rows, np.float32))


def every_answer(table, max_tokens):
    for length in range(1, max_tokens + 1):
        for words in itertools.product((1, 2, 3), repeat=length - 1):
            for last in range(4) if length == max_tokens else (0,):
                yield (*words, last)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, -1.0])
def test_a_beam_as_wide_as_the_tree_ranks_every_answer_there_is(seed, length_penalty):
    table = RandomTable(seed)
    scores = {}
    for tokens in every_answer(table, 4):
        logprobs = [float(table.logprobs([tokens[:i]])[0, token]) for i, token in enumerate(tokens)]
        scores[tokens] = sum(logprobs) / len(tokens) ** length_penalty
    found = search(table, max_tokens=4, beam_size=256, num_hypotheses=256, length_penalty=length_penalty)
    assert len(found) == len(scores) == 121
    assert tokens_of(found) == sorted(scores, key=lambda tokens: -scores[tokens])
    assert [answer.score for answer in found] == pytest.approx(sorted(scores.values(), reverse=True))


def tiny(architecture):
    return tiny_model(tiny_config(architecture, max_target_len=12))


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
@pytest.mark.parametrize("first", [4, 9, 13, 17])
def test_a_beam_of_one_is_greedy_search(architecture, first):
    model = tiny(architecture)
    source = [first, 5, 2] if model.config.has_encoder else []
    (answer,) = beam_search(model, [1, first], source=source, max_tokens=11)
    assert list(answer.tokens) == greedy(model, [1, first], source=source, max_tokens=11)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_the_log_probabilities_of_an_answer_are_those_of_the_model(architecture):
    model = tiny(architecture)
    source = [4, 5, 2] if model.config.has_encoder else []
    found = beam_search(model, [1, 6], source=source, max_tokens=5, beam_size=4, num_hypotheses=4)
    assert len(set(tokens_of(found))) == 4
    for answer in found:
        logprobs = score(model, [1, 6], answer.tokens, source=source)
        assert answer.token_logprobs == pytest.approx(logprobs, abs=1e-5)
        assert answer.score == pytest.approx(sum(logprobs) / len(answer.tokens), abs=1e-5)


def test_coverage_is_that_of_the_models_attention():
    model, source = tiny("encoder_decoder"), [4, 5, 6, 7, 8, 2]
    found = beam_search(model, [1], source=source, max_tokens=4, beam_size=3, num_hypotheses=3, coverage_penalty=0.2)
    assert len(found) == 3
    for answer in found:
        coverage_S = cross_attention(model, [1, *answer.tokens[:-1]], source=source).mean((0, 1)).sum(0)
        assert (coverage_S < 1).any()
        expected = sum(answer.token_logprobs) / len(answer.tokens) + 0.2 * float(coverage_S.clamp(max=1).log().sum())
        assert answer.score == pytest.approx(expected, abs=1e-5)


def test_what_does_not_fit_the_model_is_refused():
    with pytest.raises(ValueError, match="need 13 positions"):
        beam_search(tiny("decoder"), [1], max_tokens=13, beam_size=2)
