import random
from itertools import combinations

import pytest

from lectures.rouge import longest_common, rouge_l

REFERENCE = "police killed the gunman"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("police kill the gunman", 3 / 4),  # S2 and S3 of Lin 2004, section 3.1
        ("the gunman kill police", 2 / 4),
        (REFERENCE, 1),
        ("police", 2 / 5),  # precision 1, recall 1/4
        ("a b police c killed d the e gunman f", 8 / 14),  # precision 2/5, recall 1
        ("thieves", 0),
        ("", 0),
    ],
)
def test_score_of_hand_computed_examples(text, score):
    assert rouge_l(text, REFERENCE) == pytest.approx(score)


def test_longest_common_subsequence_is_that_of_trying_all():
    rng = random.Random(1)
    for _ in range(100):
        left, right = (rng.choices("abc", k=rng.randrange(7)) for _ in range(2))
        shared = [
            size for size in range(len(left) + 1) if set(combinations(left, size)) & set(combinations(right, size))
        ]
        assert longest_common(left, right) == max(shared)
