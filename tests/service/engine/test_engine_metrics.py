"""The protocol of an engine's measurements, and the two classes that fulfil it."""

import inspect

import pytest

from service.edge.observability.metrics import ModelMetrics
from service.engine.engine_metrics import EngineMetrics, NullMetrics

MEASUREMENTS = [name for name, member in vars(EngineMetrics).items() if inspect.isfunction(member) and name[0] != "_"]


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_the_servers_metrics_take_every_measurement_as_engines_report_it(name):
    assert inspect.signature(getattr(ModelMetrics, name)) == inspect.signature(getattr(EngineMetrics, name))


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_no_metrics_take_every_measurement(name):
    _, *parameters = inspect.signature(getattr(EngineMetrics, name)).parameters.values()
    numbers = [number for number, one in enumerate(parameters) if one.kind is not one.KEYWORD_ONLY]
    named = {one.name: 1 for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert getattr(NullMetrics(), name)(*numbers, **named) is None
