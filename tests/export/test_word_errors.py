"""Which words of an answer are right: compared with every alignment there is."""

import functools
import random

import pytest

from export.word_errors import aligned_words, right_words


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("Das ist gut.", "Das ist gut.", "1111"),
        ("Das war gut.", "Das ist sehr gut.", "1011"),
        ("gut ist das", "das ist gut", "010"),
        ("das das Haus", "das Haus", "011"),
        ("das Haus", "Das Haus", "01"),
        ("a b", "", "00"),
        ("", "a b", ""),
    ],
)
def test_words_that_are_aligned_with_themselves_are_right(answer, reference, expected):
    assert [int(one) for one in right_words(answer, reference)] == [int(digit) for digit in expected]


def best_alignment(answer, reference):
    """The fewest edits and, with these, the most equal words, of all alignments."""

    @functools.cache
    def best(i, j):
        if i == len(answer) or j == len(reference):
            return len(answer) - i + len(reference) - j, 0
        edits, equal = best(i + 1, j + 1)
        is_equal = answer[i] == reference[j]
        found = [(edits + (not is_equal), equal - is_equal)]
        found += [(edits + 1, equal) for edits, equal in (best(i + 1, j), best(i, j + 1))]
        return min(found)

    return best(0, 0)


def test_right_words_are_those_of_a_best_alignment():
    draw = random.Random(4)
    for _ in range(300):
        answer, reference = (draw.choices("abc", k=draw.randint(0, 7)) for _ in range(2))
        edits, equal = best_alignment(tuple(answer), tuple(reference))
        right = aligned_words(answer, reference)
        assert sum(right) == -equal, (answer, reference)
        kept = iter(reference)
        assert all(word in kept for word, is_right in zip(answer, right, strict=True) if is_right), "in order"
        assert edits >= max(len(answer), len(reference)) - sum(right)
