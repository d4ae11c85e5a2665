"""The command as its users meet it: the whole path on a toy task, and one clear line for what cannot be done."""

import json
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import glossa

PAIRS = [("a b c", "a b c"), ("x y", "x y")]


def run(*arguments, fails=False):
    result = CliRunner().invoke(glossa.app, [str(argument) for argument in arguments])
    assert result.exit_code == (1 if fails else 0), result.output
    return result.output


def refusal_to_serve(*arguments):
    """What `glossa serve` says when it does not start; in a process of its own, as it takes over signals and stderr."""
    command = [sys.executable, glossa.__file__, "serve", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1, result
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "checkpoint"
    run("train", "tiny-copy", "--steps", 3, "--out", out)
    return out


@pytest.fixture(scope="module")
def exported(trained):
    out = trained.parent / "bundle"
    assert "passed" in run("export", trained, out)
    return out


@pytest.fixture
def test_set(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    return path


def test_the_whole_path_from_training_to_a_served_bundle(trained, exported, test_set):
    assert json.loads(run("verify", exported, "--checkpoint", trained, "--json"))["passed"]
    in_torch = json.loads(run("eval", trained, "--data", test_set, "--json"))
    served = json.loads(run("eval", exported, "--data", test_set, "--json"))
    assert served["BLEU"] == in_torch["BLEU"]
    assert served["sentences"] == len(PAIRS)
    assert served["signature"].startswith("nrefs:1|case:mixed")


def test_a_running_server_translates_from_the_command_line(exported):
    with glossa.serving(exported) as (address, ops):
        before = glossa.counters(glossa.fetch(f"{ops}/metrics"))
        streamed = run("translate", "a b c", "--address", address)
        whole = json.loads(run("translate", "a b c", "--address", address, "--json"))
        lines = CliRunner().invoke(glossa.app, ["translate", "--address", address], input="a b c\n\na b c\n").output
        after = glossa.counters(glossa.fetch(f"{ops}/metrics"))
        refused = run("translate", "a", "--address", address, "--model", "nobody", fails=True)
        unknown = run("translate", "a zebra", "--address", address, fails=True)
        wrong_task = run("generate", "a", "--address", address, fails=True)
        assert glossa.is_ready(ops)
    assert not glossa.is_ready(ops)
    assert streamed.rstrip("\n") == whole["text"]
    assert lines == whole["text"] + "\n\n" + whole["text"] + "\n"
    assert (
        after["glossa_generated_tokens_total"]
        == before["glossa_generated_tokens_total"] + 4 * whole["generated_tokens"]
    )
    assert "NOT_FOUND" in refused
    assert "nobody" in refused
    assert "zebra" in unknown
    assert "FAILED_PRECONDITION" in wrong_task


def test_a_finished_run_is_not_written_over(trained):
    assert "choose another directory" in run("train", "tiny-copy", "--steps", 3, "--out", trained, fails=True)


def test_an_unknown_preset_is_answered_with_the_closest_one(tmp_path):
    assert "did you mean 'tatoeba-small'" in run("train", "tatoeba-smal", "--out", tmp_path / "x", fails=True)


def test_a_broken_line_of_a_tsv_is_named(tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("one\tein\nbroken\n")
    said = run("train", "tatoeba-small", "--data", data, "--out", tmp_path / "x", fails=True)
    assert f"{data}:2: expected 2 tab-separated fields, got 1" in said
    assert not (tmp_path / "x").exists()


def test_arguments_that_do_not_fit_together_are_refused(tmp_path, test_set):
    assert "--source and --target" in run("train", "tatoeba-small", "--out", tmp_path / "x", fails=True)
    alone = run("train", "tatoeba-small", "--source", test_set, "--out", tmp_path / "x", fails=True)
    assert "--source and --target" in alone
    assert "--source and --reference" in run("eval", tmp_path, fails=True)


def test_a_checkpoint_cut_short_is_not_exported(trained, tmp_path):
    cut = tmp_path / "cut"
    cut.mkdir()
    for file in trained.iterdir():
        if file.is_file():
            data = file.read_bytes()
            (cut / file.name).write_bytes(data[:-10] if file.name == "model.safetensors" else data)
    assert "model.safetensors" in run("export", cut, tmp_path / "bundle", fails=True)
    assert not (tmp_path / "bundle").exists()


def test_a_server_that_cannot_start_says_why(exported, tmp_path):
    anywhere = ("--port", 0, "--http-port", 0)
    assert "did you mean port" in refusal_to_serve(f"m={exported}", "--prt", "1")
    assert "NAME=BUNDLE" in refusal_to_serve(exported)
    assert "manifest.json" in refusal_to_serve(f"m={tmp_path}", *anywhere)
    assert "cuda" in refusal_to_serve(f"m={exported}", *anywhere, "--device", "cuda")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in refusal_to_serve(f"m={exported}", "--port", port, "--http-port", 0)


def test_every_setting_is_listed():
    listed = run("serve", "--settings")
    assert "--kv-cache-bytes" in listed
    assert "--drain-delay-s" in listed


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["a=b"], {"models": ["a=b"]}),
        (["a=b", "--port", "1", "c=d"], {"models": ["a=b", "c=d"], "port": "1"}),
        (["--max-queue=7"], {"max_queue": "7"}),
        (["--no-reflection", "--log-text"], {"reflection": False, "log_text": True}),
        (
            ["--no-reflection", "a=b", "--log-text", "c=d"],
            {"models": ["a=b", "c=d"], "reflection": False, "log_text": True},
        ),
    ],
)
def test_setting_flags(arguments, flags):
    assert glossa.setting_flags(arguments) == flags


def test_doctor_finds_a_bad_bundle(exported, tmp_path):
    assert str(exported) in run("doctor", exported)
    assert "fix:" in run("doctor", tmp_path, fails=True)


def test_healthcheck_of_a_port_nobody_listens_on():
    assert "no ready server" in run("healthcheck", "--http-port", glossa.free_port(), fails=True)
