import dataclasses
import json
import math
import random
import sys

import numpy as np
import pytest

from cli.load.load_generator import OK, UNFINISHED, Load, Outcome, Window
from cli.load.load_report import (
    Figures,
    Objectives,
    block,
    check_plot,
    draw,
    fewest_misses,
    figures,
    highest_sustained,
    percentile,
    spread,
    summary,
)
from cli.terminal import UsageError

WINDOW = Window(warm_up_s=10, duration_s=20)


def outcome(at_s, *, lag_s=0.0, first_s=0.1, gaps_s=(0.1, 0.1), status=OK, message=""):
    """A request that was answered by `first_s` after it was to be sent, and one more token after each gap."""
    pieces, now_s = [], at_s + first_s
    for gap_s in (0.0, *gaps_s):
        now_s += gap_s
        pieces.append((now_s, 1))
    if status != OK:
        pieces = []
    return Outcome(intended_s=at_s, sent_s=at_s + lag_s, ended_s=now_s, status=status, message=message, pieces=pieces)


def load(*outcomes, **changes):
    values = {"window": WINDOW, "outcomes": outcomes, "most_outstanding": 3, "cpu_s": 1.5, "wall_s": 30.0}
    return Load(**{**values, **changes})


def made(*outcomes, objectives=None, rate=5.0, **changes):
    return figures(load(*outcomes), objectives or Objectives(), rate=rate, **changes)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 99, 100, 101, 1000])
@pytest.mark.parametrize("q", [1, 50, 90, 95, 99, 99.9, 100])
def test_percentiles_are_numpys(count, q):
    rng = random.Random(count)
    values = [rng.expovariate(1) for _ in range(count)]
    assert percentile(values, q) == pytest.approx(np.percentile(values, q), rel=1e-12)


def test_percentiles_with_infinite_values():
    values = [*range(99), math.inf]
    assert percentile(values, 98) == pytest.approx(97.02)
    assert percentile(values, 99) == math.inf
    assert percentile([math.inf, math.inf], 50) == math.inf


def test_spread_is_in_milliseconds():
    data = spread(float(number) for number in range(1, 102))
    assert data is not None
    assert dataclasses.astuple(data) == pytest.approx((51.0, 51.0, 91.0, 96.0, 100.0, 101.0))
    assert spread([]) is None


def test_figures_of_a_load():
    outcomes = [outcome(at_s) for at_s in (2.0, 12.0, 14.0, 16.0)]
    data = made(*outcomes, outcome(18.0, first_s=0.5, gaps_s=(1.5,)))
    assert (data.requests, data.answered, data.failed, data.tokens) == (4, 4, 0, 11)
    assert (data.offered_rps, data.achieved_rps, data.tokens_per_s) == pytest.approx((4 / 20, 4 / 20, 11 / 20))
    assert (data.goodput_rps, data.good_share) == pytest.approx((3 / 20, 3 / 4))
    assert data.end_to_end_ms is not None
    assert (data.end_to_end_ms.p50, data.end_to_end_ms.max) == pytest.approx((300.0, 2000.0))
    assert data.first_token_ms is not None
    assert data.first_token_ms.mean == pytest.approx((3 * 100 + 500) / 4)
    assert data.inter_token_ms is not None
    assert data.inter_token_ms.mean == pytest.approx((6 * 100 + 1500) / 7)
    assert data.per_token_ms is not None
    assert data.per_token_ms.mean == pytest.approx((3 * 100 + 1500) / 4)
    assert data.cpu_share == pytest.approx(0.05)


def test_the_warm_up_counts_only_in_what_arrives_later():
    slow = outcome(2.0, first_s=9.0, gaps_s=(0.5, 30.0))  # tokens at 11, 11.5 and 41.5 s
    data = made(slow, outcome(12.0))
    assert (data.requests, data.answered) == (1, 1)
    assert data.end_to_end_ms is not None
    assert data.end_to_end_ms.max == pytest.approx(300.0)
    assert data.tokens_per_s == pytest.approx(5 / 20)
    assert data.achieved_rps == pytest.approx(1 / 20)


def test_answers_after_the_measured_time_do_not_count_as_throughput():
    data = made(outcome(29.9, first_s=0.05, gaps_s=(0.5,)))
    assert (data.answered, data.good_share) == (1, 1.0)
    assert data.tokens_per_s == pytest.approx(1 / 20)
    assert data.achieved_rps == 0


def test_failures_are_counted_by_status_and_never_good():
    failed = [outcome(13.0, status="UNAVAILABLE", message="gone"), outcome(14.0, status="UNAVAILABLE", message="later")]
    data = made(outcome(12.0), *failed, outcome(15.0, status=UNFINISHED))
    assert data.statuses == {"UNAVAILABLE": 2, OK: 1, UNFINISHED: 1}
    assert data.failures == {"UNAVAILABLE": "gone"}
    assert (data.answered, data.failed, data.good_share) == (1, 3, 0.25)
    assert data.objective_ms == {"end_to_end_ms": None}
    assert not data.sustained
    assert any("still running" in warning for warning in data.warnings)
    assert "UNAVAILABLE: 2  gone" in block(data)


def test_rejections_do_not_improve_latency():
    answered = [outcome(10 + 0.1 * number) for number in range(98)]
    refused = [outcome(20 + number, status="RESOURCE_EXHAUSTED") for number in range(2)]
    assert made(*answered, *answered, *refused[:1]).sustained
    assert not made(*answered, *refused).sustained


def test_a_rate_is_sustained_when_every_percentile_is_within_its_limit():
    outcomes = [outcome(10 + 0.1 * number, first_s=0.2, gaps_s=(0.1, 0.3)) for number in range(100)]
    assert made(*outcomes).sustained
    for limits, expected in (
        ({"end_to_end_ms": 610}, True),
        ({"end_to_end_ms": 590}, False),
        ({"first_token_ms": 210}, True),
        ({"first_token_ms": 190}, False),
        ({"inter_token_ms": 310}, True),
        ({"inter_token_ms": 290}, False),
        ({"inter_token_ms": 290, "percentile": 50.0}, True),
    ):
        data = made(*outcomes, objectives=Objectives(**limits))
        assert data.sustained == expected, limits
        assert data.good_share == (1.0 if expected else 0.0), limits
    both = Objectives(first_token_ms=1000, inter_token_ms=1000)
    assert made(*outcomes, objectives=both).objective_ms == pytest.approx(
        {"end_to_end_ms": 600.0, "first_token_ms": 200.0, "inter_token_ms": 300.0}
    )


def test_good_requests_meet_all_objectives_at_once():
    outcomes = [outcome(12.0, first_s=0.5), outcome(13.0, gaps_s=(0.9,)), outcome(14.0, gaps_s=(0.3,) * 4), outcome(15)]
    limits = Objectives(end_to_end_ms=1100, first_token_ms=400, inter_token_ms=500)
    assert [limits.are_met_by(item) for item in outcomes] == [False, False, False, True]


def test_an_answer_without_tokens_never_had_a_first_one():
    silent = Outcome(intended_s=12.0, sent_s=12.0, ended_s=12.5, status=OK)
    assert Objectives().are_met_by(silent)
    limits = Objectives(first_token_ms=500)
    assert not limits.are_met_by(silent)
    assert made(silent, objectives=limits).objective_ms["first_token_ms"] is None


def test_unary_calls_have_no_token_latencies():
    data = made(outcome(12.0), is_streamed=False)
    assert (data.first_token_ms, data.inter_token_ms, data.per_token_ms) == (None, None, None)
    assert data.tokens == 3
    assert "first token" not in block(data)


def test_a_late_generator_is_reported():
    outcomes = [outcome(10 + 0.1 * number) for number in range(150)]
    assert made(*outcomes).warnings == ()
    late = [dataclasses.replace(item, sent_s=item.intended_s + 0.02) for item in outcomes]
    data = made(*late)
    assert (data.lag_p99_ms, data.lag_max_ms) == pytest.approx((20.0, 20.0))
    (warning,) = data.warnings
    assert "20 ms late" in warning
    assert "nice" in warning
    slow = [outcome(10 + 0.1 * number, first_s=0.7, lag_s=0.02) for number in range(150)]
    assert made(*slow).warnings == ()  # 20 of 900 ms


def test_a_busy_generator_too_few_connections_and_too_few_requests_are_reported():
    outcomes = [outcome(10 + 0.1 * number) for number in range(150)]
    (busy,) = figures(load(*outcomes, cpu_s=29.0), Objectives(), rate=5.0).warnings
    assert "0.97 of the one core" in busy
    crowded = figures(load(*outcomes, most_outstanding=600), Objectives(), rate=5.0, connections=2)
    assert "600 concurrent requests on 2 connections" in crowded.warnings[0]
    assert figures(load(*outcomes, most_outstanding=600), Objectives(), rate=5.0, connections=3).warnings == ()
    assert "p99 of 50 requests" in made(*outcomes[:50]).warnings[0]


def test_a_load_without_requests_is_not_sustained():
    data = made(outcome(3.0))
    assert (data.requests, data.sustained, data.end_to_end_ms) == (0, False, None)
    assert "no request was scheduled in the measured time" in data.warnings[0]
    json.dumps(dataclasses.asdict(data), allow_nan=False)
    block(data)


def test_a_load_cut_short_is_not_sustained():
    data = figures(load(outcome(12.0), is_cut_short=True, wall_s=15.0), Objectives(), rate=5.0)
    assert data.offered_rps == pytest.approx(1 / 5)
    assert not data.sustained
    assert "NOT sustained, cut short" in block(data)


@pytest.mark.parametrize("requests", [1, 2, 50, 100, 101, 300])
@pytest.mark.parametrize("q", [50.0, 99.0, 100.0])
def test_a_load_is_hopeless_exactly_when_the_rest_cannot_mend_it(requests, q):
    fewest = fewest_misses(requests, Objectives(percentile=q))
    for missed in range(requests + 1):
        ends = [1.001] * missed + [0.0] * (requests - missed)  # those missing: barely late; all others at once
        assert (percentile(ends, q) > 1.0) == (missed >= fewest)


def sustained(rate, is_sustained):
    return dataclasses.replace(made(outcome(12.0), rate=rate), sustained=is_sustained)


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ([], None),
        ([(5.0, False)], None),
        ([(5.0, True), (10.0, True), (20.0, False)], 10.0),
        ([(5.0, True), (10.0, False), (20.0, True)], 5.0),
    ],
)
def test_the_highest_sustained_rate_has_no_failed_one_below(tried, expected):
    assert highest_sustained(sustained(*item) for item in tried) == expected


def test_a_closed_loop_has_no_highest_rate():
    assert highest_sustained([made(outcome(12.0), rate=None, concurrency=4)]) is None


def test_the_summary_has_a_line_for_each_load_the_lightest_first():
    lines = summary([sustained(20.0, False), sustained(5.0, True)]).splitlines()
    assert [line.split()[0] for line in lines] == ["load", "5/s", "20/s"]
    assert [line.endswith("sustained") for line in lines] == [False, True, False]
    closed = summary([made(outcome(12.0), rate=None, concurrency=4), made(rate=None, concurrency=2)]).splitlines()
    assert closed[1].split()[:2] == ["2", "clients"]
    assert closed[1].split()[-1] == "-"


def test_loads_cut_short_are_marked_and_drawn_as_lines(tmp_path):
    cut = [figures(load(outcome(12.0), is_cut_short=True, wall_s=12.5), Objectives(), rate=rate) for rate in (8.0, 9.0)]
    whole = made(outcome(12.0), outcome(13.0))
    assert [line.endswith("  cut short") for line in summary([whole, *cut]).splitlines()] == [False, False, True, True]
    draw(tmp_path / "load.svg", "a title", [whole, *cut], Objectives())
    assert (tmp_path / "load.svg").read_text().count("cut short, not sustained") == 1


def test_every_figure_is_json():
    data = dataclasses.asdict(made(*(outcome(12.0, status=status) for status in (OK, "INTERNAL"))))
    assert json.loads(json.dumps(data, allow_nan=False)) == {**data, "warnings": list(data["warnings"])}
    assert data.keys() == {item.name for item in dataclasses.fields(Figures)}


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_plot_is_drawn(tmp_path, suffix, is_open):
    loads = [
        made(outcome(12.0), outcome(13.0), rate=5.0 if is_open else None, concurrency=None if is_open else 5),
        made(rate=10.0 if is_open else None, concurrency=None if is_open else 10),
    ]
    path = tmp_path / f"load{suffix}"
    check_plot(path)
    draw(path, "a title", loads, Objectives())
    image = path.read_bytes()
    assert image.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    if suffix == ".svg":
        assert (b"offered load, requests/s" in image) == is_open  # axes' titles are comments of their outlines
        assert (b"concurrent clients (closed loop)" in image) == (not is_open)


def test_a_plot_that_cannot_be_drawn_is_rejected_before_the_load(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"must end in \.png or \.svg, got '\.jpg'"):
        check_plot(tmp_path / "load.jpg")
    with pytest.raises(UsageError, match="is not a directory"):
        check_plot(tmp_path / "none" / "load.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="needs matplotlib; fix: pip install matplotlib"):
        check_plot(tmp_path / "load.png")
