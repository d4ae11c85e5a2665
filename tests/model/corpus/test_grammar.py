import math
import random
from collections import Counter

import pytest

from model.corpus.grammar import Choice, Join, Value, one_of
from tests.model.corpus.derivations import count, drawn, entropy, outcomes


def _small():
    letters = Choice([one_of("ab"), Value("c")], [3, 1])
    return Choice([Join(lambda *parts: "".join(parts), letters, one_of("xyz")), Value("none")], [1, 2])


def test_outcomes_are_all_derivations_with_probabilities_that_sum_to_one():
    found = dict(outcomes(_small()))
    assert len(found) == count(_small()) == 3 * 3 + 1
    assert math.isclose(sum(map(math.exp, found.values())), 1.0)
    assert math.isclose(found["ax"], math.log(1 / 3 * 3 / 8 * 1 / 3))
    assert math.isclose(found["cz"], math.log(1 / 3 * 1 / 4 * 1 / 3))


def test_entropy_is_the_mean_of_the_outcomes():
    expected = -sum(math.exp(logprob) * logprob for _, logprob in outcomes(_small()))
    assert math.isclose(entropy(_small()), expected)


def test_draws_follow_the_probabilities():
    rule, uniform = _small(), random.Random(1).random
    expected = dict(outcomes(rule))
    values = [rule.draw(uniform) for _ in range(20_000)]
    for value, times in Counter(values).items():
        assert times / len(values) == pytest.approx(math.exp(expected[value]), abs=0.01)
    again = random.Random(1).random
    for value in values[:100]:
        assert drawn(rule, again) == (value, pytest.approx(expected[value]))


def test_the_largest_random_number_is_within_the_options():
    assert Choice([Value("a"), Value("b")], [1, 3]).draw(lambda: 1.0 - 2**-53) == "b"


@pytest.mark.parametrize(("options", "weights"), [(0, None), (2, [1]), (2, [1, 0])])
def test_a_choice_without_options_or_with_wrong_weights_is_refused(options, weights):
    with pytest.raises(ValueError, match="weights of at least 1"):
        Choice([Value(n) for n in range(options)], weights)
