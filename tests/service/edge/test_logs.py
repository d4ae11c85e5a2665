import io
import json
import logging
import threading

import pytest

from service.edge import logs


@pytest.fixture
def write():
    """Writes events to a stream and returns its lines."""

    def write(style, *events):
        stream = io.StringIO()
        writer = logs.LogWriter(style, stream)
        for name, fields, options in events:
            logs.event(name, fields, **options)
        writer.close()
        return stream.getvalue().splitlines()

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
    stream = io.StringIO()
    writer = logs.LogWriter("json", stream)
    logging.getLogger("asyncio").warning("slow %s", "task")
    writer.close()
    assert json.loads(stream.getvalue())["event"] == "slow task"


class Stuck(io.StringIO):
    """A stream whose reader does not read until it is released."""

    def __init__(self):
        super().__init__()
        self.released = threading.Event()

    def write(self, text):
        self.released.wait(10)
        return super().write(text)


def test_a_blocked_reader_costs_lines_but_never_blocks(monkeypatch):
    monkeypatch.setattr(logs, "MAX_WAITING", 10)
    stream = Stuck()
    writer = logs.LogWriter("json", stream)
    for number in range(100):
        logs.event("line", {"number": number})
    assert writer.dropped >= 89
    stream.released.set()
    writer.close()
    assert 10 <= len(stream.getvalue().splitlines()) <= 11


def test_a_blocked_reader_does_not_keep_the_process_alive(monkeypatch):
    monkeypatch.setattr(logs, "MAX_WAITING", 2)
    monkeypatch.setattr(logs, "CLOSE_S", 0.01)
    stream = Stuck()
    writer = logs.LogWriter("json", stream)
    for _ in range(5):
        logs.event("line")
    writer.close()
    assert stream.getvalue() == ""
    stream.released.set()


def test_a_closed_stream_is_harmless():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    writer = logs.LogWriter("json", Gone())
    logs.event("line")
    writer.close()
    assert writer.dropped == 1
