"""`glossa demo`: what it trains on, what it prints of metrics, and how it continues. The demo itself:
`tests/test_readme.py`."""

from typing import Any

from cli.demo import SCENES, counters
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


def test_the_demo_trains_on_scenes_and_everyday_pairs(tmp_path, monkeypatch):
    given: dict[str, Any] = {}

    def train(model, config, *, data, start, **_):
        given.update(vocabulary=model.vocab_size, pairs=data.pairs, base=start.base)
        interrupted()

    monkeypatch.setattr("model.training.train.train", train)
    printed = run("demo", "--out", tmp_path / "my run", fails=True)
    assert "stopped after step 5, state saved in x; to continue, repeat the command\n" in printed
    assert given["vocabulary"] == given["base"].tokenizer.vocab_size
    assert ("That's a beautiful name.", "Das ist ein schöner Name.") in given["pairs"][SCENES:]


def test_a_demo_without_its_model_says_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("cli.demo.EVERYDAY", tmp_path / "everyday")
    printed = run("demo", "--out", tmp_path / "run", fails=True)
    assert "everyday: no such directory; run the demo from a clone" in printed.replace("\n", " ")
