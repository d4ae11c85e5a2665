"""What a measurement of faults concludes from the calls of its clients and the server's log."""

import asyncio
import signal

import grpc
import pytest

from bench.promises.process_faults import Call, Fault, Log, summary

OK, LOST, FAILED = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL


def fault(at_s, lost, number=signal.SIGKILL, serves_after_s=1.0):
    ended = {"at_s": at_s + 0.01, "process": "model-0", "lost_requests": lost, "restart_in_s": 0.0}
    return Fault(number, at_s, ended, {"at_s": at_s + serves_after_s})


def call(code, ended_s):
    return Call("unary-0", code, "", ended_s - 0.5, ended_s)


FAULTS = [fault(10.0, 1), fault(20.0, 2, signal.SIGSTOP)]
CALLS = [call(OK, 9.0), call(LOST, 10.05), call(OK, 11.0), call(LOST, 20.9), call(LOST, 21.0), call(OK, 22.0)]


def missed(calls, faults=FAULTS):
    _, verdicts = summary(calls, faults)
    return [verdict.measure for verdict in verdicts if not verdict.met]


def test_requests_that_the_log_counts_as_lost_are_expected():
    assert missed(CALLS) == []


@pytest.mark.parametrize(
    "calls",
    [
        [*CALLS, call(LOST, 9.5)],
        [*CALLS, call(LOST, 10.06)],
        CALLS[:-2],
        [call(LOST, 20.5) if one == CALLS[1] else one for one in CALLS],
    ],
    ids=["before any fault", "more than in the log", "fewer than in the log", "of another fault"],
)
def test_any_other_lost_request_is_a_miss(calls):
    assert "UNAVAILABLE without a lost request in the log, or the reverse" in missed(calls)


def test_another_error_is_a_miss():
    assert missed([*CALLS, call(FAILED, 12.0)]) == ["requests with another error"]


def test_a_late_answer_and_a_late_restart_are_misses():
    late = [call(LOST, 10.2) if one == CALLS[1] else one for one in CALLS]
    assert missed(late, [fault(10.0, 1, serves_after_s=2.5), FAULTS[1]]) == [
        "SIGKILL: longest until a request was answered",
        "SIGKILL: longest until serving again",
    ]


def test_events_of_a_log_have_the_time_of_their_line(tmp_path):
    file = tmp_path / "log"
    file.write_text(
        'not JSON\n{"time": "1970-01-01T00:01:00.500Z", "event": "other"}\n'
        '{"time": "1970-01-01T00:02:00.250Z", "event": "wanted", "lost_requests": 3}\n'
    )
    with file.open() as lines:
        found = asyncio.run(Log(lines).wait_for("wanted"))
    assert (found["at_s"], found["lost_requests"]) == (120.25, 3)
