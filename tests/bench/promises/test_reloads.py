"""What a measurement of reloads concludes, and the measurement itself in its smallest form."""

import json
import subprocess
import sys

import pytest

from bench.promises.reloads import Answer, Memory, summary
from tests.tiny import TEXTS, tiny_config, tiny_model

KNOWN = {("a", "b", "one"), ("a", "c", "two")}
ANSWERS = [Answer("a", "b", "one", 0.1), Answer("a", "c", "two", 0.2)]
SAME = Memory(100.0, 40.0, 2)


def missed(*more, late=SAME, calls=2):
    _, verdicts = summary([*ANSWERS, *more], [0.5], [SAME, late], KNOWN, calls)
    return [verdict.measure for verdict in verdicts if not verdict.met]


def test_answers_of_either_version_are_expected():
    assert missed() == []


@pytest.mark.parametrize(
    ("answers", "more", "measure"),
    [
        ([Answer("a", "", "", 0.1, "UNAVAILABLE: gone")], {}, "calls that failed"),
        ([Answer("a", "b", "two", 0.1)], {}, "answers that are not those of their bundle"),
        ([Answer("a", "bc", "one", 0.1)], {}, "answers that are not those of their bundle"),
        ([], {"late": Memory(100.0, 40.0, 4)}, "more engine processes"),
        ([], {"late": Memory(120.0, 60.0, 2)}, "growth of memory"),
        ([], {"calls": 3}, "calls"),
    ],
)
def test_anything_else_is_a_miss(answers, more, measure):
    assert missed(*answers, **more) == [measure]


@pytest.mark.slow
def test_four_reloads_of_tiny_bundles(exported, tmp_path):
    bundles = [str(exported(tiny_model(tiny_config("encoder_decoder"), seed))) for seed in (6, 3)]
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{text}\tzwei\n" for text in TEXTS), encoding="utf-8")
    flags = ["--reloads", "4", "--calls", "40", "--clients", "4", "--texts", "4", "--data", str(data), "--json"]
    command = [sys.executable, "-m", "bench", "reloads", "--bundle", bundles[0], "--other", bundles[1], *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    found = json.loads(done.stdout)
    assert [verdict for verdict in found["verdicts"] if not verdict["met"]] == [], done.stdout
    assert found["figures"]["reloads"] == 4
