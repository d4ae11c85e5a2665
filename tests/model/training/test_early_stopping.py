import json

import pytest

from model.checkpoints.checkpoint import load_checkpoint
from model.config import ConfigError
from model.fine_tuning import FineTuning
from model.training.early_stopping import check_stopping, observe
from model.training.start import Start
from model.training.train import Interrupted, train
from model.training.training_state import DamagedStateWarning, Progress, list_states
from tests.model.training.test_train import DATA, ENCODER, PLURALS, after, one_thread, weights  # noqa: F401
from tests.tiny_training import MODEL, TRAIN

# So fast that the loss gets worse soon, and validated often.
HASTY = TRAIN.replace(
    steps=200, learning_rate=0.3, warmup_steps=0, validate_every_steps=2, save_every_steps=5, label_smoothing=0.0
)
STOPS = Start(tuning=FineTuning(patience=3))


def validations(out):
    header, *lines = (out / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    return {int(row["step"]): float(row["validation_loss"]) for row in rows if row["validation_loss"]}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return train(MODEL, HASTY, data=DATA, out=tmp_path_factory.mktemp("runs") / "stopped", start=STOPS)


def test_a_run_ends_after_the_patience_with_the_best_state(stopped):
    losses, metrics = validations(stopped), load_checkpoint(stopped).metrics
    best = min(losses, key=losses.__getitem__)
    assert metrics["best_step"] == best
    assert metrics["steps"] == best + 3 * 2 < HASTY.steps
    assert metrics["validation_loss"] == pytest.approx(losses[best], rel=1e-6)
    assert f"step-{best:08d}" in [path.name for path in list_states(stopped / "states")]
    state = stopped / "states" / f"step-{best:08d}" / "model.safetensors"
    assert state.read_bytes() == weights(stopped)


@pytest.mark.parametrize("stops", [[3, 5], pytest.param([9], marks=pytest.mark.slow)])
def test_an_interrupted_run_stops_at_the_same_step_with_the_same_bits(stopped, tmp_path, stops):
    for number, steps in enumerate(stops):
        try:
            train(
                MODEL, HASTY, data=DATA, out=tmp_path / "run", start=STOPS, resume=number > 0, should_stop=after(steps)
            )
        except Interrupted:
            continue
    train(MODEL, HASTY, data=DATA, out=tmp_path / "run", start=STOPS, resume=True)
    assert weights(tmp_path / "run") == weights(stopped)
    assert validations(tmp_path / "run") == validations(stopped)


def test_a_run_that_does_not_get_worse_ends_as_planned(tmp_path):
    config = TRAIN.replace(steps=8, learning_rate=1e-3, validate_every_steps=4)
    metrics = load_checkpoint(train(MODEL, config, data=DATA, out=tmp_path / "run", start=STOPS)).metrics
    assert (metrics["steps"], metrics["best_step"]) == (8, 8)


def test_a_damaged_best_state_is_passed_over_loudly(stopped, tmp_path):
    with pytest.raises(Interrupted):
        train(MODEL, HASTY, data=DATA, out=tmp_path / "run", start=STOPS, should_stop=after(validated(stopped) - 1))
    best = load_checkpoint(stopped).metrics["best_step"]
    file = tmp_path / "run" / "states" / f"step-{best:08d}" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(DamagedStateWarning, match="the last state is used instead of this best one|left out"):
        out = train(MODEL, HASTY, data=DATA, out=tmp_path / "run", start=STOPS, resume=True)
    assert "best_step" not in load_checkpoint(out).metrics


def validated(out):
    return max(validations(out))


@pytest.mark.parametrize(
    ("model", "data", "metric", "shown"),
    [
        (MODEL, DATA, "bleu", "bleu"),
        (ENCODER.replace(head="classify"), PLURALS, "accuracy", "label_accuracy"),
    ],
    ids=["bleu", "accuracy"],
)
def test_other_metrics_stop_too(tmp_path, model, data, metric, shown):
    start = Start(tuning=FineTuning(patience=2, stop_metric=metric))
    config = TRAIN.replace(steps=12, learning_rate=1e-2, validate_every_steps=4, label_smoothing=0.0)
    out = train(model, config, data=data, out=tmp_path / "run", start=start)
    header, *lines = (out / "metrics.csv").read_text().splitlines()
    assert header.endswith(",validation_score")
    scores = [float(line.rpartition(",")[2]) for line in lines if not line.endswith(",")]
    metrics = json.loads((out / "metrics.json").read_bytes())
    assert metrics[shown] == pytest.approx(max(scores), abs=1e-4)
    loaded = load_checkpoint(out)
    assert loaded.metrics["best_step"] == 4 * (1 + scores.index(max(scores)))


def test_ties_are_no_improvement_and_the_direction_depends_on_the_metric():
    progress = Progress(step=1)
    assert observe(progress, 2.0, "loss")
    progress.step = 2
    assert not observe(progress, 2.0, "loss")
    assert (progress.best_step, progress.stale) == (1, 1)
    assert observe(progress, 1.5, "loss")
    assert not observe(progress, 1.0, "bleu")
    assert observe(progress, 30.0, "bleu")
    assert (progress.best_value, progress.best_step, progress.stale) == (30.0, 2, 0)


@pytest.mark.parametrize(
    ("metric", "model", "message"),
    [
        ("accuracy", MODEL, "stop_metric: must be one of loss, bleu for this model, got accuracy"),
        ("bleu", ENCODER, "stop_metric: must be one of loss, accuracy for this model, got bleu"),
        ("f1", ENCODER.replace(head="classify"), "stop_metric: must be one of loss, accuracy for this model, got f1"),
    ],
)
def test_metrics_of_other_models_are_refused(metric, model, message):
    with pytest.raises(ConfigError, match=message):
        check_stopping(FineTuning(patience=1, stop_metric=metric), model, TRAIN)


def test_patience_without_a_validation_is_refused():
    with pytest.raises(ConfigError, match="patience: needs validations, got validate_every_steps 6 and steps 5"):
        check_stopping(FineTuning(patience=1), MODEL, TRAIN.replace(steps=5))
    check_stopping(FineTuning(patience=1), MODEL, TRAIN.replace(steps=0, minutes=1.0))
