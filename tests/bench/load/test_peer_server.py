"""Servers that measurements start end with the measurement, are started without fork(), and say how they ended."""

import os
import signal
import subprocess
import sys

import pytest

from bench.load.peer_server import _listening, ending_with_parent

PARENT = """
import os, subprocess, sys
from bench.load.peer_server import ending_with_parent
os.register_at_fork(before=lambda: print("forked", flush=True))
child = subprocess.Popen(ending_with_parent([sys.executable, "-c", sys.argv[1]]), stdout=subprocess.PIPE)
print(child.stdout.readline().decode().strip(), flush=True)
"""
CHILD = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os.write(int(sys.argv[1]), b"SIGTERM") and os._exit(0))
print("started", flush=True)
signal.pause()
"""


def test_a_command_ends_with_the_process_that_started_it_which_does_not_fork():
    reads, writes = os.pipe()
    child = CHILD.replace("sys.argv[1]", str(writes))
    script = PARENT.replace("stdout=", f"pass_fds=[{writes}], stdout=")
    run = subprocess.run(
        [sys.executable, "-c", script, child], stdout=subprocess.PIPE, text=True, pass_fds=[writes], check=True
    )
    os.close(writes)
    with os.fdopen(reads) as stream:
        assert (run.stdout, stream.read()) == ("started\n", "SIGTERM")


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        (f"os.kill(os.getpid(), {signal.SIGABRT:d})", r"\(ended by SIGABRT\): a last word"),
        ("sys.exit(3)", r"\(exit status 3\): a last word"),
    ],
)
def test_a_server_that_does_not_start_shows_how_it_ended_and_its_log(end, shown):
    program = f"import os, sys; print('a last word', flush=True); {end}"
    with pytest.raises(SystemExit, match=shown), _listening(["-c", program], None):
        pass


def test_a_command_whose_parent_has_ended_already_does_not_start():
    command = ending_with_parent(["echo", "started"])
    command[command.index(str(os.getpid()))] = "1"
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b""
