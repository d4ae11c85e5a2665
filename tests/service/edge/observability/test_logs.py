import contextlib
import json
import logging
import os
import subprocess
import sys
import threading

import pytest

from service.edge.observability import logs


class Pipe:
    """A pipe that the log is written to."""

    def __init__(self):
        self._read, self.write = os.pipe()

    def lines(self):
        """What has been written and not been read yet. Closes the pipe's end that is written to."""
        self.close_write()
        with open(self._read, encoding="utf-8") as file:
            return file.read().splitlines()

    def lines_until(self, word):
        """Lines up to the first that has `word` in it."""
        with open(self._read, encoding="utf-8", closefd=False) as file:
            found = []
            for line in file:
                found.append(line)
                if word in line:
                    return found
            return found

    def fill(self):
        """Until a write would block."""
        os.set_blocking(self.write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.write, b"x" * 4095 + b"\n")
        os.set_blocking(self.write, True)

    def close_read(self):
        os.close(self._read)

    def close_write(self):
        os.close(self.write)


@pytest.fixture
def write():
    """Writes events to a pipe and returns its lines."""

    def write(style, *events):
        pipe = Pipe()
        writer = logs.LogWriter(style, pipe.write)
        for name, fields, options in events:
            logs.event(name, fields, **options)
        writer.close()
        return pipe.lines()

    return write


def test_json_is_one_object_a_line(write):
    lines = write("auto", ("request", {"code": "OK", "total_s": 0.5}, {}), ("zwei\nZeilen", {"text": "ä\n"}, {}))
    first, second = map(json.loads, lines)
    assert (first["event"], first["level"], first["code"], first["total_s"]) == ("request", "info", "OK", 0.5)
    assert first["time"].endswith("Z")
    assert second["text"] == "ä\n"


def test_an_exception_stays_on_its_line(write):
    try:
        raise ValueError("what")
    except ValueError as error:
        (line,) = write("json", ("failure", {}, {"level": logs.ERROR, "exception": error}))
    assert "ValueError: what" in json.loads(line)["exception"]


def test_pretty_lines_have_the_event_and_its_fields(write):
    (line,) = write("pretty", ("serving", {"grpc": "127.0.0.1:1"}, {}))
    assert "serving" in line
    assert "127.0.0.1:1" in line


def test_escape_sequences_do_not_reach_the_terminal(write):
    (line,) = write("pretty", ("request", {"text": "a\n\x1b[2J"}, {}))
    assert "\x1b[2J" not in line


def test_other_loggers_use_the_same_stream():
    pipe = Pipe()
    writer = logs.LogWriter("json", pipe.write)
    logging.getLogger("asyncio").warning("slow %s", "task")
    writer.close()
    (line,) = pipe.lines()
    assert json.loads(line)["event"] == "slow task"


def test_a_line_that_cannot_be_formatted_is_replaced_and_others_follow():
    pipe = Pipe()
    writer = logs.LogWriter("json", pipe.write)
    writer.handle(logging.LogRecord("asyncio", logging.WARNING, "", 0, "%d", ("no number",), None))
    logs.event("next")
    writer.close()
    first, second = map(json.loads, pipe.lines())
    assert (first["event"], first["text"], second["event"]) == ("malformed_record", "%d", "next")


@pytest.mark.parametrize("style", ["json", "pretty"])
def test_no_line_has_metadata_of_a_client(style):
    pipe = Pipe()
    writer = logs.LogWriter(style, pipe.write)
    try:
        b"secret\xff".decode()
    except UnicodeDecodeError:
        logging.getLogger("grpc._cython.cygrpc").exception("Invalid encoding on %s", b"secret\xff")
    writer.close()
    (line,) = pipe.lines()
    assert "a client's metadata is not UTF-8" in line
    assert "secret" not in line


def test_lines_that_clients_can_cause_are_few_each_second():
    pipe = Pipe()
    writer = logs.LogWriter("json", pipe.write)
    grpc_logger = logging.getLogger("grpc._cython.cygrpc")
    for number in range(50):
        record = grpc_logger.makeRecord(grpc_logger.name, logs.ERROR, "", 0, "line %d", (number,), None)
        record.created = 1000.0 if number < 49 else 1001.0
        grpc_logger.handle(record)
    writer.close()
    found = [json.loads(line) for line in pipe.lines()]
    assert [line["event"] for line in found] == [*(f"line {number}" for number in range(logs.GRPC_LINES_S)), "line 49"]
    assert found[-1]["suppressed"] == 49 - logs.GRPC_LINES_S


def test_clients_that_leave_have_one_line_each_second_without_a_traceback():
    pipe = Pipe()
    writer = logs.LogWriter("json", pipe.write)
    grpc_logger = logging.getLogger("grpc._cython.cygrpc")
    text = "ExecuteBatchError raised in core by servicer method [%s]"
    error = (RuntimeError, RuntimeError("Failed"), None)
    for number in range(12):
        record = grpc_logger.makeRecord(grpc_logger.name, logs.ERROR, "", 0, text, ("/Translate",), error)
        record.created = 1000.0 if number < 11 else 1001.0
        grpc_logger.handle(record)
    writer.close()
    first, second = map(json.loads, pipe.lines())
    assert (first["event"], first["level"], first["suppressed"]) == ("a client left before its answer", "info", 0)
    assert (second["event"], second["suppressed"]) == (first["event"], 10)
    assert "exception" not in first


def test_a_full_pipe_costs_lines_but_never_blocks(monkeypatch):
    monkeypatch.setattr(logs, "MAX_WAITING", 10)
    pipe = Pipe()
    pipe.fill()
    writer = logs.LogWriter("json", pipe.write)
    for number in range(100):
        logs.event("line", {"number": number})
    dropped = writer.dropped
    assert dropped >= 89
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.extend(pipe.lines_until("later")))
    reader.start()
    while True:  # once there is room, the log tells what it has lost
        logs.event("later")
        reader.join(0.01)
        if not reader.is_alive():
            break
    writer.close()
    events = [json.loads(line) for line in found if line.startswith("{")]
    assert sum(event["count"] for event in events if event["event"] == "log_lines_dropped") >= dropped
    assert 10 <= sum(event["event"] == "line" for event in events) <= 11


def test_a_full_pipe_does_not_keep_the_process_alive(monkeypatch):
    monkeypatch.setattr(logs, "CLOSE_S", 0.01)
    pipe = Pipe()
    pipe.fill()
    writer = logs.LogWriter("json", pipe.write)
    for _ in range(5):
        logs.event("line", level=logs.ERROR)
    writer.close()
    assert not writer.is_writing
    assert not any(line.startswith("{") for line in pipe.lines())


def test_a_reader_that_has_gone_is_harmless():
    pipe = Pipe()
    pipe.close_read()
    writer = logs.LogWriter("json", pipe.write)
    logs.event("line")
    writer.close()
    pipe.close_write()
    assert writer.dropped == 1


def test_what_python_would_print_becomes_lines():
    code = """
import threading, warnings
from service.edge.observability import logs
writer = logs.LogWriter("json")
logs.take_over_stderr()
warnings.warn("careful")
class Bad:
    def __del__(self):
        raise ValueError("destructor")
Bad()
def fail():
    raise KeyError("thread")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
writer.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    first, second, third = map(json.loads, done.stderr.splitlines())
    assert (first["event"], first["warning"]) == ("warning", "UserWarning: careful")
    assert "ValueError: destructor" in second["exception"]
    assert "KeyError: 'thread'" in third["exception"]
