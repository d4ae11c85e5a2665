import pytest

from model.training.distributed.ranks import Ranks, RanksError, check_division
from tests.ranks import TRAIN

IDENTITY = {"model": {"d_ff": 32}, "train": {"seed": 1}, "data": "ab", "validation": None}


def rank(number, size):
    ranks = Ranks()
    ranks.rank, ranks.size = number, size
    return ranks


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_parts_of_all_ranks_are_the_items_in_order(size):
    items = list(range(8))
    parts = [rank(number, size).part(items) for number in range(size)]
    assert {len(part) for part in parts} == {8 // size}
    gathering = rank(0, size)
    gathering.gathered = lambda *_: parts
    assert gathering.in_order(parts[0]) == items


def test_a_step_that_cannot_be_divided_is_refused_with_the_fix():
    config = TRAIN.replace(accumulate=4, batch_tokens=900)
    with pytest.raises(RanksError) as error:
        check_division(config, rank(1, 3), IDENTITY, resume=False, shard=False)
    assert str(error.value) == (
        "accumulate: must be a multiple of the 3 processes, got 4; "
        "accumulate 3 with batch_tokens 1200 makes a step of as many tokens"
    )
    check_division(config, rank(1, 2), IDENTITY, resume=False, shard=True)


def test_one_process_has_nothing_to_shard():
    with pytest.raises(RanksError, match="--shard: needs at least 2 processes, got 1; start them with torchrun"):
        check_division(TRAIN, Ranks(), IDENTITY, resume=False, shard=True)


def test_every_field_of_a_run_is_compared():
    compared = dict[str, object]()
    ranks = rank(0, 2)
    ranks.check_same = compared.update
    check_division(TRAIN, ranks, IDENTITY, resume=True, shard=False)
    assert compared == {
        "model.d_ff": 32,
        "train.seed": 1,
        "data": "ab",
        "validation": None,
        "--resume": True,
        "--shard": False,
    }
