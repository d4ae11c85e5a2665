from model.training.schedule import batch_seed, step_groups
from model.training.training_state import Progress


class Plans:
    """Five batches an epoch."""

    dropped, tokens = 0, 5

    def plan(self, epoch):
        return [[10 * epoch + place] for place in range(5)]

    def load(self, keys):
        raise NotImplementedError


def test_groups_cross_epochs_and_go_on_from_a_position():
    progress = Progress()
    groups = step_groups(Plans(), progress, 2)
    assert [next(groups) for _ in range(3)] == [[[0], [1]], [[2], [3]], [[4], [10]]]
    assert (progress.epoch, progress.position) == (1, 1)
    resumed = step_groups(Plans(), Progress(epoch=1, position=1), 2)
    assert next(resumed) == next(groups) == [[11], [12]]


def test_every_batch_of_a_run_has_a_seed_of_its_own():
    seeds = {batch_seed(seed, step, place) for seed in (1, 2) for step in range(10) for place in range(4)}
    assert len(seeds) == 80
    assert batch_seed(1, 2, 3) == batch_seed(1, 2, 3)
