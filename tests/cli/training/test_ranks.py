"""`torchrun … glossa train` on 127.0.0.1: what is printed, and what becomes of the run, when processes stop or fail."""

import os
import signal
import subprocess
import sys

import pytest
import torch

import cli.training.ranks
from model.training.data.embedded import embedded_examples
from model.training.distributed.ranks import Ranks
from model.training.progress import Display
from model.training.train import train
from tests.cli.command import run
from tests.ranks import (
    MODEL,
    ROOT,
    TRAIN,
    SeededRanks,
    await_line,
    difference,
    ended,
    rank_of,
    started,
    trained,
    write_preset,
)

PRINTED_ONCE = ("loading PyTorch", "reading 5,000 examples", "step 16", "checkpoint written", ": checkpoint, ")
LONG = TRAIN.replace(steps=80)  # so that a signal after a line of its log finds it running


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The long run in this process without interruption."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("alone") / "run"
    train(MODEL, LONG, data=embedded_examples("copy"), out=out, ranks=SeededRanks(), display=Display(quiet=True))
    torch.set_num_threads(threads)
    return out


def states(out):
    return [int(path.name.removeprefix("step-")) for path in sorted((out / "states").glob("step-*"))]


def test_another_rank_than_the_first_prints_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(Ranks, "rank", 1)
    assert run("train", write_preset(tmp_path / "copy.yaml"), "--steps", 3, "--out", tmp_path / "run") == ""


@pytest.mark.slow
def test_the_first_rank_alone_prints(tmp_path):
    printed = trained(2, write_preset(tmp_path / "copy.yaml"), "--out", tmp_path / "run")
    assert [printed.count(text) for text in PRINTED_ONCE] == [1] * len(PRINTED_ONCE), printed
    assert "copies in 2 processes" in printed


ENDING = """
import atexit, os
import typer
from cli.local_server import free_port
from cli.training.ranks import joined_ranks

atexit.register(print, "finalised")
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
with joined_ranks(os.environ, timeout_s=60) as ranks:
    print("gathered", ranks.gathered(1.0))
    %s
"""


def test_an_error_of_a_rank_is_left_to_the_interpreter():
    with pytest.raises(KeyError), cli.training.ranks._ending_the_process():
        raise KeyError


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        pytest.param("", 0, "gathered [(1.0,)]\n", marks=pytest.mark.slow),
        ("raise typer.Exit(3)", 3, "gathered [(1.0,)]\n"),
        pytest.param("raise KeyError", 1, "gathered [(1.0,)]\nfinalised\n", marks=pytest.mark.slow),
    ],
)
def test_a_rank_ends_before_the_interpreter_is_finalised(last, code, said):
    """Where a thread of gloo that is still at work would abort it."""
    done = subprocess.run([sys.executable, "-c", ENDING % last], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (code, said), done.stderr


@pytest.mark.slow
def test_sigterm_saves_a_state_to_go_on_from_with_one_process(alone, tmp_path):
    words = write_preset(tmp_path / "copy.yaml", config=LONG), "--out", tmp_path / "run"
    process = started(2, *words)
    await_line(process, "step ")
    process.send_signal(signal.SIGTERM)
    printed = ended(process, fails=True)
    (step,) = states(tmp_path / "run")[-1:]
    command = f"glossa train {tmp_path}/copy.yaml --out {tmp_path}/run --resume"
    advice = f"continue, in any number of processes, with: {command}"
    assert f"error: stopped after step {step}, state saved in {tmp_path}/run; {advice}\n" in printed
    assert printed.count("error: ") == 1
    assert step < LONG.steps
    trained(1, *words, "--resume")
    assert difference(alone, tmp_path / "run") < 1e-5


@pytest.mark.slow
def test_a_lost_rank_ends_the_run_with_a_state(alone, tmp_path):
    words = write_preset(tmp_path / "copy.yaml", config=LONG.replace(save_every_steps=50)), "--out", tmp_path / "run"
    process = started(2, *words)
    await_line(process, "step ")
    os.kill(rank_of(process, 1), signal.SIGKILL)
    printed = ended(process, fails=True)
    (step,) = states(tmp_path / "run")
    assert "error: rank 0 lost the connection to another rank: " in printed
    assert f"; the state after step {step} is saved; go on with --resume\n" in printed
    trained(2, *words, "--resume")
    assert difference(alone, tmp_path / "run") < 1e-5


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_lost(tmp_path):
    process = started(
        2, write_preset(tmp_path / "copy.yaml", config=LONG), "--out", tmp_path / "run", "--rank-timeout-s", 20
    )
    await_line(process, "step ")
    os.kill(rank_of(process, 1), signal.SIGSTOP)  # torchrun kills it 30 s after the other has ended
    printed = ended(process, fails=True)
    (step,) = states(tmp_path / "run")[-1:]
    assert "error: rank 0 lost the connection to another rank: " in printed
    assert f"; the state after step {step} is saved; go on with --resume\n" in printed


@pytest.mark.slow
def test_an_error_of_one_rank_ends_all_with_one_line(tmp_path):
    preset = write_preset(tmp_path / "copy.yaml")
    (tmp_path / "0.tsv").write_text("a b\tb a\n" * 30)
    script = f"exec {sys.executable} -m cli.main train {preset} --data {tmp_path}/$RANK.tsv --out {tmp_path}/run"
    printed = trained(2, "-c", script, program=("--no-python", "sh"), fails=True)
    assert f"error: rank 1: {tmp_path}/1.tsv: no such file; check the path\n" in printed
    assert printed.count("error: ") == 1
    assert not (tmp_path / "run").exists()
