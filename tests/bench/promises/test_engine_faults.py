"""What a measurement of faults inside engines concludes, and each fault in a real process of a tiny model."""

import argparse

import grpc
import pytest

from bench.promises import engine_faults as case
from bench.promises.engine_faults import Suffered, engine_faults, summary
from bench.promises.process_faults import Call
from tests.tiny import pairs_file

OK, LOST, FAILED = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL


def suffered(fault, at_s, *, lost, logged_after_s=0.5, serves_after_s=1.0):
    ended = {"at_s": at_s + logged_after_s, "process": "m-0", "reason": "hung", "lost_requests": lost}
    return Suffered(fault, at_s, ended, {"at_s": at_s + serves_after_s})


def call(code, ended_s):
    return Call("unary-0", code, "", ended_s - 0.1, ended_s)


FAULTS = [suffered("nan", 10.0, lost=1), suffered("die", 20.0, lost=2)]
CALLS = [call(OK, 9.0), call(FAILED, 10.1), call(LOST, 10.4), call(LOST, 20.3), call(LOST, 20.4), call(OK, 30.0)]


def missed(calls, faults=FAULTS):
    return [verdict.measure for verdict in summary(calls, faults)[1] if not verdict.met]


def test_what_the_log_counts_is_expected():
    assert missed(CALLS) == []


@pytest.mark.parametrize(
    ("calls", "measure"),
    [
        ([*CALLS, call(grpc.StatusCode.UNKNOWN, 12.0)], "requests that ended with another error"),
        ([call(FAILED, 9.5), *CALLS], "requests that failed before any fault"),
        ([*CALLS, call(LOST, 10.45)], "nan: UNAVAILABLE not in the log, or the reverse"),
        (CALLS[:-2], "die: UNAVAILABLE not in the log, or the reverse"),
        ([*CALLS[:4], call(LOST, 20.9)], "die: last answer after that"),
    ],
)
def test_what_should_not_be_is_a_miss(calls, measure):
    assert measure in missed(calls)


def test_late_detections_and_restarts_are_misses():
    late = [suffered("nan", 10.0, lost=0, logged_after_s=1.2, serves_after_s=3.5)]
    assert missed([call(OK, 9.0)], late) == ["nan: detected", "nan: serving again"]


@pytest.mark.slow
def test_every_fault_is_noticed_answered_and_repaired(tiny_translation_bundle, tmp_path, capsys):
    asked = argparse.Namespace(
        bundle=tiny_translation_bundle,
        data=pairs_file(tmp_path),
        faults=list(case.FAULTS),
        heartbeat_s=5.0,
        clients=4,
        count=2,
        recover=False,
        precision="auto",
        max_tokens=20,
        json=False,
    )
    with pytest.raises(SystemExit):
        engine_faults(asked)
    printed = capsys.readouterr().out
    for fault in case.FAULTS:
        assert f"met  {fault}: UNAVAILABLE not in the log, or the reverse: 0" in printed
    for what in ("ended with another error: 0", "answers that differ: 0", "are not refused: 0", "answers of 2: 2"):
        assert what in printed, printed
