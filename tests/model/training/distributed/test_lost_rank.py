"""What a run keeps when another rank is lost, with the loss simulated in a run of one process."""

from typing import Any

import pytest

from model.fine_tuning import FineTuning
from model.training.distributed.ranks import RankLost
from model.training.distributed.replicas import Replica
from model.training.early_stopping import observe
from model.training.start import Start
from model.training.train import train
from model.training.training_state import list_states
from tests.model.training.test_train import DATA, losses, one_thread, weights  # noqa: F401
from tests.tiny_training import MODEL, TRAIN


def loses_a_rank(monkeypatch, name, call):
    """Lets this call of a method of the replica, counted from 1, find a rank lost."""
    method, calls = getattr(Replica, name), []

    def counted(*arguments, **settings):
        calls.append(name)
        if len(calls) == call:
            raise RankLost("a rank is lost")
        return method(*arguments, **settings)

    monkeypatch.setattr(Replica, name, counted)


@pytest.mark.parametrize("patience", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_the_validation_in_which_a_rank_was_lost_is_repeated(tmp_path, monkeypatch, patience):
    observed = []

    def observing(*given):
        observed.append(given)
        return observe(*given)

    monkeypatch.setattr("model.training.train.observe", observing)
    arguments: Any = {"data": DATA, "start": Start(tuning=FineTuning(patience=patience))}
    whole = train(MODEL, TRAIN, out=tmp_path / "whole", **arguments)
    count, out = len(observed), tmp_path / "run"
    with monkeypatch.context() as patched:
        loses_a_rank(patched, "loss_per_token", 2)
        with pytest.raises(RankLost, match="a rank is lost; the state after step 12 is saved; go on with --resume"):
            train(MODEL, TRAIN, out=out, **arguments)
    train(MODEL, TRAIN, out=out, resume=True, **arguments)
    assert losses(out) == losses(whole)
    assert weights(out) == weights(whole)
    assert len(observed) == 2 * count


@pytest.mark.parametrize(
    ("steps", "kept"),
    [(0, "no step was complete; start again with --resume"), (2, "the state after step 2 is saved; go on with --res")],
)
def test_a_state_is_claimed_only_if_there_is_one(tmp_path, monkeypatch, steps, kept):
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        loses_a_rank(patched, "backward", steps * TRAIN.accumulate + 2)
        with pytest.raises(RankLost, match=f"a rank is lost; {kept}"):
            train(MODEL, TRAIN, data=DATA, out=out)
    assert len(list_states(out / "states")) == bool(steps)
    train(MODEL, TRAIN, data=DATA, out=out, resume=True)
