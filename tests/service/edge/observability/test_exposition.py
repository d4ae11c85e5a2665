"""Our text of the metrics is the library's, and both formats can be read."""

import random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from service.edge.observability.exposition import OPEN_METRICS, TEXT, Exposition, content_type
from service.edge.observability.metric_series import RpcSeries, ServerSeries, VersionSeries, bind, families

LIBRARY: dict[str, Any] = {TEXT: generate_latest, OPEN_METRICS: generate_open_metrics}
READ: dict[str, Any] = {TEXT: read_text, OPEN_METRICS: read_open_metrics}
LABELS = ("m", 'quoted "\\ and\nbroken', "ü")


@pytest.fixture
def registry():
    disable_created_metrics()  # as a server does
    return CollectorRegistry()


@pytest.fixture
def exposition(registry):
    """Of series of every kind, with random values."""
    rng, server, rpcs = random.Random(1), families(ServerSeries, registry), families(RpcSeries, registry, "rpc")
    models = families(VersionSeries, registry, "model", "version")
    series = bind(ServerSeries(), server)
    series.in_flight.set(1e300)
    series.backlog_age.set_function(lambda: 0.25)
    for label in LABELS:
        rpc, model = bind(RpcSeries(), rpcs, label), bind(VersionSeries(), models, label, "v1")
        model.rejected("late").inc(12_345_678)
        rpc.handled("OK").inc(3)
        for number in range(100):
            exemplar = {"trace_id": f"{number:032x}"} if number % 3 else None
            model.first_token.observe(rng.expovariate(10), exemplar)
        model.rows.observe_many(7, 1000)
        model.kv_cache.set(rng.random())
    return Exposition((*server.values(), *rpcs.values(), *models.values()), CollectorRegistry())


@pytest.mark.parametrize("kind", LIBRARY)
def test_the_text_is_the_librarys(registry, exposition, kind):
    ours, theirs = exposition.render(kind).decode(), LIBRARY[kind](registry).decode()
    assert sorted(ours.splitlines()) == sorted(theirs.splitlines())
    assert exposition.render(kind).decode() == ours


@pytest.mark.parametrize("kind", READ)
def test_it_can_be_read(exposition, kind):
    found = {family.name: family for family in READ[kind](exposition.render(kind).decode())}
    assert found["glossa_backlog_age_seconds"].samples[0].value == 0.25
    assert {sample.labels["model"] for sample in found["glossa_decode_step_rows"].samples} == set(LABELS)


def test_exemplars_are_in_open_metrics_alone(exposition):
    assert b"trace_id" not in exposition.render(TEXT)
    families_found = read_open_metrics(exposition.render(OPEN_METRICS).decode())
    (family,) = [family for family in families_found if family.name == "glossa_time_to_first_token_seconds"]
    shown = [sample.exemplar for sample in family.samples if sample.exemplar]
    assert len(shown) >= 3 * 5
    assert all(len(exemplar.labels["trace_id"]) == 32 for exemplar in shown)


def test_series_appear_and_vanish(registry):
    gauge = Gauge("glossa_x", "X.", ["name"], registry=registry)
    exposition = Exposition([gauge], CollectorRegistry())
    for change in (lambda: gauge.labels("a").set(1), lambda: gauge.labels("b").set(2), lambda: gauge.remove("a")):
        change()
        assert exposition.render(TEXT) == generate_latest(registry)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html, text/plain;q=0.5", TEXT),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", OPEN_METRICS),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPEN_METRICS),
    ],
)
def test_the_client_chooses(accept, kind):
    assert content_type(accept) == kind
