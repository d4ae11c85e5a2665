"""Orders to a process and its answers, line by line, and what a failure reports."""

import sys

import pytest

from bench.speed.pipe import Pipe, PipeFailed

WORKER = """
import json, sys
for line in sys.stdin:
    order = json.loads(line)
    if order.get("exit"):
        sys.exit("out of memory")
    print(json.dumps({"error": "too long"} if order.get("bad") else {"sum": sum(order["values"])}), flush=True)
"""


@pytest.fixture
def worker():
    with Pipe("adder", [sys.executable, "-c", WORKER]) as pipe:
        yield pipe


def test_every_order_is_answered(worker):
    assert [worker(values=[1, 2]), worker(values=[5])] == [{"sum": 3}, {"sum": 5}]


def test_an_error_is_raised_and_the_process_goes_on(worker):
    with pytest.raises(PipeFailed, match=r"^adder: \{'bad': True\} failed: too long$"):
        worker(bad=True)
    assert worker(values=[7]) == {"sum": 7}


def test_the_end_of_the_process_is_reported_with_its_last_words(worker):
    with pytest.raises(PipeFailed, match=r"^adder: ended with status 1 on \{'exit': True\}: out of memory"):
        worker(exit=True)
