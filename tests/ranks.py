"""Training runs in several processes on 127.0.0.1: of torchrun, or, in a second, forked ones that have torch loaded."""

import csv
import faulthandler
import io
import itertools
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file

from cli.local_server import free_port
from model.training.data.embedded import embedded_examples
from model.training.distributed.process_group import joined
from model.training.distributed.ranks import Ranks
from model.training.progress import Display
from model.training.train import train
from tests import tiny_training

ROOT = Path(__file__).resolve().parent.parent
MODEL = tiny_training.MODEL.replace(
    bias=False,  # a key bias has no gradient but noise, which Adam makes large
    activation="gelu",  # smooth: a unit of ReLU may be on in one sum and off in another
)
TRAIN = tiny_training.TRAIN.replace(
    accumulate=4,
    steps=16,
    clip_norm=0.7,  # of gradients of 0.6 to 0.9: some steps clip, others do not
    average_checkpoints=1,
)


class SeededRanks(Ranks):
    """A single process that draws dropout as several do."""

    seeds_batches = True


def train_in(count, out, *, model=MODEL, config=TRAIN, data=None, stop_after=0, **arguments):
    """`train` in `count` processes; of each the error that it ends with, as text, or "".

    stop_after: the last rank alone asks for a stop after this many steps. A value that is a list has an item for each
    rank.
    """
    given = {"model": model, "config": config, "data": data or embedded_examples("copy"), **arguments}
    each = [
        {name: value[rank] if isinstance(value, list) else value for name, value in given.items()}
        for rank in range(count)
    ]
    return in_ranks(count, _train_rank, out, [*[0] * (count - 1), stop_after], each)


def in_ranks(count, work, *arguments):
    """`work(ranks, *arguments)`, a function of a module, in `count` processes; its results, by rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.ranks"])
    results, port = context.SimpleQueue(), free_port()
    processes = [
        context.Process(target=_work_in_rank, args=(rank, count, port, results, work, arguments))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(150)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * count, codes
    return [result for _, result in sorted(results.get() for _ in processes)]


def _work_in_rank(rank, count, port, results, work, arguments):
    places = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ |= {name: str(place) for name, place in places.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    faulthandler.enable()
    tiny_training.quick_trainings()
    with joined(os.environ, timeout_s=120) as ranks:
        results.put((rank, work(ranks, *arguments)))


def _train_rank(ranks, out, stops, each):
    asked, arguments = itertools.count(1), dict(each[ranks.rank])
    model, config = arguments.pop("model"), arguments.pop("config")
    try:
        train(
            model,
            config,
            out=out,
            ranks=ranks,
            display=Display(quiet=True),
            should_stop=lambda: next(asked) == stops[ranks.rank],
            **arguments,
        )
    except Exception as ended:
        return f"{type(ended).__name__}: {ended}"
    return ""


def write_preset(path, model=MODEL, config=TRAIN, embedded="copy"):
    """A YAML file for `glossa train`."""
    settings = {key: value for key, value in model.to_json().items() if not isinstance(value, tuple | dict | None)}
    path.write_text(yaml.safe_dump({"embedded": embedded, "model": settings, "train": config.to_json()}))
    return path


def started(count, *words, program=("-m", "cli.main", "train"), flags=(), **variables):
    """torchrun with `count` processes of `glossa train`; its output and its errors come from one pipe."""
    command = (
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={count}"),
        *(flags or ("--standalone", "--local-addr=127.0.0.1")),
        *map(str, (*program, *words)),
    )
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process, *, fails=False):
    """What the run prints until it ends."""
    with process:
        printed = process.communicate(timeout=180)[0]
    assert (process.returncode != 0) == fails, printed
    return printed


def trained(count, *words, fails=False, **settings):
    """`started` and `ended`."""
    return ended(started(count, *words, **settings), fails=fails)


def await_line(process, start):
    """Reads what the run prints up to a line that starts so."""
    read = []
    for line in process.stdout:
        read.append(line)
        if line.startswith(start):
            return
    raise AssertionError("".join(read))


def difference(one, other):
    """The largest relative difference of a weight or a moment, by the Euclidean norm. Adam divides out a factor of all
    gradients, its moments keep it."""
    newest = sorted((one / "states").glob("step-*"))[-1].name
    largest = 0.0
    for file in ("model.safetensors", f"states/{newest}/optimiser.safetensors"):
        ours, theirs = load_file(one / file), load_file(other / file)
        assert ours.keys() == theirs.keys()
        names = [name for name in ours if not name.startswith("generator")]
        largest = max(largest, *(float(torch.dist(ours[name], theirs[name]) / ours[name].norm()) for name in names))
    return largest


def history(out):
    """The figures of metrics.csv that do not depend on the clock."""
    rows = csv.DictReader(io.StringIO((out / "metrics.csv").read_text()))
    names = ("step", "epoch", "tokens", "learning_rate", "train_loss", "validation_loss")
    return [[float(row[name] or "nan") for name in names] for row in rows]


def rank_of(process, number):
    """The process id of a rank."""
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"RANK={number}" in Path(f"/proc/{pid}/environ").read_text().split("\0"):
            return int(pid)
    raise AssertionError(f"no rank {number}")
