"""`glossa demo`: what it prints of metrics, and how it continues. The demo itself: `tests/test_readme.py`."""

import functools

from cli.demo import counters
from model.training.data.embedded import embedded_examples
from tests.cli.command import interrupted, run

EXPOSITION = """\
# TYPE glossa_requests_total counter
glossa_requests_total{model="a",outcome="ok"} 3
glossa_requests_total{model="b",outcome="ok"} 4.0
glossa_step_seconds_bucket{le="0.1"} 9
glossa_step_seconds_count 11
glossa_step_seconds_sum 1.5
glossa_rows 7
process_start_time_total 5
"""


def test_counters_are_summed_over_their_labels():
    assert counters(EXPOSITION) == {"glossa_requests_total": 7.0, "glossa_step_seconds_count": 11.0}


def test_an_interrupted_demo_is_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr("model.training.train.train", interrupted)
    few = functools.partial(embedded_examples, most=100)
    monkeypatch.setattr("model.training.data.embedded.embedded_examples", few)
    printed = run("demo", "--out", tmp_path / "my run", fails=True)
    assert "stopped after step 5, state saved in x; to continue, repeat the command\n" in printed
