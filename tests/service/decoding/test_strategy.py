import numpy as np
import pytest

from service.decoding.strategy import Greedy, NotFinite


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_greedy_takes_the_largest_of_each_row(rows):
    logits_RV = np.random.default_rng(1).standard_normal((rows, 40)).astype(np.float32)
    tokens, parents = Greedy().select(logits_RV, [])
    assert tokens == [max(range(40), key=lambda token: line[token]) for line in logits_RV]
    assert parents == list(range(rows))
    assert all(type(token) is int for token in tokens)


def test_greedy_takes_the_lowest_of_equals():
    assert Greedy().select(np.array([[0, 3, 3, 1], [2, 2, 2, 2]], np.float32), []).tokens == [1, 0]


def test_greedy_leaves_the_logits_alone():
    logits_RV = np.array([[0, 3, 1]], np.float32)
    logits_RV.setflags(write=False)
    Greedy().select(logits_RV, [])


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused_by_row(poison):
    logits_RV = np.zeros((3, 4), np.float32)
    logits_RV[1, 2] = poison
    with pytest.raises(NotFinite, match=r"rows \[1\]"):
        Greedy().select(logits_RV, [])
