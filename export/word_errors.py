"""Which words of an answer are right, by its reference: the tags OK and BAD of word-level quality estimation.

The answer is aligned with the reference by the least number of insertions, deletions and substitutions of words, as in
the WMT shared tasks on quality estimation (Specia et al. 2018), and a word is right if it is aligned with itself. Of
several such alignments, one with the most equal words counts. A synonym is counted as wrong, so the share of
right words understates the quality of an answer. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence

from export.bundle.confidence import word_spans

Cost = tuple[int, int]  # edits, and equal words negated: compared in this order


def right_words(answer: str, reference: str) -> list[bool]:
    """For each word of an answer (`word_spans`) whether it is aligned with the same word of the reference."""
    return aligned_words(words(answer), words(reference))


def words(text: str) -> list[str]:
    """The words of a text."""
    return [text[start:end] for start, end in word_spans(text)]


def aligned_words(answer: Sequence[str], reference: Sequence[str]) -> list[bool]:
    """For each word of an answer whether it is aligned with the same word of a reference."""
    rows: list[list[Cost]] = [[(column, 0) for column in range(len(reference) + 1)]]
    for number, word in enumerate(answer, start=1):
        above, row = rows[-1], [(number, 0)]
        for column, other in enumerate(reference, start=1):
            row.append(min(_after(above[column - 1], word == other), _edited(above[column]), _edited(row[-1])))
        rows.append(row)
    right, column = [False] * len(answer), len(reference)
    for number in range(len(answer), 0, -1):
        while column and rows[number][column] == _edited(rows[number][column - 1]):  # a word that the answer lacks
            column -= 1
        if column and rows[number][column] == _after(
            rows[number - 1][column - 1], is_equal := answer[number - 1] == reference[column - 1]
        ):
            right[number - 1] = is_equal
            column -= 1
    return right


def _after(cost: Cost, is_equal: bool) -> Cost:
    """The cost after two words that are aligned with each other."""
    return (cost[0], cost[1] - 1) if is_equal else (cost[0] + 1, cost[1])


def _edited(cost: Cost) -> Cost:
    """The cost after a word that one of the texts lacks."""
    return cost[0] + 1, cost[1]
