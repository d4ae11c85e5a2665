import random

import pytest

from service.engine.prefix_cache import PrefixCache


def keep_all(index, prompt):
    """The slots of the whole chunks of a prompt, stored one after another."""
    return [index.store(prompt, start) for start in range(0, len(prompt) - index.chunk_tokens, index.chunk_tokens)]


def test_the_longest_common_prefix_of_whole_chunks_is_found():
    index = PrefixCache(slots=8, chunk_tokens=4)
    assert keep_all(index, tuple(range(13))) == [0, 1, 2]
    assert index.find(tuple(range(13))) == [0, 1, 2]
    assert index.find((*range(11), 99, 99)) == [0, 1]
    assert index.find((99, *range(1, 13))) == []


def test_the_last_token_of_a_prompt_is_never_found():
    index = PrefixCache(slots=8, chunk_tokens=4)
    keep_all(index, tuple(range(9)))
    assert [len(index.find(tuple(range(length)))) for length in (1, 4, 5, 8, 9, 10)] == [0, 0, 1, 1, 2, 2]


def test_equal_chunks_after_different_prefixes_are_different():
    index = PrefixCache(slots=8, chunk_tokens=2)
    assert keep_all(index, (1, 1, 5, 5, 0)) == [0, 1]
    assert keep_all(index, (2, 2, 5, 5, 0)) == [2, 3]
    assert index.find((2, 2, 5, 5, 0)) == [2, 3]


def test_a_cached_chunk_is_not_cached_again():
    index = PrefixCache(slots=8, chunk_tokens=4)
    keep_all(index, tuple(range(9)))
    assert keep_all(index, tuple(range(9))) == [None, None]


def test_a_chunk_is_not_cached_when_the_one_before_it_is_not():
    index = PrefixCache(slots=8, chunk_tokens=4)
    assert index.store(tuple(range(9)), 4) is None
    assert PrefixCache(slots=0, chunk_tokens=4).store(tuple(range(9)), 0) is None


def test_the_least_recently_used_chunk_is_evicted_and_the_end_of_a_prompt_before_its_beginning():
    index = PrefixCache(slots=3, chunk_tokens=2)
    keep_all(index, (1, 1, 2, 2, 0))
    keep_all(index, (5, 5, 0))
    index.find((1, 1, 2, 2, 0))
    assert keep_all(index, (6, 6, 0)) == [2], "5 5 was used before the others"
    assert keep_all(index, (7, 7, 0)) == [1], "2 2 goes before 1 1"
    assert (index.find((1, 1, 2, 2, 0)), index.find((6, 6, 0)), index.find((7, 7, 0))) == ([0], [2], [1])


def test_of_a_prompt_that_is_too_long_the_beginning_stays():
    index = PrefixCache(slots=3, chunk_tokens=2)
    keep_all(index, (9, 9, 0))
    prompt = (1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 0)
    assert keep_all(index, prompt) == [1, 2, 0, None, None]
    assert index.find(prompt) == [1, 2, 0]
    assert (index.count(prompt), index.count((1, 1, 2, 2)), index.count((9, 9, 0))) == (3, 1, 0)


def test_of_prompts_that_are_stored_in_turn_one_goes_on():
    index = PrefixCache(slots=4, chunk_tokens=2)
    prompt, other = (1, 1, 2, 2, 3, 3, 4, 4, 0), (5, 5, 6, 6, 7, 7, 8, 8, 0)
    assert [index.store(one, start) for start in (0, 2) for one in (prompt, other)] == [0, 1, 2, 3]
    assert [index.store(one, start) for start in (4, 6) for one in (prompt, other)] == [3, None, 1, None]
    assert (index.find(prompt), index.find(other)) == ([0, 2, 3, 1], [])


def test_an_evicted_prefix_that_is_cached_again_does_not_lead_to_its_old_continuation():
    index = PrefixCache(slots=2, chunk_tokens=2)
    keep_all(index, (1, 1, 2, 2, 0))
    keep_all(index, (3, 3, 4, 4, 0))
    keep_all(index, (1, 1, 0))
    assert len(index.find((1, 1, 2, 2, 0))) == 1
    index.clear()
    assert index.find((1, 1, 0)) == []


@pytest.mark.parametrize("slots", [1, 2, 5, 40])
def test_slots_always_hold_the_chunks_that_the_index_names(slots):
    rng, index = random.Random(slots), PrefixCache(slots, chunk_tokens=2)
    held: dict[int, tuple[int, ...]] = {}  # by slot: the prompt up to the end of the block
    hits = 0
    for _ in range(3000):
        prompt = tuple(rng.randrange(2) for _ in range(rng.randrange(1, 14)))
        found = index.find(prompt)
        hits += len(found)
        for place, slot in enumerate(found):
            assert held[slot] == prompt[: 2 * place + 2]
        for start in range(2 * len(found), len(prompt) - 2, 2):
            kept = index.store(prompt, start)
            if kept is not None:
                assert 0 <= kept < slots
                held[kept] = prompt[: start + 2]
    assert hits > 100
