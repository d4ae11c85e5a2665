"""The line of progress: on a terminal of 80 columns, and nowhere else."""

import os
import re
import sys

from cli.progress import progress


def test_a_line_says_what_is_done_and_how_long_is_left(monkeypatch):
    master, terminal = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with os.fdopen(master, "rb"), os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress() as tell:
            tell("tracing graphs", 0, 0)
            tell("comparing w4a16 with fp32", 99_998, 100_000)
            tell("comparing w4a16 with fp32", 99_999, 100_000)
        written = os.read(master, 1 << 16).decode()
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r", "\n").split("\n")
    assert any(re.search(r"^comparing w4a16 with fp32 \S+ +99999/100000 0:00:00 \S+ left *$", line) for line in lines)
    assert max(map(len, lines)) <= 80
    assert written.endswith("\x1b[2K"), "the line goes"


def test_without_a_terminal_there_is_none(capsys):
    with progress() as tell:
        tell("translating", 1, 2)
    assert capsys.readouterr() == ("", "")
