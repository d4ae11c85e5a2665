"""`glossa import OWNER/NAME`, from a hub on 127.0.0.1: the same checkpoint as of the directory, and its commit."""

import functools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import run
from tests.fake_hub import COMMIT, FakeHub, running

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    from tests.decoders import make_decoder
    from tests.tiny import tiny_tokenizer

    path, tokenizer = tmp_path_factory.mktemp("theirs"), tiny_tokenizer()
    make_decoder("llama", vocab_size=tokenizer.vocab_size).save_pretrained(path)
    tokenizer.save(path / "tokenizer.json")
    return path


@pytest.fixture
def hub(theirs):
    files = {file.name: file.read_bytes() for file in theirs.iterdir()}
    with running(FakeHub({COMMIT: files}, name="Helsinki-NLP/opus-mt-en-de", token="a-token")) as hub:
        yield hub


@pytest.fixture
def here(hub, tmp_path, monkeypatch):
    """The command in this process uses the hub."""
    from model.pretrained.hub import Hub

    ours = functools.partial(Hub, endpoint=hub.endpoint, cache=tmp_path / "cache", token=hub.token)
    monkeypatch.setattr("model.pretrained.hub.Hub", ours)


def environment(hub, home):
    return {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_TOKEN": hub.token,
        "OMP_NUM_THREADS": "1",
    }


def glossa(hub, home, *arguments, fails=False, **variables):
    """The command in a process of its own: the library reads its environment once."""
    command = [sys.executable, "-m", "cli.main", "import", *map(str, arguments)]
    env = environment(hub, home) | variables
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == int(fails), done.stderr
    return done.stderr if fails else done.stdout


def test_a_model_is_imported_by_its_name(hub, here, theirs, tmp_path):
    figures = json.loads(run("import", hub.name, tmp_path / "named", "--json"))
    assert figures["model_type"] == "llama"
    run("import", theirs, tmp_path / "local")
    named, local = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("named", "local"))
    assert named == local
    lineage = json.loads((tmp_path / "named" / "lineage.json").read_text())
    origin = {"imported_from": hub.name, "revision": COMMIT, "requested_revision": "main"}
    assert {**lineage, **origin} == lineage
    assert COMMIT in (tmp_path / "named" / "model_card.md").read_text()

    hub.requests.clear()
    run("import", hub.name, tmp_path / "again", "--offline")
    run("import", hub.name, tmp_path / "pinned", "--offline", "--revision", COMMIT)
    again, pinned = (json.loads((tmp_path / name / "lineage.json").read_text()) for name in ("again", "pinned"))
    assert again == lineage
    assert (pinned["revision"], pinned["requested_revision"]) == (COMMIT, COMMIT)
    assert hub.requests == []


def test_what_cannot_be_imported_writes_nothing(hub, here, tmp_path):
    message = run("import", "runs/marian", tmp_path / "out", fails=True)
    assert f"error: runs/marian: no such directory, and {hub.endpoint} has no model of that name" in message
    message = run("import", hub.name, tmp_path / "out", "--offline", fails=True)
    assert f"error: {hub.name}: no such directory, and of the model of that name, revision main is not in" in message
    hub.files[COMMIT]["config.json"] = b'{"model_type": "unheard-of"}'
    assert "model_type 'unheard-of' is not covered" in run("import", hub.name, tmp_path / "out", fails=True)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"config.json": b'{"model_type": "unheard-of"}'}, "model_type 'unheard-of' is not covered"),
        ({"config.json": b'{"model_type": "llama", "num_experts": 8}'}, "num_experts 8 is not covered"),
        ({"config.json": {"hidden_act": "xielu"}}, "hidden_act 'xielu' is not covered"),
        ({"config.json": {"vocab_size": 5}}, "vocab_size 5 is less than the"),
        ({"generation_config.json": {"eos_token_id": 2, "suppress_tokens": [3]}}, "suppress_tokens [3] is not covered"),
        ({"generation_config.json": {"eos_token_id": 2, "bad_words_ids": [[-1]]}}, "bad_words_ids must be ids 0.."),
        ({"tokenizer.json": b"{}"}, "tokenizer"),
    ],
)
def test_no_weights_are_fetched_of_a_model_that_its_other_files_exclude(hub, here, tmp_path, changed, problem):
    for name, content in changed.items():  # bytes replace a file, fields change it
        known = hub.files[COMMIT][name]
        hub.files[COMMIT][name] = (
            content if isinstance(content, bytes) else json.dumps({**json.loads(known), **content}).encode()
        )
    assert problem in run("import", hub.name, tmp_path / "out", fails=True)
    assert hub.fetched(".safetensors") == []


def test_the_end_of_the_command_line_counts_before_weights_are_fetched(hub, here, tmp_path):
    values = json.loads(hub.files[COMMIT]["config.json"])
    hub.files[COMMIT]["config.json"] = json.dumps({**values, "eos_token_id": None}).encode()
    del hub.files[COMMIT]["generation_config.json"]
    assert "set it with --eos-id ID" in run("import", hub.name, tmp_path / "out", fails=True)
    assert hub.fetched(".safetensors") == []
    assert json.loads(run("import", hub.name, tmp_path / "out", "--eos-id", 3, "--json"))["ends"] == [3]


@pytest.mark.slow
def test_endpoint_cache_token_and_offline_mode_are_those_of_the_environment(hub, tmp_path):
    glossa(hub, tmp_path / "hf", hub.name, tmp_path / "named")
    assert (tmp_path / "hf" / "hub" / "models--Helsinki-NLP--opus-mt-en-de").is_dir()
    hub.requests.clear()
    glossa(hub, tmp_path / "hf", hub.name, tmp_path / "again", HF_HUB_OFFLINE="1")
    assert hub.requests == []
    message = glossa(hub, tmp_path / "other", hub.name, tmp_path / "none", fails=True, HF_TOKEN="another-token")
    assert message.startswith(f"error: {hub.name}: is gated; accept its terms on {hub.endpoint}/{hub.name}")
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere"], "nowhere: no such directory; give one that save_pretrained has written, or the name"),
        (["./runs/marian"], "no such directory; give one"),
        ([__file__], "is no directory; give one"),
        (["owner/model", "--allow-pickle"], "safetensors are read alone; remove it"),
        ([str(ROOT), "--revision", "main"], "is a directory, which has no revisions; remove it"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, problem, tmp_path):
    message = run("import", arguments[0], tmp_path / "out", *arguments[1:], fails=True)
    assert problem in message
    assert len(message.strip().splitlines()) == 1


def test_a_finished_checkpoint_is_noticed_before_anything_is_fetched(tmp_path):
    (tmp_path / "digests.json").write_text("{}")
    assert "already holds a finished checkpoint" in run("import", "owner/model", tmp_path, fails=True)


def test_what_is_no_checkpoint_is_not_replaced_and_nothing_is_fetched_for_it(hub, here, tmp_path):
    (tmp_path / "notes").mkdir()
    message = run("import", hub.name, tmp_path / "notes", "--replace", fails=True)
    assert "notes: is not a checkpoint, so --replace leaves it alone" in message
    assert hub.requests == []


@pytest.mark.slow
def test_the_command_in_the_refusal_of_a_pickle_converts_it(hub, theirs, tmp_path):
    import safetensors.torch
    import torch

    files = hub.files[COMMIT]
    weights = safetensors.torch.load(files.pop("model.safetensors"))
    torch.save(weights, tmp_path / "pytorch_model.bin")
    files["pytorch_model.bin"] = (tmp_path / "pytorch_model.bin").read_bytes()
    message = glossa(hub, tmp_path / "hf", hub.name, tmp_path / "out", fails=True)
    fetching, _, converting = message.partition("convert them: ")[2].strip().partition(" && ")
    program = Path(sys.executable).with_name("hf")
    assert program.exists(), "the test needs `hf` of huggingface-hub beside Python: make setup"
    env = environment(hub, tmp_path / "hf")
    subprocess.run([program, *shlex.split(fetching)[1:]], env=env, cwd=tmp_path, check=True, timeout=120)
    words = [str(tmp_path / word) if word == "opus-mt-en-de" else word for word in shlex.split(converting)]
    assert (words[:3], words[-1]) == (["glossa", "import", "--allow-pickle"], "CHECKPOINT")
    run(*words[1:-1], tmp_path / "ours")
    run("import", theirs, tmp_path / "local")
    ours, local = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("ours", "local"))
    assert ours == local
