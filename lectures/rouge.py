"""ROUGE-L: how long a sequence of words a text shares with its reference, in order but not in a row (Lin 2004, section
3.1). Of whole texts, without stemming."""

from __future__ import annotations

from collections.abc import Sequence


def rouge_l(text: str, reference: str) -> float:
    """F1 of precision and recall of the longest common subsequence of words (eqs. 2 to 4 with beta 1), 0 to 1."""
    words, wanted = text.split(), reference.split()
    common = longest_common(words, wanted)
    return 2 * common / (len(words) + len(wanted)) if common else 0.0


def longest_common(left: Sequence[str], right: Sequence[str]) -> int:
    """Words of the longest common subsequence."""
    lengths = [0] * (len(right) + 1)  # of the words of the left so far, with each beginning of the right
    for word in left:
        before = 0  # of the words before this one, with the beginning before this place
        for place, other in enumerate(right, start=1):
            kept = lengths[place]
            lengths[place] = before + 1 if word == other else max(kept, lengths[place - 1])
            before = kept
    return lengths[-1]
