import dataclasses
import itertools
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.edge.models.engine_link import EndReason
from service.edge.observability.exposition import OPEN_METRICS
from service.edge.observability.metrics import CODES, Method, Metrics
from service.edge.observability.tenant_metrics import MAX_TENANTS
from service.edge.observability.version_metrics import (
    END_REASONS,
    LOAD_OUTCOMES,
    MEMORY_KINDS,
    PROCESS_ENDS,
    REJECT_REASONS,
)
from service.edge.rpcs.servicer import RPCS
from service.engine.core import Snapshot
from service.errors import EngineUnavailable, Overloaded
from service.machine.execution_choice import GraphNodes
from service.measurements import (
    Admitted,
    FirstToken,
    Generated,
    LookedUp,
    NextTokens,
    Preempted,
    Prefilled,
    RequestEnded,
    Speculated,
    Stepped,
    TurnFailed,
)
from service.wire.messages import Beat, State
from tests.edge import CHOICE, manifest

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"
INFO = (manifest(), dataclasses.replace(CHOICE, fallback=False))
# Of the edge's process, made by the library; how many of them exist depends on the operating system.
PROCESS = "process_"


@pytest.fixture
def metrics():
    return Metrics(RPCS, version="1.2.3", commit="c0ffee")


@pytest.fixture
def report(metrics):
    """The metrics of a model whose two engine processes run."""
    return served(metrics, "en-de")


@pytest.fixture
def spread(metrics, report):
    """Metrics of its traffic, and of a tenant of the settings."""
    metrics.tenants.know(["acme"])
    metrics.traffic.show("en-de", {"old": 90, "new": 10}, "new")
    metrics.traffic.canary_started("en-de")


def served(metrics, name, processes=2, version="v1"):
    model = metrics.model(name).open(version)
    model.describe(*INFO)
    model.measure(list, dict, lambda: {f"{name}-{place}": beat() for place in range(processes)})
    return model


def beat(**more):
    return Beat(**{"states": [], "measurements": [], "memory": {}, "cpu_s": 0.0, "resident_bytes": 0, **more})


def families(metrics):
    return {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}


def value(metrics, name, **labels):
    """The value of the one sample with this name and these labels."""
    found = [
        sample.value
        for family in families(metrics).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def test_names_follow_the_rules_of_prometheus(metrics, report):
    for name, family in families(metrics).items():
        assert re.fullmatch(r"(glossa|grpc_server|process)_[a-z_]*[a-z]", name), name
        assert family.documentation.endswith("."), name
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples), name
        elif family.type == "histogram":
            assert name.endswith(("_seconds", "_rows", "_tokens", "_ratio")), name
        else:
            assert not name.endswith(("_total", "_count", "_sum", "_bucket")), name
        for sample in family.samples:
            assert not sample.name.endswith("_created")
            assert all(re.fullmatch(r"[a-z_]+", label) for label in sample.labels), sample


def test_the_contract_of_names(metrics, report):
    names = {sample.name for family in families(metrics).values() for sample in family.samples}
    names |= set(families(metrics))
    assert names >= {
        *("grpc_server_started_total", "grpc_server_handled_total", "grpc_server_handling_seconds"),
        *("glossa_requests_queued", "glossa_requests_running", "glossa_kv_cache_usage_ratio"),
        *("glossa_time_to_first_token_seconds", "glossa_inter_token_latency_seconds", "glossa_queue_seconds"),
        *("glossa_prefill_seconds", "glossa_decode_step_seconds", "glossa_decode_step_rows"),
        *("glossa_prompt_tokens_total", "glossa_generated_tokens_total", "glossa_wasted_tokens_total"),
        *("glossa_requests_finished_total", "glossa_requests_rejected_total"),
        *("glossa_execution_provider_info", "glossa_model_info", "glossa_build_info"),
        *(
            "glossa_engine_process_up",
            "glossa_engine_process_restarts_total",
            "glossa_engine_process_cpu_seconds_total",
        ),
        *("glossa_engine_process_resident_memory_bytes", "glossa_event_loop_cpu_seconds_total"),
    }


def test_docs_describe_exactly_the_metrics_there_are(metrics, report, spread):
    documented = {}
    for line in DOCS.read_text().splitlines():
        if row := re.fullmatch(r"\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|", line):
            documented[row[1]] = (row[2], tuple(re.findall(r"`(\w+)`", row[3])), row[4])
    actual = {}
    for name, family in families(metrics).items():
        if not name.startswith(PROCESS):
            labels = {label for sample in family.samples for label in sample.labels if label != "le"}
            full = name + "_total" if family.type == "counter" else name
            actual[full] = (family.type, labels, family.documentation)
    assert {name: (kind, set(labels), text) for name, (kind, labels, text) in documented.items()} == actual


def rendered_buckets(metrics):
    """The upper bounds of each histogram, from the exposition."""
    return {
        name: sorted({float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels})
        for name, family in families(metrics).items()
        if family.type == "histogram"
    }


def test_latency_buckets_are_1_2_5_from_100_microseconds_to_a_minute(metrics, report, spread):
    latencies = [
        bounds
        for name, bounds in rendered_buckets(metrics).items()
        if name.endswith("_seconds") and not name.startswith("glossa_tenant_")
    ]
    assert len(latencies) == 9
    for *bounds, last in latencies:
        assert (bounds[0], bounds[-1], last) == (0.0001, 60.0, float("inf"))
        assert all(high / low <= 3.001 for low, high in itertools.pairwise(bounds))


def test_docs_list_exactly_the_buckets_of_every_histogram(metrics, report, spread):
    documented = re.findall(r"^- `(\S+)`: ([\d., ]+)\.$", DOCS.read_text(), re.MULTILINE)
    listed = {name: [*map(float, bounds.split(",")), float("inf")] for name, bounds in documented}
    rendered = rendered_buckets(metrics)
    for name, bounds in rendered.items():
        fitting = [pattern for pattern in listed if fnmatchcase(name, pattern)]
        assert listed[max(fitting, key=len)] == bounds, name
    assert all(any(fnmatchcase(name, pattern) for name in rendered) for pattern in listed)


def test_every_combination_of_an_rpc_exists_before_the_first_call(metrics):
    handled = families(metrics)["grpc_server_handled"].samples
    assert len(handled) == len(RPCS) * len(CODES)
    assert {sample.value for sample in handled} == {0}
    assert len(families(metrics)["grpc_server_started"].samples) == len(RPCS)


def test_series_stay_within_the_budget(metrics, report):
    def count():
        return sum(len(family.samples) for family in families(metrics).values())

    one = count()
    served(metrics, "another")
    another = count() - one
    served(metrics, "wide", processes=10)
    assert one < 1300  # a scrape costs some 1.2 µs a series, with the GIL held; each RPC has some 40
    assert another < 260
    assert count() - one - 2 * another == (10 - 2) * 4, "four for each process"
    before = count()
    served(metrics, "another", version="v2")
    assert count() - before == another - len(LOAD_OUTCOMES) - 1, "what all versions of a model have together"


def test_an_rpc_moves_its_own_series(metrics):
    rpc = Method("unary", "glossa.v1.TranslationService", "Translate")
    labels = {"grpc_service": rpc.service, "grpc_method": rpc.name, "grpc_type": "unary"}
    metrics.rpc_started(rpc)
    assert value(metrics, "glossa_requests_in_flight") == 1
    metrics.rpc_handled(rpc, code=3, seconds=0.03, messages=0)
    assert value(metrics, "glossa_requests_in_flight") == 0
    assert value(metrics, "grpc_server_started_total", **labels) == 1
    assert value(metrics, "grpc_server_handled_total", grpc_code="InvalidArgument", **labels) == 1
    assert value(metrics, "grpc_server_handled_total", grpc_code="OK", **labels) == 0
    assert value(metrics, "grpc_server_handling_seconds_sum", **labels) == 0.03
    assert value(metrics, "grpc_server_msg_sent_total", **labels) == 0


def test_rejections_are_counted_by_reason(metrics):
    metrics.request_rejected(Overloaded("full", retry_after_s=1, limit=1))
    metrics.request_rejected(EngineUnavailable("no engine runs", retry_after_s=1))
    assert value(metrics, "glossa_requests_rejected_total", reason="queue_full") == 1
    assert value(metrics, "glossa_requests_rejected_total", reason="engine_unavailable") == 1
    assert {s.labels["reason"] for s in families(metrics)["glossa_requests_rejected"].samples} == set(REJECT_REASONS)


def test_an_engine_reports_to_its_model(metrics, report):
    report.measured(
        [
            *(Admitted(0.002, 7), Preempted(4), Prefilled(0.004, 48, 9), LookedUp(70, hits=2, reused=64)),
            *(Stepped(0.001, 3, 1), FirstToken(0.01), Speculated(8, 5), Generated(3), RequestEnded("cancelled", 2)),
            TurnFailed(),
        ]
    )
    got = {
        name: value(metrics, name, model="en-de")
        for name in (
            *("glossa_prompt_tokens_total", "glossa_generated_tokens_total", "glossa_wasted_tokens_total"),
            *("glossa_queue_seconds_sum", "glossa_prefill_seconds_sum", "glossa_decode_step_seconds_sum"),
            *("glossa_decode_step_rows_sum", "glossa_time_to_first_token_seconds_sum"),
            *("glossa_prefix_cache_queried_tokens_total", "glossa_prefix_cache_hits_total"),
            *("glossa_prefix_cache_hit_tokens_total", "glossa_prefill_tokens_total", "glossa_padding_tokens_total"),
            *("glossa_speculation_draft_tokens_total", "glossa_speculation_accepted_tokens_total"),
            *("glossa_preemptions_total", "glossa_engine_turns_failed_total"),
        )
    }
    assert list(got.values()) == [7, 3, 2, 0.002, 0.004, 0.001, 3, 0.01, 70, 2, 64, 48, 9, 8, 5, 4, 1]
    assert value(metrics, "glossa_requests_finished_total", model="en-de", reason="cancelled") == 1
    assert {s.labels["reason"] for s in families(metrics)["glossa_requests_finished"].samples} == set(END_REASONS)


@pytest.mark.parametrize("gap_s", [0.00005, 0.0001, 0.0007, 100.0])
def test_observing_many_equal_values_equals_single_observations(metrics, gap_s):
    once, many = (metrics.model(name).open("v1") for name in ("once", "many"))
    once.measured([NextTokens(gap_s, 1)] * 5)
    many.measured([NextTokens(gap_s, 5)])
    samples = families(metrics)["glossa_inter_token_latency_seconds"].samples
    by_model = {
        name: [(s.name, s.labels.get("le"), pytest.approx(s.value)) for s in samples if s.labels["model"] == name]
        for name in ("once", "many")
    }
    assert [s[:2] for s in by_model["once"]] == [s[:2] for s in by_model["many"]]
    assert [s[2].expected for s in by_model["once"]] == [s[2] for s in by_model["many"]]
    assert value(metrics, "glossa_inter_token_latency_seconds_count", model="many") == 5


def test_gauges_sum_over_the_engines_of_a_model(metrics):
    snapshots = [Snapshot(3, 2, 0.5, 5, 50, 100, 30), Snapshot(1, 5, 0.1, 4, 10, 100, 8)]
    metrics.model("en-de").open("v1").measure(lambda: snapshots, dict, dict, lambda: (128, 256))
    assert value(metrics, "glossa_requests_queued", model="en-de") == 7
    assert value(metrics, "glossa_requests_running", model="en-de") == 4
    assert value(metrics, "glossa_kv_cache_usage_ratio", model="en-de") == pytest.approx(0.3)
    assert value(metrics, "glossa_kv_cache_reserved_bytes", model="en-de") == 60
    assert value(metrics, "glossa_kv_cache_used_bytes", model="en-de") == 38
    assert value(metrics, "glossa_kv_cache_limit_bytes", model="en-de") == 200
    assert value(metrics, "glossa_rows_used", model="en-de") == 9
    assert value(metrics, "glossa_rows_limit", model="en-de") == 128
    assert value(metrics, "glossa_requests_queue_limit", model="en-de") == 256


def test_gauges_are_0_while_no_engine_runs(metrics):
    metrics.model("en-de").open("v1").measure(list, dict, lambda: {"en-de-0": None})
    for name in ("glossa_requests_queued", "glossa_requests_running", "glossa_kv_cache_usage_ratio"):
        assert value(metrics, name, model="en-de") == 0
    for kind in MEMORY_KINDS:
        assert value(metrics, "glossa_memory_bytes", model="en-de", kind=kind) == 0


def test_memory_is_measured_at_every_scrape(metrics):
    sizes = {"weights": 10, "kv_cache": 20, "outputs": 30}
    metrics.model("en-de").open("v1").measure(lambda: [Snapshot()], lambda: sizes, dict)
    assert value(metrics, "glossa_memory_bytes", model="en-de", kind="kv_cache") == 20
    sizes["kv_cache"] = 25
    assert [value(metrics, "glossa_memory_bytes", model="en-de", kind=kind) for kind in MEMORY_KINDS] == [10, 25, 30]


def test_an_engine_process_is_measured_at_every_scrape(metrics):
    beats = {"en-de-0": beat(resident_bytes=10), "en-de-1": beat(resident_bytes=20)}
    metrics.model("en-de").open("v1").measure(list, dict, lambda: beats)

    def measured(name):
        return [value(metrics, name, model="en-de", process=process) for process in beats]

    assert measured("glossa_engine_process_resident_memory_bytes") == [10, 20]
    assert measured("glossa_engine_process_up") == [1, 1]
    beats["en-de-0"] = None
    assert measured("glossa_engine_process_resident_memory_bytes") == [0, 20]
    assert measured("glossa_engine_process_up") == [0, 1]


def test_processor_time_is_counted_for_each_process_and_for_the_event_loop(metrics, report):
    name = "glossa_engine_process_cpu_seconds_total"
    assert value(metrics, name, process="en-de-1") == 0, "the series exists from the start"
    report.process_worked("en-de-1", 0.5)
    report.process_worked("en-de-1", 0.25)
    metrics.event_loop_worked(0.125, 0.5)
    assert value(metrics, name, process="en-de-1") == 0.75
    assert value(metrics, name, process="en-de-0") == 0
    assert value(metrics, "glossa_event_loop_cpu_seconds_total") == 0.125
    assert value(metrics, "glossa_event_loop_lag_seconds") == 0.5


def test_the_oldest_heartbeat_of_a_process_shows_its_age(metrics):
    states = [State(0, 0, 0.0, heartbeat_s, True, False) for heartbeat_s in (99.0, 97.5)]
    beats = {"en-de-0": beat(states=states), "en-de-1": beat(), "en-de-2": None}
    metrics.model("en-de").open("v1").measure(list, dict, lambda: beats, clock=lambda: 100.0)
    name = "glossa_engine_process_heartbeat_age_seconds"
    assert [value(metrics, name, process=process) for process in beats] == [2.5, 0, 0]


def test_answers_are_measured_by_model_and_by_tenant(metrics, report):
    metrics.tenants.know(["acme"])
    times = {"seconds": 0.03, "first_token_s": 0.02, "prompt_tokens": 5}
    for tenant, trace_id in (("acme", "ab" * 16), ("stranger", ""), ("", "")):
        metrics.request_answered("en-de", "v1", tenant, **times, generated_tokens=9, trace_id=trace_id)
    metrics.request_answered("en-de", "v1", "acme", **times, generated_tokens=0, trace_id="")
    assert value(metrics, "glossa_request_seconds_count", model="en-de") == 4
    assert value(metrics, "glossa_request_prompt_tokens_sum", model="en-de") == 20
    assert value(metrics, "glossa_request_generated_tokens_bucket", model="en-de", le="16.0") == 4
    assert value(metrics, "glossa_request_generated_tokens_bucket", model="en-de", le="8.0") == 1
    assert value(metrics, "glossa_tenant_request_seconds_count", tenant="acme") == 2
    assert value(metrics, "glossa_tenant_time_to_first_token_seconds_sum", tenant="acme") == 0.02, "one without tokens"
    assert value(metrics, "glossa_tenant_time_to_first_token_seconds_count", tenant="other") == 2
    name = "glossa_tenant_tokens_total"
    assert value(metrics, name, tenant="acme", kind="generated") == 9
    assert value(metrics, name, tenant="other", kind="generated") == 18
    assert value(metrics, name, tenant="other", kind="prompt") == 10
    assert ("ab" * 16).encode() in metrics.render(OPEN_METRICS)


def test_without_tenants_in_the_settings_only_tokens_are_counted_by_tenant(metrics):
    metrics.tenants.ended("stranger", 0)
    metrics.tenants.answered("stranger", seconds=1.0, first_token_s=0.5, prompt_tokens=5, generated_tokens=9)
    found = families(metrics)
    assert value(metrics, "glossa_tenant_tokens_total", tenant="other", kind="generated") == 9
    assert not any(found[f"glossa_tenant_{name}"].samples for name in ("requests", "request_seconds"))


def test_the_number_of_tenants_with_series_is_bounded(metrics):
    metrics.tenants.know(f"t{number:04}" for number in range(5000))
    samples = families(metrics)["glossa_tenant_tokens"].samples
    assert len({sample.labels["tenant"] for sample in samples}) == MAX_TENANTS + 1


def test_a_scrape_of_many_models_stays_cheap(metrics):
    """By count: 10 models and 16 processes each stay below 5 ms at 1.2 µs a series."""
    for number in range(10):
        served(metrics, f"m{number}", processes=16)
    assert sum(len(family.samples) for family in families(metrics).values()) < 4210


def test_restarts_are_counted_by_reason(metrics, report):
    report.process_ended("hung")
    samples = families(metrics)["glossa_engine_process_restarts"].samples
    assert {s.labels["reason"]: s.value for s in samples} == {**dict.fromkeys(PROCESS_ENDS, 0), "hung": 1}


def test_every_end_of_a_process_but_the_asked_one_is_a_reason_of_a_restart():
    assert set(PROCESS_ENDS) == set(get_args(EndReason)) - {"closed"}


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("glossa_requests_finished_total", END_REASONS),
        ("glossa_requests_rejected_total", REJECT_REASONS),
        ("glossa_engine_process_restarts_total", PROCESS_ENDS),
        ("glossa_model_loads_total", LOAD_OUTCOMES),
    ],
)
def test_docs_name_every_reason(name, reasons):
    (section,) = re.findall(rf"^- `{name}`: (.*?)(?=^-|^$)", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", section)) == set(reasons)


def test_info_metrics_describe_the_version_and_the_provider(metrics, report):
    assert value(metrics, "glossa_build_info", version="1.2.3", commit="c0ffee") == 1
    provider = {"model": "en-de", "provider": "CPUExecutionProvider", "requested": "auto", "fallback": "0"}
    assert value(metrics, "glossa_execution_provider_info", **provider) == 1
    assert value(metrics, "glossa_model_info", model="en-de", precision="fp32", task="translation") == 1


def test_nodes_are_shown_by_provider_as_long_as_it_has_some(metrics, report):
    cpu, cuda = "CPUExecutionProvider", "CUDAExecutionProvider"
    assert value(metrics, "glossa_graph_nodes", model="en-de", provider=cpu) == 100
    report.describe(INFO[0], dataclasses.replace(CHOICE, nodes=(GraphNodes("decode", cuda, 7),)))
    (sample,) = families(metrics)["glossa_graph_nodes"].samples
    assert (sample.labels["provider"], sample.value) == (cuda, 7)


def test_two_servers_in_a_process_share_nothing(metrics):
    metrics.rpc_started(RPCS[0])
    assert value(Metrics(RPCS), "glossa_requests_in_flight") == 0
