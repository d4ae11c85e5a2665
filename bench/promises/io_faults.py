"""Export, replacement of a bundle and training, with every single file operation failing once.

Each job runs as its command does, in a child of a process that has PyTorch loaded. First its file operations are
counted, those of libraries included (`file_faults`); then it runs again with the first of them failing, the
second, and so on: with EIO, once, and with ENOSPC on a disk that is full from there on. After each of these runs

- it either succeeded, or ended with one line that names a path and the cause, and without a traceback;
- the artefact is the old one, byte for byte, or the whole new one; all states of a training run are whole;
- the same command without a fault succeeds, and nothing is left besides the artefact. A training run continues, and its
  checkpoint is bit-identical to that of an undisturbed one, learning curves included. An end that left the same files
  as an earlier one is not continued again.

Not about files, and therefore done once: tracing a model, measuring its quantized form, drawing learning curves, and
starting a server for the figures that `export` prints. Time stands still in training, so that files with times can be
compared.
"""

from __future__ import annotations

import argparse
import collections
import errno
import functools
import hashlib
import io
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Hashable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import typer

from bench.case import Flag, case
from bench.measure import Verdict, report
from bench.promises.file_faults import Ended, Fault, is_supported, run
from bench.promises.kill_resume import MODEL, TRAIN
from cli.main import app
from cli.training.train import run_training
from export import variants
from export.bundle.directory import BundleError, load_bundle
from export.bundle.manifest import MANIFEST, MANIFEST_DIGEST
from model.checkpoints.atomic_write import DIGESTS, DamagedError, verify
from model.checkpoints.checkpoint import CheckpointError, load_checkpoint
from model.training import finish
from model.training import train as training
from model.training.data.embedded import copy_examples
from model.training.report import metrics_csv
from model.training.training_state import list_states

SHORT = replace(TRAIN, steps=3, save_every_steps=1, validate_every_steps=2, accumulate=1, average_checkpoints=2)
"""Three states, so that the first is deleted."""
CAUSES = {errno.EIO: ("Input/output error",), errno.ENOSPC: ("No space left on device", "no room")}
PROCESSES = 2
SHOWN = 5  # broken promises in full
TOKEN = re.compile(r"\.[0-9a-f]{8}\.")  # of a directory that is being written

Tree = dict[str, str]
"""Digests of files by their names; of a directory, it is empty."""


def tree(folder: Path) -> Tree:
    """Everything below a folder."""
    return {
        str(entry.relative_to(folder)): hashlib.sha256(entry.read_bytes()).hexdigest() if entry.is_file() else ""
        for entry in sorted(folder.rglob("*"))
    }


def unchanging(found: Tree) -> Tree:
    """A tree without the files that have the time of an export in them."""
    return {name: digest for name, digest in found.items() if Path(name).name not in (MANIFEST, MANIFEST_DIGEST)}


class Workplace(NamedTuple):
    """Folders that runs read: a checkpoint, an earlier bundle, what undisturbed runs make of them, and development
    text."""

    checkpoint: Path
    old: Path
    new: Path
    texts: Path


class Job(NamedTuple):
    """start: what is in a run's folder before. act: what runs; the flag says that it ran before. broken: the promises
    that a folder breaks after a run with this exit status."""

    name: str
    start: Callable[[Path], None]
    act: Callable[[Path, bool], int]
    broken: Callable[[Path, int], list[str]]


def export(place: Workplace, folder: Path, again: bool) -> int:
    """Exports the checkpoint in two precisions."""
    words = ["export", str(place.checkpoint), str(folder / "bundle"), "--precision", "fp32,int8", "--json"]
    words += ["--scheme", "w8a8-dynamic", "--development", str(place.texts), "--max-loss", "1"]
    if again or (folder / "bundle").exists():
        words.append("--replace")
    return app(words, standalone_mode=False) or 0


def train(folder: Path, again: bool) -> int:
    """Trains three steps, or the rest of them."""
    torch.set_num_threads(1)
    try:
        run_training(MODEL, SHORT, "resume it", data=copy_examples(100, seed=1), out=folder / "run", resume=again)
    except typer.Exit as end:
        return end.exit_code
    return 0


def broken_bundle(place: Workplace, has_old: bool, folder: Path, status: int) -> list[str]:
    """What is wrong with the bundle that a run left."""
    bundle = folder / "bundle"
    if not bundle.exists():
        return ["there is no bundle"] * (has_old or not status)
    found = tree(bundle)
    if has_old and found == tree(place.old):
        return ["success, but the bundle is the old one"] * (not status)
    try:
        load_bundle(bundle)
    except BundleError as error:
        return [f"neither the old bundle nor a whole one: {error}"]
    return ["the bundle is not that of an undisturbed export"] * (unchanging(found) != unchanging(tree(place.new)))


def broken_run(place: Workplace, folder: Path, status: int) -> list[str]:
    """What is wrong with the states and the checkpoint that a training run left."""
    try:
        for state in list_states(folder / "run" / "states"):
            verify(state, ())
        if (folder / "run" / DIGESTS).exists():
            load_checkpoint(folder / "run")
        elif not status:
            return ["success, but there is no checkpoint"]
    except (DamagedError, CheckpointError) as error:
        return [str(error)]
    if status:
        return []
    differing = sorted(name for name, _ in tree(folder / "run").items() ^ tree(place.checkpoint).items())
    return [f"other files than those of an undisturbed run: {differing}"] if differing else []


def left_over(folder: Path) -> list[str]:
    """Hidden files and directories, which are temporary ones."""
    return [name for name in tree(folder) if Path(name).name.startswith(".")]


def bad_message(folder: Path, ended: Ended, fault: Fault) -> list[str]:
    """What is wrong with the output of a run that failed."""
    errors = [line for line in ended.output.splitlines() if line.startswith("error: ")]
    if "Traceback" in ended.output or len(errors) != 1:
        return [f"no message of one line, but: {ended.output[-300:]!r}"]
    is_clear = str(folder) in errors[0] and any(cause in errors[0] for cause in CAUSES[fault.code])
    return [] if is_clear else [f"the message lacks the path or the cause: {errors[0]!r}"]


class Tried(NamedTuple):
    """What a run with a fault showed. continued: another run without a fault followed."""

    succeeded: bool
    continued: bool
    broken: list[str]


class Trial:
    """Runs of one job with faults, in a folder of its own."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._job, self._folder, self._known = job, folder, set[tuple[tuple[str, str], ...]]()

    def __call__(self, fault: Fault) -> Tried:
        job, folder = self._job, self._folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        job.start(folder)
        ended = run(lambda: job.act(folder, False), folder, fault)
        broken = job.broken(folder, ended.status)
        if ended.status:
            broken += bad_message(folder, ended, fault)
        found = tuple((TOKEN.sub(".*.", name), digest) for name, digest in unchanging(tree(folder)).items())
        is_new = found not in self._known
        if is_new:
            self._known.add(found)
            after = run(lambda: job.act(folder, True), folder)
            if after.status:
                broken.append(f"the next run failed: {after.output[-300:]!r}")
            broken += [f"after the next run: {problem}" for problem in job.broken(folder, after.status)]
            broken += [f"left by the next run: {name}" for name in left_over(folder)]
        failed = ended.operations[fault.number - 1] if len(ended.operations) >= fault.number else "no operation"
        what = f"{job.name}, operation {fault.number}, {failed}, {errno.errorcode[fault.code]}"
        return Tried(not ended.status, is_new, [f"{what}: {problem}" for problem in broken])


def try_all(place: Workplace, number: int, folder: Path, faults: list[Fault]) -> list[Tried]:
    """The job of this number with one fault after the other."""
    trial = Trial(jobs(place)[number], folder)
    return [trial(fault) for fault in faults]


def once_for(key: Callable[..., Hashable], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose first result for a key of its arguments is that of all later calls with this key."""
    found = dict[Hashable, Any]()

    def call(*given: Any, **named: Any) -> Any:
        which = key(*given, **named)
        if which not in found:
            found[which] = function(*given, **named)
        return found[which]

    return call


def dtype_of(model: torch.nn.Module, **_: Any) -> torch.dtype:
    return next(model.parameters()).dtype


def prepare(folder: Path, *, exports: bool) -> Workplace:
    """Makes what runs read, in this process: they have its caches from then on. exports: also what exports read."""
    place = Workplace(folder / "checkpoint", folder / "old", folder / "new", folder / "texts")
    place.texts.write_text("".join(f"{source}\n" for source, _ in copy_examples(50, seed=2).pairs))
    (folder / "undisturbed").mkdir()
    assert not train(folder / "undisturbed", False)
    (folder / "undisturbed" / "run").rename(place.checkpoint)
    if not exports:
        return place
    assert not app(["export", str(place.checkpoint), str(place.old), "--json"], standalone_mode=False)
    assert not export(place, folder / "undisturbed", False)
    (folder / "undisturbed" / "bundle").rename(place.new)
    return place


def jobs(place: Workplace) -> list[Job]:
    """Everything that is tried."""
    act = functools.partial(export, place)

    def copy_old(folder: Path) -> None:
        shutil.copytree(place.old, folder / "bundle")

    return [
        Job("export", lambda _: None, act, functools.partial(broken_bundle, place, False)),
        Job("replacement", copy_old, act, functools.partial(broken_bundle, place, True)),
        Job("training", lambda _: None, train, functools.partial(broken_run, place)),
    ]


def measure(place: Workplace, job_number: int, folder: Path, sample: int) -> tuple[dict[str, Any], list[Verdict]]:
    """Counts a job's operations, and fails each of them, or about `sample`."""
    began_s, job = time.monotonic(), jobs(place)[job_number]
    folder.mkdir()
    job.start(folder)
    whole = run(lambda: job.act(folder, False), folder)
    problems = [f"{job.name} without faults: {problem}" for problem in job.broken(folder, whole.status)]
    count = len(whole.operations)
    step = max(1, count // sample) if sample else 1
    faults = [Fault(number, code) for number in range(1, count + 1, step) for code in CAUSES]
    shares = [
        (place, job_number, folder.with_name(f"{job.name}-{part}"), faults[part::PROCESSES])
        for part in range(PROCESSES)
    ]
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        tried = [one for share in pool.starmap(try_all, shares) for one in share]
    problems += [problem for one in tried for problem in one.broken]
    for problem in problems[:SHOWN]:
        print(problem, file=sys.stderr)
    kinds = collections.Counter(operation.split()[0] for operation in whole.operations)
    figures = {
        f"{job.name}: file operations": ", ".join(f"{number} {name}" for name, number in kinds.most_common()),
        f"{job.name}: runs with a fault": f"{len(tried)}, of which {sum(one.succeeded for one in tried)} succeeded and "
        f"{sum(one.continued for one in tried)} were continued, {time.monotonic() - began_s:.0f} s",
    }
    return figures, [
        Verdict(f"{job.name}: promises broken in {len(tried)} runs", len(problems), 0, "", is_limit=True),
        Verdict(f"{job.name}: operations that failed", len(faults) // len(CAUSES), count if not sample else 1, ""),
    ]


@case(
    sample=Flag(0, "operations of each job that fail, evenly spread; 0: all"),
    only=Flag(["export", "replacement", "training"], "jobs"),
)
def io_faults(options: argparse.Namespace) -> None:
    if not is_supported():
        raise SystemExit("needs Linux on x86-64")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not be there in a forked process
    figures, verdicts = dict[str, Any](), list[Verdict]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        slow = ((variants, "trace_model", dtype_of), (variants, "select_scheme", lambda *_, **__: None))
        for module, name, key in (*slow, (finish, "curves_png", metrics_csv)):
            stack.enter_context(mock.patch.object(module, name, once_for(key, getattr(module, name))))
        stack.enter_context(mock.patch("cli.export.measure_serving", return_value={}))
        stack.enter_context(mock.patch.dict(variants.save_variant.__kwdefaults__, inline_limit=1000))  # large models'
        stack.enter_context(mock.patch("model.training.report._git_commit", return_value=None))  # it may move meanwhile
        stack.enter_context(mock.patch("model.training.training_state.uuid4", return_value=mock.Mock(hex="run")))
        stack.enter_context(mock.patch.object(training, "time", mock.Mock(monotonic=lambda: 0.0)))
        stack.enter_context(mock.patch.dict(os.environ, TMPDIR=str(folder)))
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            place = prepare(folder, exports=options.only != ["training"])
        for number, job in enumerate(jobs(place)):
            if job.name in options.only:
                found, judged = measure(place, number, folder / job.name, options.sample)
                figures |= found
                verdicts += judged
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
