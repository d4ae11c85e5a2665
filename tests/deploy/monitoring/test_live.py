"""The dashboard, the rules and the runbooks, on a real server under load and a real Prometheus."""

import collections
import os
import re
import statistics
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics

from deploy.monitoring.expressions import names
from deploy.monitoring.panels import SECTIONS
from deploy.monitoring.rules import OBJECTIVE_RECORDINGS, RECORDINGS
from service.edge.observability.exposition import OPEN_METRICS
from tests.deploy.monitoring.mixed_load import MixedLoad, bundles, served
from tests.deploy.monitoring.picture import drawn
from tests.deploy.monitoring.prometheus import promtool, scraping
from tests.deploy.monitoring.questions import Question, Questioner, questions
from tests.e2e.load import WITHIN_S, until

pytestmark = pytest.mark.slow
RANGE_S = 60
# What returns series, as everything does, but only zeros until something happens that no load makes.
STILL = {
    "panel Failed turns",  # a graph that raises
    "panel Draining",  # the end of a server
    "panel Answer cache",  # a cache, which is off by default
    "panel Bytes of the answer cache",
    "panel Answers that gave way",
    "panel Lost lines of the log",  # nobody reads the log
    "alert GlossaCPUFallback",  # a CUDA device that does not work
    "alert GlossaRowsFull",  # a queue that is never empty for a quarter of an hour
    "alert GlossaKVCacheFull",
    "alert GlossaVersionFails",  # a version that is worse than another one
    "annotation Restarts of servers",  # another start
    # Unknown tokens, of which these vocabularies have none, and a week of traffic.
    *("panel Unknown tokens", "rule job_model:glossa_unknown_tokens:ratio1d", "alert GlossaUnknownTokensRose"),
    *("rule job_model:glossa_unknown_tokens:ratio1d, recorded", "alert GlossaConfidenceDropped", "runbook drift"),
}
OBJECTIVE = re.compile(r"_errors:ratio_rate|Objective")  # 0 where all is well, as it may be
METHOD_SERIES, MODEL_SERIES, PROCESS_SERIES, OTHER_SERIES = 41, 258, 4, 121  # as in docs/metrics.md
SCRAPE_S = 0.005
VERSIONS = "count by (model) (glossa_version_default)"


@pytest.fixture(scope="module")
def server(exported, tmp_path_factory):
    """A server with a model of each architecture."""
    with served(tmp_path_factory.mktemp("served"), bundles(exported)) as server:
        yield server


@pytest.fixture(scope="module")
def load(server, prometheus):
    """The mixed load, which begins once Prometheus scrapes."""
    with MixedLoad(server) as load:
        yield load


@pytest.fixture(scope="module")
def prometheus(server, tmp_path_factory):
    """A Prometheus that scrapes the server."""
    with scraping(server.http, tmp_path_factory.mktemp("prometheus")) as prometheus:
        until(lambda: prometheus.query("glossa_ready"))
        yield prometheus


def page(server, accept=""):
    """The metrics as the server returns them to a scrape."""
    request = urllib.request.Request(f"http://{server.http}/metrics", headers={"accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def test_every_query_returns_series_that_move(prometheus, load):
    questioner, asked = Questioner(prometheus, range_s=RANGE_S), questions()
    finite, moved = dict.fromkeys(asked, 0), set[Question]()
    may_be_still = {one for one in asked if one.asker in STILL or OBJECTIVE.search(one.expression)}
    end_s = time.monotonic() + WITHIN_S
    while time.monotonic() < end_s and not (all(finite.values()) and moved | may_be_still >= {*asked}):
        for question in asked:
            answer = questioner.ask(question)
            finite[question] = max(finite[question], answer.finite)
            moved |= {question} if answer.moved else set()
    kinds = collections.Counter(question.asker.partition(" ")[0] for question in asked)
    print(f"{len(asked)} queries ({dict(kinds)}): {sum(map(bool, finite.values()))} returned series,")
    print(f"{sum(finite.values())} series in all; {len(moved)} queries had values other than 0; not so:")
    print(*sorted({question.asker for question in asked if question not in moved}), sep="\n")
    print(f"calls: {dict(load.ends)}")
    assert [question for question in asked if not finite[question]] == []
    assert [question for question in asked if question not in moved | may_be_still] == []


def test_the_first_rows_can_be_drawn(prometheus, load, tmp_path):
    """And are: MONITORING_PICTURE names the file that documents them."""
    questioner, path = Questioner(prometheus, range_s=RANGE_S), Path(os.environ.get("MONITORING_PICTURE", tmp_path))
    until(lambda: load.ends["reload", "OK"] > 1)
    lines = drawn(questioner, path / "monitoring.webp" if path.is_dir() else path)
    print(lines)
    assert all(lines.values()), "each panel shows a model or a version"
    assert len(lines) == sum(len(section.panels) for section in SECTIONS[:2])


@pytest.mark.parametrize(
    ("family", "asker"),
    [
        ("glossa_rows_used", "panel Rows"),
        ("glossa_queue_seconds", "panel Queue time: heat map"),
        ("glossa_tenant_tokens_total", "panel Tokens by tenant"),
        ("glossa_engine_process_resident_memory_bytes", "alert GlossaMemoryAbovePrediction"),
    ],
)
def test_a_metric_that_is_renamed_is_noticed(server, load, tmp_path, family, asker):
    relabeling = {
        "source_labels": ["__name__"],
        "regex": f"{family}(|_bucket|_sum|_count)",
        "target_label": "__name__",
        "replacement": "renamed$1",
    }
    reading, asked = asking_for(family), questions()
    with scraping(server.http, tmp_path, relabelings=[relabeling]) as prometheus:
        questioner = Questioner(prometheus, range_s=RANGE_S)
        others = [question for question in asked if question not in reading]
        until(lambda: prometheus.query("glossa_ready"))
        until(lambda: not questioner.unanswered(others))
        missed = questioner.unanswered(asked)
    print(family, *sorted({question.asker for question in missed}), sep="\n")
    assert missed == reading
    assert asker in {question.asker for question in missed}


def asking_for(family):
    """The questions that read a metric, or what is recorded from it."""
    lost = {family, *(f"{family}_{part}" for part in ("bucket", "sum", "count"))}
    lost |= {rule.name for rule in (*RECORDINGS, *OBJECTIVE_RECORDINGS) if lost & set(names(rule.expression).metrics)}
    return [question for question in questions() if lost & set(names(question.expression).metrics)]


def test_promtool_finds_no_fault_with_a_scrape(server, load):
    until(lambda: load.ends["generate", "OK"])
    assert promtool("check", "metrics", text=page(server)) == ""


def test_a_scrape_in_openmetrics_can_be_read_and_has_exemplars(server, prometheus, load):
    until(lambda: load.ends["generate", "OK"])
    families = {family.name: family for family in read_open_metrics(page(server, OPEN_METRICS))}
    samples = families["glossa_request_seconds"].samples
    traces = {sample.exemplar.labels["trace_id"] for sample in samples if sample.exemplar}
    assert traces
    assert all(re.fullmatch(r"[0-9a-f]{32}", trace) for trace in traces)
    stored = until(lambda: prometheus.exemplars("glossa_request_seconds_bucket", RANGE_S))
    assert {one["labels"]["trace_id"] for series in stored for one in series["exemplars"]} & traces


def test_series_stay_within_the_budget(prometheus, load):
    until(lambda: load.ends["generate", "OK"])
    (total,) = prometheus.query('count({job="glossa",__name__=~"glossa_.*|grpc_.*|process_.*"})')
    processes = {
        one.labels["model"]: one.values[0] for one in prometheus.query("count by (model) (glossa_engine_process_up)")
    }
    models = {
        one.labels["model"]: one.values[0] for one in prometheus.query('count by (model) ({job="glossa",model!=""})')
    }
    versions = {one.labels["model"]: one.values[0] for one in prometheus.query(VERSIONS)}
    (methods,) = prometheus.query("count(grpc_server_started_total)")
    print(f"{total.values[0]:.0f} series; {methods.values[0]:.0f} methods; of models: {models}")
    recorded = len(RECORDINGS) + len(OBJECTIVE_RECORDINGS)
    assert set(models) == set(processes)
    for model, count in models.items():
        assert count <= versions[model] * (MODEL_SERIES + recorded) + PROCESS_SERIES * processes[model]
    of_models = sum(versions.values()) * MODEL_SERIES + PROCESS_SERIES * sum(processes.values())
    assert total.values[0] <= METHOD_SERIES * methods.values[0] + of_models + OTHER_SERIES


def test_a_scrape_under_full_load_costs_little(server):
    with MixedLoad(server, callers=6, pause_s=0, operates=False) as load:
        until(lambda: load.ends["generate", "OK"] > 20)
        for accept in ["", OPEN_METRICS] * 50:
            page(server, accept)
        answered = load.ends.total()
    seconds = server.scrapes_s[-100:]
    median_ms, most_ms = 1e3 * statistics.median(seconds), 1e3 * max(seconds)
    print(f"{len(seconds)} scrapes, {answered} calls: median {median_ms:.2f} ms of processor time, most {most_ms:.2f}")
    assert statistics.median(seconds) <= SCRAPE_S
