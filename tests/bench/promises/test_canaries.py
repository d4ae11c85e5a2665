"""What a measurement of canaries concludes, and the measurement itself in its smallest form."""

import argparse
import json
import subprocess
import sys

import pytest

from bench.promises.canaries import Call, Trial, shadow_summary, summary
from glossa.client.admin import Canary
from tests.tiny import TEXTS, tiny_config, tiny_model

OPTIONS = argparse.Namespace(seconds=18.0, calls=3)
CALLS = [Call(0.1, "old"), Call(0.1, "c1", "INTERNAL: x"), Call(0.1, "c0")]


def trial(kind, version, state, bound="", seconds=8.0):
    canary = Canary(
        model="model", version=version, state=state, bound=bound, reason="", judged_s=seconds, calls=9, failed=0
    )
    return Trial(kind, version, canary, seconds)


GOOD, BAD = trial("good", "c0", "promoted"), trial("slow", "c1", "sent_back", "p99")


def missed(trials=(GOOD, BAD), calls=CALLS):
    _, verdicts = summary(list(trials), list(calls), OPTIONS)
    return [verdict.measure for verdict in verdicts if not verdict.met]


def test_all_is_met_by_good_ones_promoted_bad_ones_back_and_no_other_failure():
    assert missed() == []


@pytest.mark.parametrize(
    ("trials", "calls", "measure"),
    [
        ([trial("good", "c0", "sent_back", "p99"), BAD], CALLS, "good canaries promoted"),
        ([GOOD, trial("leak", "c1", "promoted")], CALLS, "bad canaries sent back"),
        ([GOOD, BAD._replace(seconds=19.0)], CALLS, "bad canaries sent back after the end of their time"),
        ([GOOD, BAD], [*CALLS, Call(0.1, "c0", "INTERNAL: x")], "failed calls but those of bad versions"),
        ([GOOD, BAD], [*CALLS, Call(0.1, "", "UNAVAILABLE: x")], "failed calls but those of bad versions"),
        ([GOOD, BAD], CALLS[:2], "calls"),
    ],
)
def test_anything_else_is_a_miss(trials, calls, measure):
    assert missed(trials, calls) == [measure]


def test_a_shadow_may_cost_two_percent_of_the_p99():
    alone = [0.010] * 200
    assert shadow_summary(alone, [0.0101] * 200, "")[1].met
    assert not shadow_summary(alone, [0.0103] * 200, "")[1].met


@pytest.mark.slow
def test_a_good_and_a_slow_canary_of_tiny_bundles(exported, tmp_path):
    bundles = [str(exported(tiny_model(tiny_config("encoder_decoder"), seed))) for seed in (6, 3)]
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{text}\tzwei\n" for text in TEXTS), encoding="utf-8")
    flags = ["--canaries", "2", "--calls", "40", "--texts", "4", "--phases", "0", "--data", str(data), "--json"]
    command = [sys.executable, "-m", "bench", "canaries", "--bundle", bundles[0], "--other", bundles[1], *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert [verdict for verdict in json.loads(done.stdout)["verdicts"] if not verdict["met"]] == [], done.stdout
