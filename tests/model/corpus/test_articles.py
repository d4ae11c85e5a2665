import re
from collections import Counter

from model.corpus.articles import (
    GOODS,
    KINGS,
    MARK,
    READ_BY_ENDS,
    READ_BY_HALVES,
    SENTENCE,
    SUMMARY_WORDS,
    TOWNS,
    WORDS,
    YEARS,
    article_ends,
    article_halves,
    articles,
    king_of,
    summarized,
)


def facts(words):
    return dict(re.findall(r"\bt(\d+)g(\d+)\b", " ".join(words)))


def test_summary_states_each_fact_of_the_article_in_the_order_of_towns():
    for words, summary in summarized(1, 50):
        assert len(words) == WORDS
        assert len(summary) == SUMMARY_WORDS
        assert summary[::3] == [f"town{town}" for town in range(TOWNS)]
        goods = [word.removeprefix("good") for word in summary[1::3]]
        assert facts(words) == {str(town): good for town, good in enumerate(goods)}


def test_kings_follow_from_town_good_and_year():
    for words, summary in summarized(2, 50):
        year = int(words[-1].removeprefix("year"))
        goods = [int(word.removeprefix("good")) for word in summary[1::3]]
        assert summary[2::3] == [f"king{king_of(town, good, year)}" for town, good in enumerate(goods)]


def test_kings_are_not_to_be_guessed():
    """Not from two of town, good and year, nor because one is frequent."""
    counts = Counter(king_of(t, g, y) for t in range(TOWNS) for g in range(GOODS) for y in range(YEARS))
    mean = TOWNS * GOODS * YEARS / KINGS
    assert set(counts) == set(range(KINGS))
    assert all(mean / 2 < count < 1.5 * mean for count in counts.values())
    assert len({king_of(3, 2, year) for year in range(YEARS)}) > KINGS / 2
    assert len({king_of(3, good, 7) for good in range(GOODS)}) > GOODS / 2
    assert len({king_of(town, 2, 7) for town in range(TOWNS)}) > TOWNS / 2


def test_facts_are_spread_over_articles():
    for words, _ in summarized(3, 50):
        assert len(facts(words[-READ_BY_ENDS:])) == TOWNS * READ_BY_ENDS / WORDS
        assert len(facts(words[-READ_BY_HALVES:])) == TOWNS * READ_BY_HALVES / WORDS
    last = {town for words, _ in summarized(3, 200) for town in facts(words[-SENTENCE:])}
    assert len(last) == TOWNS


def test_all_forms_are_of_the_same_articles():
    for (source, target), (_, half), (_, text) in zip(
        article_ends(4, 20, "train"), article_halves(4, 20, "test"), articles(4, 20, "train"), strict=True
    ):
        words, summary = text.split(f" {MARK} ")
        assert target == summary
        assert source.split() == words.split()[-READ_BY_ENDS:]
        assert half.split(f" {MARK} ") == [" ".join(words.split()[-READ_BY_HALVES:]), summary]
    assert articles(4, 20, "train") != articles(5, 20, "train")
