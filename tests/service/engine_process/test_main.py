"""The program of an engine process, as the edge starts it: how it refuses, opens and ends."""

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from glossa.version import VERSION
from service.engine_process import limits
from service.settings.engine_settings import EngineSettings
from service.wire import messages
from service.wire.channel import receive, send, socket_pair
from service.wire.messages import Beat, Close, Opened, Refused, Start, Work, decode_from_engine, encode

TIMEOUT_S = 120


def start(path="/nowhere", **changes):
    known: dict[str, Any] = {
        "program": VERSION,
        "model": "m",
        "settings": EngineSettings(device="cpu"),
        "first_engine": 0,
    }
    return Start(path=str(path), **(known | changes))


@pytest.fixture
def running():
    """Starts the program. Returns it, and the edge's end of its connection."""
    processes, ends = [], []
    table = os.memfd_create("table", os.MFD_CLOEXEC)
    os.ftruncate(table, 16)

    def running():
        end, theirs = socket_pair()
        end.settimeout(TIMEOUT_S)
        files = (theirs.fileno(), table)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "service.engine_process", *map(str, files), str(os.getpid())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=files,
                stderr=subprocess.PIPE,
                text=True,
            )
        processes.append(process)
        ends.append(end)
        return process, end

    yield running
    os.close(table)
    for end in ends:
        end.close()
    for process in processes:
        process.kill()
        process.communicate()


def how_it_ended(process):
    """Its exit status, and what it said on standard error."""
    _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors


@pytest.mark.parametrize(
    "first",
    [
        encode(start(version=messages.VERSION + 1)),
        encode(start(program="0.1.0")),
        encode(Work([], [])),
        encode(Close()),
        encode(Refused("from an engine process")),
        b"GET / HTTP/1.1",
    ],
    ids=["version", "program", "work", "close", "other direction", "no message"],
)
def test_another_first_message_is_refused_with_cause_and_fix(running, first):
    process, end = running()
    send(end, first)
    refused = decode_from_engine(receive(end))
    assert isinstance(refused, Refused)
    assert f"this is Glossa {VERSION}, which got " in refused.message
    assert refused.message.endswith("; fix: restart the server")
    assert receive(end) == b""
    assert how_it_ended(process) == (1, "")


def test_a_first_packet_that_is_none_is_refused(running):
    process, end = running()
    with open(os.devnull, "rb") as file:
        socket.send_fds(end, [b"\0"], [file.fileno()])
    refused = decode_from_engine(receive(end))
    assert isinstance(refused, Refused)
    assert "instead of a sealed one" in refused.message
    assert how_it_ended(process) == (1, "")


def test_the_end_of_the_connection_before_the_first_message_ends_it_quietly(running):
    process, end = running()
    end.close()
    assert how_it_ended(process) == (0, "")


def test_a_bundle_that_cannot_be_opened_is_refused_with_its_cause(running, tmp_path):
    process, end = running()
    send(end, encode(start(tmp_path)))
    refused = decode_from_engine(receive(end))
    assert isinstance(refused, Refused)
    assert str(tmp_path) in refused.message
    assert receive(end) == b""
    assert how_it_ended(process) == (1, "")


@pytest.mark.parametrize("is_asked", [True, False])
def test_an_open_process_beats_until_the_end_of_the_connection(running, tiny_translation_bundle, is_asked):
    process, end = running()
    settings = EngineSettings(device="cpu", engines=2, processors=(min(os.sched_getaffinity(0)),))
    send(end, encode(start(tiny_translation_bundle, settings=settings)))
    opened = decode_from_engine(receive(end))
    assert isinstance(opened, Opened)
    assert opened.engines == 2
    beat = decode_from_engine(receive(end))
    assert isinstance(beat, Beat)
    assert len(beat.states) == 2
    assert os.sched_getaffinity(process.pid) == set(settings.processors)
    with open(f"/proc/{process.pid}/oom_score_adj") as file:
        assert int(file.read()) == limits.OOM_SCORE
    if is_asked:
        send(end, encode(Close()))
    else:
        end.close()
    assert how_it_ended(process) == (0, "")
