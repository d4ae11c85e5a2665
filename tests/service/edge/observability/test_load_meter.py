import math
from typing import Any

import pytest

from service.edge.observability.load_meter import AVERAGED_S, NO_LOAD, LoadMeter, Sample

QUIET = Sample(fullness=0.0, waiting=0.0, running=0.0, kv_cache=0.0, memory=0.5, cpu_s=0.0)


@pytest.fixture
def meter():
    meter: Any = LoadMeter()
    meter.sample = QUIET
    meter.measure = lambda: meter.sample
    return meter


def test_without_a_look_nothing_is_known(meter):
    assert meter.load == NO_LOAD
    assert meter.trailers(True) == ()


def test_the_first_look_counts_fully_and_has_no_rates(meter):
    meter.count(0, 1000)
    meter.sample = QUIET._replace(fullness=1.5, waiting=7, cpu_s=300.0)
    meter.look(50.0)
    assert meter.load == pytest.approx(NO_LOAD._replace(fullness=1.5, waiting=7, memory=0.5))


def test_rates_are_those_of_the_time_between_looks_from_the_second_one_on(meter):
    meter.look(10.0)
    meter.count(0, 30)
    for code in (4, 8, 13, 14):
        meter.count(code)
    for code in (1, 3, 5, 7, 9, 16):  # which callers have caused
        meter.count(code)
    meter.sample = QUIET._replace(cpu_s=1.0)
    meter.look(10.5)
    meter.count(0, 20)
    meter.sample = QUIET._replace(cpu_s=2.0)
    meter.look(11.0)
    first, second = (math.exp(-0.5 / AVERAGED_S) * (1 - math.exp(-0.5 / AVERAGED_S)), 1 - math.exp(-0.5 / AVERAGED_S))
    start = math.exp(-1.0 / AVERAGED_S) * (1 - math.exp(-1.0 / AVERAGED_S))
    total = start + first + second
    assert meter.load.calls == pytest.approx((first * 80 + second * 40) / total)
    assert meter.load.failures == pytest.approx(first * 8 / total)
    assert meter.load.cpu == pytest.approx((first * 2 + second * 2) / total)


def test_a_change_is_seen_by_its_time_constant(meter):
    for tenth in range(600):
        meter.look(tenth / 10)
    meter.sample = QUIET._replace(fullness=2.0)
    for tenth in range(600, 600 + round(AVERAGED_S * 10)):
        meter.look(tenth / 10)
    assert meter.load.fullness == pytest.approx(2 * (1 - math.exp(-1)), rel=0.01)


def test_a_process_that_began_anew_uses_no_negative_time(meter):
    meter.sample = QUIET._replace(cpu_s=100.0)
    meter.look(0.0)
    meter.sample = QUIET
    meter.look(1.0)
    assert meter.load.cpu == 0.0


def test_after_a_pause_old_averages_have_no_weight(meter):
    meter.sample = QUIET._replace(fullness=4.0)
    meter.look(0.0)
    meter.forget()
    assert meter.load == NO_LOAD
    meter.sample = QUIET._replace(fullness=1.0)
    meter.look(1.0)
    assert meter.load.fullness == pytest.approx(1.0)
