"""docs/fine-tuning.md: its commands run and print what stands below them, its settings and defaults are the code's."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from model.config import ConfigError
from model.fine_tuning import FineTuning
from model.presets import CONTINUED, FREE, OF_HEAD, PRESETS, continuing
from model.training.data.given_tokenizer import NAMES
from tests.cli.command import run

PAGE = (Path(__file__).parents[1] / "docs/fine-tuning.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`(\S+)`:\n\n```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^```sh\n([^`]*)\n```\n\n```text\n([^`]*)\n```$", PAGE, re.MULTILINE)


@pytest.mark.slow
def test_the_commands_print_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES:
        Path(name).write_text(content, encoding="utf-8")
    assert [name for name, _ in FILES] == ["base.yaml", "tune.yaml"]
    assert len(COMMANDS) == 3
    for commands, shown in COMMANDS:
        for command in commands.splitlines():
            printed = run(*shlex.split(command)[1:])
        assert printed.splitlines()[-1] == shown
    assert not (tmp_path / "adapter" / "model.safetensors").exists()


def test_every_setting_has_its_flag_and_a_row():
    rows = dict(re.findall(r"^\| `(\w+)` \| `(--[\w-]+)` \|", PAGE, re.MULTILINE))
    flags = {field.name: "--" + field.name.replace("_", "-") for field in fields(FineTuning)}
    assert rows == {**flags, "lora_merge": "--keep-adapter"}
    help_text = " ".join(run("train", "--help").split())
    assert all(flag in help_text for flag in rows.values())
    assert FineTuning().lora_targets == ("*attention*",)


def test_fields_and_defaults_are_those_of_the_code():
    assert (CONTINUED.steps, CONTINUED.learning_rate) == (1000, 1e-4)
    (free, lengths, head) = re.findall(r"^\| (`.*) \| (?:always|unless|with a new)", PAGE, re.MULTILINE)
    named = {name for row in (free, lengths) for name in re.findall(r"`(\w+)`", row)}
    assert named == FREE
    assert set(re.findall(r"`(\w+)`", head)) == OF_HEAD
    (listed,) = re.findall(r"found by their names: (.*?)\.\n", PAGE, re.DOTALL)
    assert set(re.findall(r"`([^`]+)`", listed)) <= {name for names in NAMES.values() for name in names}


def test_an_error_is_the_one_of_the_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wide.yaml").write_text("model: {d_ff: 128}")
    base = PRESETS["tiny-copy"].model.replace(d_ff=64)
    with pytest.raises(ConfigError) as caught:
        continuing(base, "wide.yaml")
    assert f"| `{caught.value}` |" in PAGE
