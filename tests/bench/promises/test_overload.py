"""What a measurement of overload concludes from its loads, and the case in its smallest form."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.load.open_loop import Load, Outcome
from bench.load.status_connection import OK, End
from bench.promises.overload import AFTER_S, QUIET_S, SPIKE_S, judged, recovery_s, tail_s

ROOT = Path(__file__).resolve().parents[3]
LOAD = Load(
    offered=200.0,
    goodput=95.0,
    ends={"OK": 950, "RESOURCE_EXHAUSTED": 1050},
    hinted=1.0,
    refused_s=0.01,
    answered_s=0.9,
    health_s=0.01,
    late_s=0.001,
    overshoot_s=0.01,
    tokens=15200,
)


def missed(load=LOAD, *, factor=2.0, share=0.95, wasted=0.005, counted=0.004):
    found = judged("loud", factor, load, share, wasted, counted)
    return [verdict.measure.removesuffix(", loud") for verdict in found if not verdict.met]


def test_a_load_within_all_bars_is_met():
    assert missed() == []


@pytest.mark.parametrize(
    ("changes", "measure"),
    [
        ({"health_s": 0.06}, "p99 of health checks"),
        ({"overshoot_s": 0.03}, "p99 from a deadline to its call's end"),
        ({"refused_s": 0.06}, "p99 of refusals"),
        ({"hinted": 0.9}, "surplus refused with a hint"),
        ({"ends": {"OK": 950, "RESOURCE_EXHAUSTED": 1000, "LATE": 50}}, "surplus refused with a hint"),
    ],
)
def test_a_bar_that_is_missed_is_named(changes, measure):
    assert missed(LOAD._replace(**changes)) == [measure]


def test_calls_that_end_as_cancelled_are_a_miss():
    ends = {"OK": 950, "RESOURCE_EXHAUSTED": 1049, "CANCELLED": 1}
    assert missed(LOAD._replace(ends=ends)) == ["calls that ended as CANCELLED"]


def test_waste_and_its_metric_have_bars_of_their_own():
    assert missed(wasted=0.02, counted=0.02) == ["wasted tokens"]
    assert missed(wasted=0.02, counted=0.02, factor=10.0) == []
    assert missed(wasted=0.0, counted=0.02) == ["wasted tokens, points between metric and truth"]


def outcomes(slow_until_s, status=OK):
    """Calls every 10 ms, slow from the spike until so long after it."""
    end_s = QUIET_S + SPIKE_S + slow_until_s
    dues = [number / 100 for number in range(round(100 * (QUIET_S + SPIKE_S + AFTER_S)))]
    return [
        Outcome(End(status, None, 1), 0.5, due) if QUIET_S <= due < end_s else Outcome(End(OK, None, 1), 0.1, due)
        for due in dues
    ]


@pytest.mark.parametrize(("slow_until_s", "expected"), [(0.0, 0.0), (0.75, 0.8), (30.0, AFTER_S)])
@pytest.mark.parametrize("status", [OK, "UNAVAILABLE"])
def test_recovery_takes_until_calls_are_as_fast_as_before(slow_until_s, expected, status):
    found = outcomes(slow_until_s, status)
    assert tail_s(found, 0.0, QUIET_S) == 0.1
    assert recovery_s(found, 0.12) == pytest.approx(expected)


def test_a_call_without_an_answer_takes_for_ever():
    assert tail_s([Outcome(End("UNAVAILABLE", 0.5, 0), 0.01, 0.0)], 0.0, 1.0) == math.inf


@pytest.mark.slow
def test_the_case_in_its_smallest_form(tiny_translation_bundle, tmp_path):
    """With a server, and loads of a second; which bars are met depends on the machine."""
    data = tmp_path / "pairs.tsv"
    data.write_text("the red house\tdas rote Haus\n")
    flags = [
        "--data",
        str(data),
        "--tokens",
        "4",
        "--factors",
        "1",
        "2",
        "--seconds",
        "1",
        "--without-recovery",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "bench", "overload", "--bundle", str(tiny_translation_bundle), *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdicts"]
    assert {f"4 tokens, {factor} x: wasted tokens: truth, metric" for factor in (1, 2)} <= set(found["figures"])
