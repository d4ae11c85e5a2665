"""What a measurement of ends concludes, and the measurement itself in its smallest form."""

import json
import subprocess
import sys

import grpc
import pytest

from bench.promises.drain import Call, End, summary
from tests.tiny import TEXTS

OK, AGAIN, CANCELLED = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED
CALLS = [Call(OK, "", 9.0), Call(OK, "", 10.1), Call(AGAIN, "the server is shutting down", 10.2)]


def missed(calls=CALLS, **end):
    ends = [End(**{"status": 0, "seconds": 1.0, "at_s": 10.0, "failed": 0, **end})]
    figures, verdicts = summary(ends, [list(calls)], 5.0)
    assert figures["of them began before SIGTERM"] == sum(call.began_s < 10.0 for call in calls)
    return [verdict.measure for verdict in verdicts if not verdict.met]


def test_calls_that_are_answered_or_refused_with_a_hint_are_expected():
    assert missed() == []


@pytest.mark.parametrize(
    ("calls", "end", "measure"),
    [
        ([Call(AGAIN, "closed", 9.9)], {}, "calls that began before SIGTERM and failed"),
        ([Call(CANCELLED, "", 10.5)], {}, "calls that ended as CANCELLED"),
        ([Call(grpc.StatusCode.UNKNOWN, "", 10.5)], {}, "calls with another error"),
        ([], {"status": -9}, "ends with a status other than 0"),
        ([], {"seconds": 6.0}, "longest end"),
        ([], {"failed": 1}, "accepted calls that failed, and forged lines, by the log"),
    ],
)
def test_anything_else_is_a_miss(calls, end, measure):
    assert measure in missed([*CALLS, *calls], **end)


@pytest.mark.slow
def test_two_ends_one_with_a_full_log_pipe(tiny_translation_bundle, tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{text}\tzwei\n" for text in TEXTS), encoding="utf-8")
    flags = ["--signals", "2", "--clients", "4", "--channels", "2", "--max-tokens", "4", "--data", str(data), "--json"]
    command = [sys.executable, "-m", "bench", "drain", "--bundle", str(tiny_translation_bundle), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = json.loads(done.stdout)
    assert [verdict for verdict in found["verdicts"] if not verdict["met"]] == []
    assert found["figures"]["of them began before SIGTERM"] > 0
