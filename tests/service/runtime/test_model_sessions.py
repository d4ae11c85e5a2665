"""The second session of a single busy engine: who uses it, when it is opened, what it weighs."""

import mmap
import os
import random
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest

from export.bundle.directory import load_bundle
from service.engine.golden_check import decode_single
from service.errors import StartupError
from service.options import DecodingOptions
from service.runtime.memory import HostMemory
from service.runtime.model_sessions import BusyEngines
from service.runtime.onnx_model import OnnxModel
from service.runtime.runner import SINGLE_ENGINE_ROWS, OnnxRunner
from service.runtime.sessions import open_single_engine_sessions
from tests.runner_requests import assert_same_bits, decode, logprobs_of, reference, requests_for


class Noting(OnnxRunner):
    """Notes of each run its rows, and whether all processors computed it."""

    def __init__(self, model, *, max_rows):
        super().__init__(model, HostMemory(), max_rows=max_rows)
        self.noted = []

    def run(self, plan):
        outputs = super().run(plan)
        self.noted.append((plan.shape.rows, self._passes is self._single_engine))
        return outputs


@pytest.fixture
def on_two_threads(path):
    return OnnxModel.open(path, load_bundle(path), device="cpu", single_engine_threads=2)


def test_weights_count_once_for_each_session(model, on_two_threads):
    size = {role: model.manifest.files[graph.file].bytes for role, graph in model.variant.graphs.items()}
    assert model.weight_bytes == sum(size.values())
    assert on_two_threads.weight_bytes == sum(size.values()) + size["decode"]


def test_the_bits_of_an_answer_do_not_depend_on_the_threads_of_its_steps(model, on_two_threads):
    requests = requests_for(model, 24)
    runner = Noting(on_two_threads, max_rows=8)
    one = logprobs_of(model.runner(max_rows=8), requests, max_rows=8)
    assert_same_bits(logprobs_of(runner, requests, max_rows=8), one)
    assert all(used_all for _, used_all in runner.noted)


def test_single_runner_with_rows_uses_all_processors(on_two_threads):
    (request,) = requests_for(on_two_threads, 1)
    first, second = Noting(on_two_threads, max_rows=1), Noting(on_two_threads, max_rows=1)

    def used_all(runner):
        runner.noted.clear()
        logprobs_of(runner, [request])
        return {used for _, used in runner.noted}

    assert used_all(first) == {True}
    assert used_all(second) == {False}
    assert used_all(first) == {False}
    first.mark_idle()
    assert used_all(second) == {True}
    second.reset()
    assert used_all(first) == {True}


def test_runner_with_many_rows_uses_one_thread(on_two_threads):
    requests = requests_for(on_two_threads, SINGLE_ENGINE_ROWS + 4)
    runner = Noting(on_two_threads, max_rows=SINGLE_ENGINE_ROWS + 4)
    logprobs_of(runner, requests)
    assert {used for rows, used in runner.noted if rows > SINGLE_ENGINE_ROWS} == {False}
    assert {used for rows, used in runner.noted if rows <= SINGLE_ENGINE_ROWS} == {True}


def test_one_thread_needs_no_second_session(model):
    assert model.single_engine_sessions == {}


def test_small_decoder_uses_one_thread(path, model):
    size = model.manifest.graph_bytes(model.variant.graphs["decode"])
    for least, roles in ((size, {"decode"}), (size + 1, set())):
        opened = OnnxModel.open(
            path, load_bundle(path), device="cpu", single_engine_threads=2, single_engine_min_bytes=least
        )
        assert set(opened.single_engine_sessions) == roles


def test_steps_of_a_small_decoder_beside_its_vocabulary_use_one_thread_for_rows_with_shortlists(
    tiny_attention_bundle,
):
    manifest = load_bundle(tiny_attention_bundle)
    graphs = manifest.variant("fp32").graphs
    beside = manifest.graph_bytes(graphs["decode"]) - manifest.graph_bytes(graphs["project_shortlist"])
    for least, divides in ((beside, True), (beside + 1, False)):
        model = OnnxModel.open(
            tiny_attention_bundle,
            manifest,
            device="cpu",
            precision="fp32",
            single_engine_threads=2,
            single_engine_min_bytes=least,
        )
        (request,) = requests_for(model, 1)
        used = []
        for shortlist in ((), (2, 7)):
            runner = Noting(model, max_rows=1)
            logprobs_of(runner, [replace(request, shortlist=shortlist)])
            runner.mark_idle()
            used.append({used_all for _, used_all in runner.noted})
        assert used == [{True}, {divides}]


def test_a_second_session_that_cannot_be_opened_is_a_startup_error(path, model, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no memory")

    monkeypatch.setattr("service.runtime.sessions._open_session", refuse)
    with pytest.raises(StartupError, match=r"cannot be opened on 2 threads: no memory; fix: single_engine_threads 1"):
        open_single_engine_sessions(path, model.manifest, model.choice, threads=2)


@pytest.fixture
def opens_late(path, monkeypatch):
    monkeypatch.setattr("service.runtime.model_sessions.SINGLE_ENGINE_STEPS", 5)
    return OnnxModel.open(path, load_bundle(path), device="cpu", single_engine_threads=2, single_engine_eagerly=False)


def opened_late(model):
    """After those who open it are done."""
    for thread in threading.enumerate():
        if thread.name == "single-engine-sessions":
            thread.join()
    return set(model.single_engine_sessions)


def test_single_engine_sessions_are_opened_after_enough_steps(opens_late):
    runner = Noting(opens_late, max_rows=1)
    request = replace(requests_for(opens_late, 1)[0], prompt=(1,), max_tokens=4)
    weights = opens_late.weight_bytes
    first = logprobs_of(runner, [request])
    assert opened_late(opens_late) == set()
    assert {used_all for _, used_all in runner.noted} == {False}
    assert_same_bits(logprobs_of(runner, [request]), first)
    assert opened_late(opens_late) == {"decode"}
    assert opens_late.weight_bytes == weights + opens_late.manifest.graph_bytes(opens_late.variant.graphs["decode"])
    runner.noted.clear()
    assert_same_bits(logprobs_of(runner, [request]), first)
    assert {used_all for _, used_all in runner.noted} == {True}


def test_a_long_prompt_counts_as_steps(opens_late):
    """Sessions are opened while it is computed, if it is long enough."""
    runner = Noting(opens_late, max_rows=1)
    request = replace(requests_for(opens_late, 1)[0], prompt=(1,) * (4 * 5 + 1), max_tokens=1)
    logprobs_of(runner, [request])  # the steps of a turn are counted in the next one
    runner.mark_idle()
    logprobs_of(runner, [replace(request, prompt=(1,))])
    assert opened_late(opens_late) == {"decode"}


def test_only_steps_that_ran_count(opens_late):
    """A turn plans all steps of its only row at once; here it has no time for more than one."""
    runner = Noting(opens_late, max_rows=1)
    request = replace(requests_for(opens_late, 1)[0], prompt=(1,), options=DecodingOptions(), is_streamed=False)
    planned = []
    decode(
        runner,
        [replace(request, max_tokens=5)],
        on_run=lambda plan, _: planned.append(plan.step.decode.extra.most if plan.step.decode.extra else 0),
        greedy_turn_s=0.0,
    )
    assert planned == [4, 3, 2, 1, 0]
    assert opened_late(opens_late) == set()


def test_a_bundle_that_was_replaced_meanwhile_is_not_opened(tmp_path, path, monkeypatch, caplog):
    monkeypatch.setattr("service.runtime.model_sessions.SINGLE_ENGINE_STEPS", 1)
    copy = tmp_path / "bundle"
    shutil.copytree(path, copy)
    model = OnnxModel.open(copy, load_bundle(copy), device="cpu", single_engine_threads=2, single_engine_eagerly=False)
    with (copy / model.variant.graphs["decode"].file).open("ab") as graph:
        graph.write(b"other")
    requests = requests_for(model, 2)
    runner = model.runner(max_rows=1)
    assert [decode_single(runner, request) for request in requests] == reference(model, requests)
    assert opened_late(model) == set()
    assert "decode steps stay on one thread each: " in caplog.text
    assert model.sessions_for_single_engine(1) == {}
    assert opened_late(model) == set(), "nor tried again"


def test_single_busy_engine_is_reported_until_another_is_busy():
    busy_engines = BusyEngines()
    assert busy_engines.mark_busy("a")
    assert busy_engines.mark_busy("a")
    assert not busy_engines.mark_busy("b")
    assert not busy_engines.mark_busy("a")
    busy_engines.mark_idle("b")
    assert busy_engines.mark_busy("a")


def test_marking_idle_is_idempotent():
    busy_engines = BusyEngines()
    busy_engines.mark_busy("a")
    busy_engines.mark_idle("b")
    busy_engines.mark_idle("a")
    busy_engines.mark_idle("a")
    assert busy_engines.mark_busy("b")


OTHER_PROCESS = """
import mmap, sys
from service.runtime.model_sessions import BusyEngines
busy_engines = BusyEngines(mmap.mmap(int(sys.argv[1]), 0), int(sys.argv[2]))
for line in sys.stdin:
    call, engine = line.split()
    print(getattr(busy_engines, call)(engine), flush=True)
"""


@pytest.fixture
def busy_engines_of_two_processes():
    """Calls a method of the BusyEngines of one of two processes, which share a table of engines, two each."""
    file = os.memfd_create("table")
    os.ftruncate(file, 4)
    here = BusyEngines(mmap.mmap(file, 4), 0)
    command = [sys.executable, "-c", OTHER_PROCESS, str(file), "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, pass_fds=[file], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as there:
        commands: Any = there.stdin
        answers: Any = there.stdout

        def call(process, method, engine):
            if process == 0:
                return getattr(here, method)(engine)
            commands.write(f"{method} {engine}\n")
            return {"True": True, "False": False, "None": None}[answers.readline().strip()]

        yield call, lambda: os.pread(file, 4, 0)
        commands.close()
    os.close(file)


def test_engines_of_two_processes_know_of_each_other(busy_engines_of_two_processes):
    call, table = busy_engines_of_two_processes
    assert call(0, "mark_busy", "a")
    assert not call(1, "mark_busy", "a")
    assert table() == b"\1\0\1\0"
    assert not call(0, "mark_busy", "a")
    call(0, "mark_idle", "a")
    assert call(1, "mark_busy", "a")
    assert not call(1, "mark_busy", "b")
    assert table() == b"\0\0\1\1"


def test_two_processes_agree_on_the_single_busy_engine(busy_engines_of_two_processes):
    call, table = busy_engines_of_two_processes
    draw, busy = random.Random(5), set()
    for _ in range(500):
        engine = draw.randrange(2), draw.choice("ab")
        if draw.random() < 0.5:
            busy.add(engine)
            assert call(engine[0], "mark_busy", engine[1]) == (busy == {engine})
        else:
            busy.discard(engine)
            call(engine[0], "mark_idle", engine[1])
        assert sum(table()) == len(busy)
