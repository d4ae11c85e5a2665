"""`gpu-check` in several sittings: what is done is kept, what the time did not suffice for is run again."""

import json
import time

from bench.gpu.findings import has_failed
from bench.gpu.gpu_check import run_parts


def part(seconds=1.0, error=""):
    return {"title": "", "verdicts": [], "error": error, "seconds": seconds}


def test_a_second_sitting_runs_what_the_first_one_left(tmp_path, monkeypatch):
    results, clock, asked = tmp_path / "results.json", [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    takes = {"golden": 100.0, "engine": 150.0, "steps": 200.0, "peers": 50.0}

    def run(name, limit_s):
        asked.append((name, limit_s))
        seconds = min(takes[name], limit_s)
        clock[0] += seconds
        return part(seconds, "not done" if seconds < takes[name] else "")

    def sit():
        asked.clear()
        return list(run_parts(list(takes), run, results=results, part_s=600.0, all_s=360.0))

    assert sit() == ["golden", "engine"]
    assert asked == [("golden", 360.0), ("engine", 260.0), ("steps", 110.0)]
    assert sit() == list(takes)
    assert asked == [("steps", 360.0), ("peers", 160.0)]
    assert json.loads(results.read_text()).keys() == takes.keys()
    assert sit() == list(takes)
    assert asked == []


def test_a_part_that_fails_is_done(tmp_path):
    results = tmp_path / "results.json"
    found = run_parts(["golden"], lambda name, limit_s: part(error="no"), results=results, part_s=9.0, all_s=9.0)
    assert found["golden"]["error"] == "no"
    assert has_failed(found["golden"])


def test_without_a_file_every_part_is_run():
    ran = []

    def run(name, limit_s):
        ran.append(name)
        return part()

    for _ in range(2):
        run_parts(["golden"], run, results=None, part_s=9.0, all_s=9.0)
    assert ran == ["golden", "golden"]
