"""Programs that end in every way: what the server learns of it, and what stays open."""

import asyncio
import errno
import gc
import logging
import os
import signal
import sys

import pytest

from service.edge.models.child_process import LINE_BYTES, READS_AT_ONCE, ChildProcess
from service.errors import StartupError

TIMEOUT_S = 60
WAIT_FOREVER = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\nsignal.sigwait({signal.SIGUSR1})\n"


class Noting(logging.Handler):
    """Notes events of the log; `noted` is set with each."""

    def __init__(self):
        super().__init__()
        self.events = []
        self.noted = asyncio.Event()

    def emit(self, record):
        self.events.append((record.getMessage(), getattr(record, "fields", {}), record.levelno))
        self.noted.set()


def open_descriptors():
    return {(name, os.readlink(f"/proc/self/fd/{name}")) for name in os.listdir("/proc/self/fd") if is_open(name)}


def is_open(name):
    return os.path.lexists(f"/proc/self/fd/{name}")


@pytest.fixture
def log():
    handler = Noting()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture
async def started(log, tmp_path, monkeypatch):
    """Starts a program with this code. No descriptor may be left of it."""
    gc.collect()
    before, children = open_descriptors(), []
    monkeypatch.syspath_prepend(tmp_path)

    def started(code, *arguments, files=()):
        (tmp_path / "program_of_test.py").write_text(f"import os, signal, sys\n{code}")
        children.append(ChildProcess("m-0", "program_of_test", arguments, files, os.environ))
        return children[-1]

    yield started
    for child in children:
        child.kill()
        await child.wait(TIMEOUT_S)
    assert not open_descriptors() - before


async def end_of(child):
    return await child.wait(TIMEOUT_S)


async def line_of(child, log):
    """Its next line on standard error."""
    while not log.events:
        log.noted.clear()
        await asyncio.wait_for(log.noted.wait(), TIMEOUT_S)
    return log.events.pop(0)[1]["line"]


@pytest.mark.parametrize(
    ("code", "end", "was_killed"),
    [
        ("pass", "exit status 0", False),
        ("sys.exit(3)", "exit status 3", False),
        ("sys.exit('no such file')", "exit status 1: no such file", False),
        ("print('loading', file=sys.stderr)\nraise ValueError('what')", "exit status 1: ValueError: what", False),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL", True),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", f"killed by signal {signal.SIGRTMIN + 3}", True),
        ("os.write(2, b'half a line')\nos.abort()", "killed by SIGABRT: half a line", True),
        ("os.write(2, b'a\\nb\\n \\n\\n')", "exit status 0: b", False),
    ],
)
async def test_an_end_has_its_cause_and_last_words(started, code, end, was_killed):
    child = started(code)
    assert await end_of(child) == end
    assert child.was_killed == was_killed


async def test_the_last_words_of_a_crash_are_its_kind_however_long_its_report(started):
    child = started(
        "import faulthandler\nfaulthandler.enable()\nprint('loading', file=sys.stderr, flush=True)\n"
        "def crash(depth):\n    crash(depth - 1) if depth else os.kill(os.getpid(), signal.SIGSEGV)\ncrash(300)\n"
    )
    assert await end_of(child) == "killed by SIGSEGV: Fatal Python error: Segmentation fault"
    several = started("import faulthandler\nos.write(2, b'Fatal Python error: Aborted\\n' + b'  frame\\n' * 1000)")
    assert await end_of(several) == "exit status 0: Fatal Python error: Aborted"


async def test_a_module_that_is_not_there_is_an_end_with_its_cause(started):
    started("pass")
    child = ChildProcess("m-0", "no_such_module_of_test", (), (), os.environ)
    assert await end_of(child) == f"exit status 1: {sys.executable}: No module named no_such_module_of_test"


async def test_the_working_directory_is_no_place_of_modules(started, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "json.py").write_text("raise SystemExit('a file of the working directory')")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert await end_of(started("import json\nprint(json.dumps(1), file=sys.stderr)")) == "exit status 0: 1"


async def test_arguments_and_files_are_handed_over_and_nothing_else(started):
    file, other = os.memfd_create("shared"), os.memfd_create("private")
    try:
        child = started(
            "file, other = map(int, sys.argv[1:])\nos.write(file, b'hello')\n"
            "try:\n    os.fstat(other)\nexcept OSError:\n    sys.exit('closed')",
            *map(str, (file, other)),
            files=(file,),
        )
        assert await end_of(child) == "exit status 1: closed"
        assert os.pread(file, 10, 0) == b"hello"
    finally:
        os.close(file)
        os.close(other)


async def test_lines_are_events_of_the_log_while_it_runs(started, log):
    child = started(f"print('loaded', file=sys.stderr, flush=True)\n{WAIT_FOREVER}")
    assert await line_of(child, log) == "loaded"
    child.kill()
    assert await end_of(child) == "killed by SIGKILL: loaded"


async def test_an_event_names_the_process_and_is_a_warning(started, log):
    await end_of(started("os.write(2, b'one\\n\\xff\\n')"))
    assert log.events == [
        ("engine_process_stderr", {"process": "m-0", "line": line}, logging.WARNING) for line in ("one", "\ufffd")
    ]


@pytest.mark.parametrize("size", [LINE_BYTES, LINE_BYTES + 1, 1 << 20])
@pytest.mark.parametrize("ends", [True, False])
async def test_a_long_line_is_cut(started, log, size, ends):
    rest = "os.write(2, b'\\nnext\\n')" if ends else ""
    await end_of(started(f"sys.stderr.write('x' * {size})\nsys.stderr.flush()\n{rest}"))
    assert [fields["line"] for _, fields, _ in log.events] == ["x" * LINE_BYTES] + ["next"] * ends


async def test_a_program_that_never_stops_writing_does_not_stop_the_event_loop(started, monkeypatch):
    child = started(f"os.write(2, b'up\\n')\n{WAIT_FOREVER}")
    reads, reads_at_turn = 0, asyncio.get_running_loop().create_future()

    def note_turn():
        if not reads_at_turn.done():
            reads_at_turn.set_result(reads)

    def endless_until_1000(file, size):
        nonlocal reads
        reads += 1
        asyncio.get_running_loop().call_soon(note_turn)
        return b"x" * size if reads < 1000 else b""

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", endless_until_1000)
        assert await asyncio.wait_for(reads_at_turn, TIMEOUT_S) == READS_AT_ONCE
    child.kill()
    assert (await end_of(child)).startswith("killed by SIGKILL: x")


async def test_a_program_that_does_not_end_is_killed_after_the_timeout(started, log):
    child = started(WAIT_FOREVER)
    assert await child.wait(0.01) == "killed by SIGKILL"
    assert child.was_killed


async def test_waiting_again_has_the_same_answer(started):
    child = started("sys.exit('why')")
    assert [*await asyncio.gather(end_of(child), end_of(child))] == ["exit status 1: why"] * 2
    assert await end_of(child) == "exit status 1: why"


async def test_a_grandchild_that_keeps_standard_error_open_delays_nothing(started):
    read, write = os.pipe()
    try:
        child = started(
            "if os.fork() == 0:\n    os.read(int(sys.argv[1]), 1)\n    os._exit(0)\nos.write(2, b'last')",
            str(read),
            files=(read,),
        )
        assert await end_of(child) == "exit status 0: last"
    finally:
        os.close(read)
        os.close(write)  # which ends the grandchild


async def test_progress_tells_a_stopped_process_from_a_busy_one_and_an_ended_one(started, log):
    child = started("os.write(2, b'up\\n')\nwhile True:\n    sum(range(1000))\n")
    await line_of(child, log)
    first = child.progress()
    while child.progress().cpu_ticks == first.cpu_ticks:
        await asyncio.to_thread(lambda: None)
    os.kill(child.pid, signal.SIGSTOP)
    while (stopped := child.progress()).state != "T":
        await asyncio.to_thread(lambda: None)
    assert first.state in "RS"
    assert stopped.cpu_ticks >= first.cpu_ticks
    child.kill()
    await end_of(child)
    assert child.progress() is None


async def test_a_program_that_cannot_be_started_leaves_no_descriptor(started, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(StartupError, match=r"cannot be started: .*; fix: "):
        started("pass")


async def test_without_descriptors_for_its_errors_no_program_starts(started, monkeypatch):
    def none_left():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pipe", none_left)
    with pytest.raises(StartupError, match=r"cannot be started: .*Too many open files; fix: .* open files"):
        started("pass")


async def test_a_thread_that_runs_shows_although_the_main_thread_sleeps(started):
    child = started(
        "import threading, time\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()\nprint(1)"
    )
    async with asyncio.timeout(TIMEOUT_S):
        while (progress := child.progress()) is None or (progress.state, progress.cpu_ticks > 20) != ("R", True):
            await asyncio.sleep(0)
    child.kill()
    assert "SIGKILL" in await child.wait(TIMEOUT_S)
