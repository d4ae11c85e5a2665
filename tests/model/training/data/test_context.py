from collections import Counter

import pytest

from model.training.data.context import context_sizes, contexts, fitting, joined


def test_every_number_of_sentences_is_as_likely_as_far_as_the_document_has_them():
    counts = context_sizes([400] * 20, 3, seed=1)
    assert counts == context_sizes([400] * 20, 3, seed=1) != context_sizes([400] * 20, 3, seed=2)
    assert all(count == pytest.approx(2000, rel=0.1) for count in Counter(counts).values())
    assert sorted(Counter(counts)) == [0, 1, 2, 3]
    assert set(context_sizes([1] * 50, 3, seed=1)) == {0}
    assert max(context_sizes([2] * 50, 3, seed=1)) == 1
    assert context_sizes([4, 2], 0, seed=1) == [0] * 6
    assert context_sizes([], 3, seed=1) == []


def test_a_context_does_not_cross_documents():
    assert [list(one) for one in contexts([3, 1, 2], 2)] == [[], [0], [0, 1], [], [], [4]]
    assert [list(one) for one in contexts([3], 0)] == [[], [], []]


def test_sentences_are_joined_by_the_separator():
    assert joined([[5, 6]], None) == [5, 6]
    assert joined([[5, 6], [7], []], 4) == [5, 6, 4, 7, 4]


@pytest.mark.parametrize(
    ("source_room", "target_room", "count"), [(9, 9, 2), (8, 9, 1), (9, 8, 1), (3, 9, 0), (9, 3, 0)]
)
def test_the_last_sentences_that_fit_are_kept(source_room, target_room, count):
    """Of two sentences, 4 and 3 tokens on each side, each with its separator."""
    assert fitting([4, 3], [4, 3], source_room=source_room, target_room=target_room) == count
    assert fitting([], [], source_room=source_room, target_room=target_room) == 0
