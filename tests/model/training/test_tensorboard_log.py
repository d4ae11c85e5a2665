import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from model.checkpoints.checkpoint import load_checkpoint
from model.config import ConfigError
from model.fine_tuning import FineTuning
from model.training.progress import Display
from model.training.start import Start
from model.training.tensorboard_log import EVENTS, check_events, event_log
from model.training.train import Interrupted, train
from model.training.training_state import TrainError
from tests.model.training.test_train import DATA, after, losses
from tests.tiny_training import MODEL, TRAIN

HISTORY = [
    {"step": 10, "tokens": 500, "seconds": 1.5, "train_loss": 4.0},
    {"step": 10, "tokens": 500, "seconds": 1.6, "validation_loss": 3.5},
    {"step": 20, "tokens": 990, "seconds": 3.0, "train_loss": 0.5},
]


def read(directory):
    """Steps and values of each scalar, from all event files, and nothing forgotten."""
    events = EventAccumulator(str(directory), purge_orphaned_data=False)
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def unreported(message):
    raise AssertionError(message)


def write(directory, history, *rows, run="ab"):
    with event_log(directory, run, history, unreported) as write_event:
        for row in rows:
            write_event(row)


def test_scalars_have_the_names_and_steps_of_metrics_csv(tmp_path):
    write(tmp_path, [], *HISTORY)
    assert read(tmp_path) == {
        "tokens": [(10, 500.0), (20, 990.0)],
        "seconds": [(10, 1.5), (20, 3.0)],
        "train_loss": [(10, 4.0), (20, 0.5)],
        "validation_loss": [(10, 3.5)],
    }


def test_a_resumed_run_has_every_step_once(tmp_path):
    """Its state ends at step 10, but events of step 20 were written before it was killed."""
    write(tmp_path, [], *HISTORY)
    write(tmp_path, HISTORY[:2], {**HISTORY[2], "train_loss": 0.25})
    assert read(tmp_path)["train_loss"] == [(10, 4.0), (20, 0.25)]
    assert len(list(tmp_path.glob(EVENTS))) == 1


def test_events_of_others_stay_and_are_refused(tmp_path):
    write(tmp_path, [], HISTORY[0], run="ab")
    check_events(tmp_path, "ab")
    for run in ("", "b", "cd"):
        with pytest.raises(
            TrainError, match=r"holds the events of another run, events\..*\.ab\.glossa; choose another"
        ):
            check_events(tmp_path, run)
    (tmp_path / "events.out.tfevents.1.host.2.0").write_bytes(b"")
    with pytest.raises(TrainError, match=r"holds the events of another run, events\.out\.tfevents\.1\.host\.2\.0; ch"):
        check_events(tmp_path, "ab")
    write(tmp_path, [], HISTORY[0], run="b")
    assert len(list(tmp_path.glob(EVENTS))) == 3


def test_a_run_of_the_same_settings_does_not_take_over_the_events(tmp_path):
    config = TRAIN.replace(steps=2)
    train(MODEL, config, data=DATA, out=tmp_path / "one", tensorboard=tmp_path / "events")
    before = read(tmp_path / "events")
    with pytest.raises(TrainError, match="holds the events of another run"):
        train(MODEL, config, data=DATA, out=tmp_path / "two", tensorboard=tmp_path / "events", resume=True)
    assert read(tmp_path / "events") == before
    assert not (tmp_path / "two").exists()


def test_events_may_lie_in_the_checkpoint(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(MODEL, TRAIN, data=DATA, out=out, tensorboard=out / "tb", should_stop=after(10))
    train(MODEL, TRAIN, data=DATA, out=out, tensorboard=out / "tb", resume=True)
    assert max(step for step, _ in read(out / "tb")["train_loss"]) == TRAIN.steps
    assert load_checkpoint(out).metrics["steps"] == TRAIN.steps


def test_a_run_that_cannot_start_leaves_no_directory_of_events(tmp_path):
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "letter.txt").write_text("dear")
    with pytest.raises(TrainError, match="holds other files"):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "held", tensorboard=tmp_path / "held" / "tb")
    start = Start(tuning=FineTuning(freeze=("x",)))
    with pytest.raises(ConfigError, match="freeze: 'x' matches no parameter"):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "run", tensorboard=tmp_path / "run" / "tb", start=start)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["held", "letter.txt"]


def test_a_missing_package_is_named_with_the_fix(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(TrainError, match=r"needs the package tensorboard.*pip install 'glossa\[tensorboard\]'"):
        check_events(tmp_path / "events", "")
    assert not (tmp_path / "events").exists()


def test_a_directory_that_is_a_file_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").write_text("dear")
    with pytest.raises(TrainError, match=r"file/tb: cannot hold events: \S+/file is not a directory; choose"):
        train(MODEL, TRAIN, data=DATA, out=tmp_path / "run", tensorboard=tmp_path / "file" / "tb")
    assert not (tmp_path / "run").exists()


def test_an_error_of_the_disk_is_reported_once_and_ends_the_events_alone(tmp_path):
    reported: list[str] = []
    with event_log(tmp_path / "gone" / "file", "ab", [], reported.append) as write_event:
        write_event(HISTORY[0])
    assert reported == []
    (tmp_path / "file").write_text("dear")
    with event_log(tmp_path / "file", "ab", [], reported.append) as write_event:
        write_event(HISTORY[0])
        write_event(HISTORY[2])
    (message,) = reported
    assert message.endswith("the training goes on without them")
    assert "file: events cannot be written: " in message


def test_an_interrupted_training_continues_its_events(tmp_path):
    out, events = tmp_path / "run", tmp_path / "events"
    with pytest.raises(Interrupted):
        train(MODEL, TRAIN, data=DATA, out=out, tensorboard=events, should_stop=after(10))
    train(MODEL, TRAIN, data=DATA, out=out, tensorboard=events, resume=True, display=Display())
    for name, scalars in read(events).items():
        assert [step for step, _ in scalars] == sorted({step for step, _ in scalars}), name
        rows = {int(row["step"]): float(row[name]) for row in losses(out) if row.get(name)}
        if rows:
            assert dict(scalars) == pytest.approx(rows, rel=1e-6), name
    assert {"train_loss", "validation_loss", "learning_rate", "flops", "peak_share"} <= read(events).keys()
