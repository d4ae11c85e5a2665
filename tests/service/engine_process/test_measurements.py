import inspect
import threading
from collections import deque
from typing import Any, get_args

from service.engine.engine_metrics import EngineMetrics
from service.engine_process.measurements import Measurements
from service.wire.messages import MeasurementName

NAMES = get_args(MeasurementName)


class Noting:
    """Notes the arguments of every call by their names in `EngineMetrics`."""

    def __init__(self):
        self.noted: list[Any] = []

    def __getattr__(self, name):
        signature = inspect.signature(getattr(EngineMetrics, name))

        def note(*numbers, **named):
            bound = signature.bind(self, *numbers, **named)
            bound.apply_defaults()
            self.noted.append((name, {key: value for key, value in bound.arguments.items() if key != "self"}))

        return note


def make_calls(metrics):
    """Calls of every method, with arguments by place and by name."""
    metrics.admitted(0.1, 7)
    metrics.admitted(0.1, prompt_tokens=8)
    metrics.preempted(2)
    metrics.prefilled(0.2, 48, padding=9)
    metrics.looked_up(9, 1, reused=4)
    metrics.stepped(0.3, 32)
    metrics.stepped(0.3, rows=31, steps=4)
    metrics.speculated(drafted=3, accepted=2)
    metrics.first_token(0.4)
    metrics.next_tokens(0.5, 6)
    metrics.generated(11)
    metrics.finished("length", 0)
    metrics.finished("cancelled", wasted_tokens=5)


def test_repeated_calls_mean_the_same_as_the_first_ones():
    direct, repeated, measurements = Noting(), Noting(), Measurements()
    make_calls(direct)
    make_calls(measurements)
    for name, numbers in measurements.take():
        getattr(repeated, name)(*numbers)
    assert repeated.noted == direct.noted
    assert {name for name, _ in direct.noted} == set(NAMES)


def test_every_measurement_of_an_engine_has_a_name_on_the_wire():
    assert set(NAMES) == {name for name in vars(EngineMetrics) if not name.startswith("_")}


def test_a_measurement_is_taken_once():
    measurements = Measurements()
    measurements.generated(1)
    measurements.generated(2)
    assert measurements.take() == [("generated", (1,)), ("generated", (2,))]
    assert measurements.take() == []
    measurements.generated(3)
    assert measurements.take() == [("generated", (3,))]


def test_measurements_that_are_taken_meanwhile_are_neither_lost_nor_repeated():
    measurements, taken = Measurements(), []
    engine = threading.Thread(target=lambda: [measurements.generated(number) for number in range(20_000)])
    engine.start()
    while engine.is_alive():
        taken += measurements.take()
    taken += measurements.take()
    assert taken == [("generated", (number,)) for number in range(20_000)]


class Shared(deque[Any]):
    """Another thread takes a call as soon as they have been counted."""

    def __len__(self):
        count = super().__len__()
        self.popleft()
        return count


def test_what_another_thread_takes_meanwhile_is_left_out():
    measurements = Measurements()
    measurements._calls = Shared()
    for number in range(3):
        measurements.generated(number)
    assert measurements.take() == [("generated", (1,)), ("generated", (2,))]
