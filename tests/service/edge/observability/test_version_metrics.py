from functools import partial
from typing import Any

import pytest

from service.edge.observability.metrics import Metrics
from service.engine.core import Snapshot
from service.errors import Overloaded
from service.machine.execution_choice import ExecutionChoice
from service.measurements import Generated, RequestEnded
from tests.edge import CHOICE, manifest
from tests.service.edge.observability.test_metrics import beat, families, value

WEIGHTS = {"weights": 10}


@pytest.fixture
def metrics():
    return Metrics()


def opened(metrics, version, process="en-de-0", name="en-de"):
    """The metrics of a version with one engine and one process, and what ends both."""
    found = metrics.model(name).open(version)
    found.describe(manifest(), CHOICE, bundle_sha256=f"digest of {version}")
    processes: Any = partial(dict, {process: beat()})
    remove = found.measure(lambda: [Snapshot(2, 3)], lambda: WEIGHTS, processes, lambda: (64, 8))

    def close():
        remove()
        found.close()

    return found, close


def versions(metrics, name="en-de"):
    """The versions of which there is any series; the empty one has rejections only."""
    return {
        sample.labels["version"]
        for family in families(metrics).values()
        for sample in family.samples
        if sample.labels.get("model") == name and "version" in sample.labels
    }


def answer(metrics, version):
    metrics.request_answered(
        "en-de", version, "", seconds=0.03, first_token_s=0.02, prompt_tokens=5, generated_tokens=9, trace_id="ab" * 16
    )


def test_each_version_counts_what_is_its_own(metrics):
    old, new = (opened(metrics, version, f"en-de-{place}")[0] for place, version in enumerate(("v1", "v2")))
    old.measured([Generated(7)])
    new.measured([Generated(2), RequestEnded("length", 0)])
    new.process_worked("en-de-1", 0.5)
    new.process_ended("killed")
    answer(metrics, "v2")
    metrics.request_rejected(Overloaded("full", retry_after_s=1, limit=1), "en-de", "v2")
    metrics.tokens_wasted("en-de", "v2", 3)
    metrics.terms_translated("en-de", "v2", 4, 1)

    def both(name, **labels):
        return [value(metrics, name, model="en-de", version=version, **labels) for version in ("v1", "v2")]

    assert both("glossa_generated_tokens_total") == [7, 2]
    assert both("glossa_requests_finished_total", reason="length") == [0, 1]
    assert both("glossa_request_seconds_count") == [0, 1]
    assert both("glossa_requests_rejected_total", reason="queue_full") == [0, 1]
    assert both("glossa_wasted_tokens_total") == [0, 3]
    assert both("glossa_glossary_terms_total") == [0, 4]
    assert both("glossa_engine_process_restarts_total", reason="killed") == [0, 1]
    assert both("glossa_requests_queued") == [3, 3]
    assert both("glossa_rows_limit") == [64, 64]
    assert value(metrics, "glossa_engine_process_cpu_seconds_total", version="v2", process="en-de-1") == 0.5
    assert value(metrics, "glossa_model_versions", model="en-de") == 2


def test_the_series_of_a_version_end_with_it_for_good(metrics):
    old, close = opened(metrics, "v1")
    opened(metrics, "v2", "en-de-1")
    before = len(metrics.render().splitlines())
    close()
    assert versions(metrics) == {"v2"}
    assert len(metrics.render().splitlines()) < before
    assert value(metrics, "glossa_model_versions", model="en-de") == 1
    # What comes late counts nowhere, and above all brings no series back.
    old.measured([Generated(7), RequestEnded("length", 3)])
    old.process_worked("en-de-0", 1.0)
    old.process_ended("killed")
    answer(metrics, "v1")
    metrics.tokens_wasted("en-de", "v1", 3)
    metrics.terms_translated("en-de", "v1", 4, 1)
    assert versions(metrics) == {"v2"}
    assert value(metrics, "glossa_generated_tokens_total", model="en-de") == 0


def test_a_rejection_for_a_version_that_has_ended_is_counted_without_it(metrics):
    _, close = opened(metrics, "v1")
    close()
    metrics.request_rejected(Overloaded("full", retry_after_s=1, limit=1), "en-de", "v1")
    assert value(metrics, "glossa_requests_rejected_total", model="en-de", reason="queue_full") == 1
    assert versions(metrics) == {""}


def test_a_thousand_versions_leave_the_series_of_one(metrics):
    _, close = opened(metrics, "v0")
    lines = len(metrics.render().splitlines())
    for number in range(1, 1000):
        _, close_new = opened(metrics, f"v{number}")
        close()
        close = close_new
    assert len(metrics.render().splitlines()) == lines
    assert versions(metrics) == {"v999"}


def test_two_bundles_of_one_name_have_one_series_until_both_have_ended(metrics):
    old, close_old = opened(metrics, "v1")
    new, close_new = opened(metrics, "v1", "en-de-1")
    assert new is old
    names = ("glossa_model_versions", "glossa_requests_queued", "glossa_rows_limit")

    def measured():
        weights = value(metrics, "glossa_memory_bytes", model="en-de", kind="weights")
        return [*(value(metrics, name, model="en-de") for name in names), weights]

    assert measured() == [2, 6, 128, 20]
    close_old()
    assert measured() == [1, 3, 64, 10]
    assert [sample.labels["process"] for sample in families(metrics)["glossa_engine_process_up"].samples] == ["en-de-1"]
    close_new()
    assert versions(metrics) == set()


def test_one_version_is_the_default(metrics):
    model = metrics.model("en-de")
    opened(metrics, "v1")
    model.make_default("v1")
    opened(metrics, "v2", "en-de-1")

    def default():
        return [value(metrics, "glossa_version_default", version=version) for version in ("v1", "v2")]

    assert default() == [1, 0]
    model.make_default("v2")
    assert default() == [0, 1]


def test_a_version_that_runs_elsewhere_is_described_once(metrics):
    version, _ = opened(metrics, "v1")
    elsewhere = ExecutionChoice("CPUExecutionProvider", "auto", True, "no device", "int8")
    version.describe(manifest(), elsewhere, "digest of v1")
    (info,) = families(metrics)["glossa_model_info"].samples
    assert (info.labels["precision"], info.labels["version"], info.labels["bundle"]) == ("int8", "v1", "digest of v1")
    (provider,) = families(metrics)["glossa_execution_provider_info"].samples
    assert (provider.labels["fallback"], provider.labels["version"]) == ("1", "v1")
