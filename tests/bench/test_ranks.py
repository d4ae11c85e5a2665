"""What is measured is the preset that was asked for, and a run that fails shows why."""

import pytest
import yaml

from bench.ranks import recipe_of, tokens_per_s
from model.presets import load_preset


@pytest.mark.parametrize("preset", ["demo", "tatoeba-small", "own.yaml"])
def test_the_model_is_that_of_the_preset(preset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("preset: demo\nmodel: {d_ff: 96}\ntrain: {learning_rate: 0.25}")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe_of(preset, cores=3, steps=12)))
    asked, found = load_preset(preset), load_preset("recipe.yaml")
    assert found.model == asked.model
    changes = {"accumulate": 3, "steps": 12, "minutes": 0.0, "log_every_steps": 2, "average_checkpoints": 1}
    assert found.train == asked.train.replace(
        **changes, save_every_steps=12, validate_every_steps=12, validation_size=10
    )


def test_too_few_steps_for_a_row_that_counts_are_refused():
    with pytest.raises(SystemExit, match="--steps: must be at least 3, got 2"):
        recipe_of("demo", cores=2, steps=2)


@pytest.mark.slow
def test_a_run_that_fails_shows_why(tmp_path):
    (tmp_path / "recipe.yaml").write_text("preset: demo")
    words = (tmp_path / "recipe.yaml", tmp_path / "nowhere.tsv", tmp_path / "out")
    with pytest.raises(SystemExit, match=r"exit code 1\n(.*\n)*error: .*nowhere.tsv: no such file"):
        tokens_per_s(*words, processes=1, threads=1, flags=())
