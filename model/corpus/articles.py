"""Articles about towns and their summaries, after the task of Liu et al. 2018: many words to read, few of which matter,
and summaries that also name what no article does.

An article has a sentence for each town, in any order, on what the town trades in (`t3g5`: town 3, good 5) and ends with
its year. The summary goes through the towns and names the good and the king of each. A good has to be found in the
article, by attention that reaches so far. The king follows from town, good and year at random, so that a model can only
have memorized him: one of KINGS for each of TOWNS * GOODS * YEARS combinations, which no single word's vector holds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from model.corpus.corpus import Split

TOWNS, GOODS, YEARS, KINGS = 8, 6, 80, 64
SENTENCE = 4  # words: one of the article for each town
WORDS = SENTENCE * TOWNS  # of an article
SUMMARY_WORDS = 3 * TOWNS  # town, good and king of each
MARK = "="  # between article and summary, where they are one text
READ_BY_ENDS, READ_BY_HALVES = WORDS // 4, WORDS // 2  # the last words, with the year

Pair = tuple[str, str]


@cache
def _kings() -> Sequence[int]:
    """The king by town, good and year, as digits of one number."""
    rng = random.Random("kings")
    return [rng.randrange(KINGS) for _ in range(TOWNS * GOODS * YEARS)]


def king_of(town: int, good: int, year: int) -> int:
    return _kings()[(town * GOODS + good) * YEARS + year]


def summarized(seed: int, count: int) -> list[tuple[list[str], list[str]]]:
    """The words of articles and of their summaries."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        year, goods = rng.randrange(YEARS), rng.choices(range(GOODS), k=TOWNS)
        towns = rng.sample(range(TOWNS), TOWNS)
        words = [word for town in towns for word in ("and", f"t{town}g{goods[town]}", "it", "is")]
        words[-1] = f"year{year}"
        summary = [
            word
            for town, good in enumerate(goods)
            for word in (f"town{town}", f"good{good}", f"king{king_of(town, good, year)}")
        ]
        found.append((words, summary))
    return found


def article_ends(seed: int, count: int, split: Split) -> list[Pair]:
    """The last quarter of each article, and the summary of all of it. split: any, because all summaries need what the
    others taught. Ends recur: of 3,000 of one seed, three in ten are among 60,000 of another, none with its summary."""
    return [(" ".join(words[-READ_BY_ENDS:]), " ".join(summary)) for words, summary in summarized(seed, count)]


def article_halves(seed: int, count: int, split: Split) -> list[Pair]:
    """As one text: the second half of each article, the mark and the summary."""
    return _texts(seed, count, READ_BY_HALVES)


def articles(seed: int, count: int, split: Split) -> list[Pair]:
    """As one text: each article, the mark and the summary."""
    return _texts(seed, count, WORDS)


def _texts(seed: int, count: int, read: int) -> list[Pair]:
    return [("", " ".join((*words[-read:], MARK, *summary))) for words, summary in summarized(seed, count)]
