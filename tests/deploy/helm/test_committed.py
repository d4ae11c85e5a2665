"""What is committed of the deployment on Kubernetes, without helm."""

import copy

import pytest
import yaml

from deploy.kubernetes.__main__ import CHART, FILE, digest
from deploy.monitoring.scaling import EXTERNAL_METRIC, SCALING_THRESHOLD
from service.edge.observability.metric_series import VersionSeries
from service.errors import StartupError
from tests.deploy.helm import json_schema, pods
from tests.deploy.helm.objects import (
    DEFAULTS,
    KSERVE,
    POOL,
    SCHEMA,
    VALUES,
    crd_problems,
    knative_pod,
    objects_in,
    of_kind,
    pod_labels,
    selectors,
)
from tests.deploy.pod_check import pod_of

PLAIN = objects_in(FILE)
POD = of_kind(PLAIN, "Deployment")["spec"]["template"]["spec"]
KSERVE_OBJECTS = objects_in(KSERVE)


def changed(value, path, new):
    """A copy of nested dicts and lists with another value at a path; None: without that."""
    found = copy.deepcopy(value)
    *way, last = path
    inner = found
    for key in way:
        inner = inner[key]
    if new is None:
        del inner[last]
    else:
        inner[last] = new
    return found


def test_the_plain_objects_are_those_of_the_chart():
    assert digest() in FILE.read_text().splitlines()[0], "run: make kubernetes"


def test_a_change_of_the_chart_is_noticed(tmp_path):
    (tmp_path / "a.yaml").write_text("a: 1")
    before = digest(tmp_path)
    (tmp_path / "README.md").write_text("text")
    assert digest(tmp_path) == before
    (tmp_path / "a.yaml").write_text("a: 2")
    assert digest(tmp_path) != before


def test_the_pods_are_as_they_must_be():
    assert list(pods.problems(POD)) == []
    assert list(pods.problems(knative_pod(KSERVE_OBJECTS))) == []


CONTAINER = ("containers", 0)


@pytest.mark.parametrize(
    ("path", "new", "problem"),
    [
        (("automountServiceAccountToken",), None, "service account"),
        (("enableServiceLinks",), True, "variables of Services"),
        (("terminationGracePeriodSeconds",), 40, "40 s to end, the drain takes 40 s"),
        (("securityContext", "runAsUser"), 0, "runAsUser"),
        (("securityContext", "seccompProfile"), None, "seccompProfile"),
        ((*CONTAINER, "securityContext", "readOnlyRootFilesystem"), False, "readOnlyRootFilesystem"),
        ((*CONTAINER, "resources", "limits", "memory"), None, "no memory limit"),
        ((*CONTAINER, "readinessProbe"), None, "no readinessProbe"),
        ((*CONTAINER, "readinessProbe", "grpc", "port"), 50052, "asks port 50052"),
        ((*CONTAINER, "livenessProbe", "httpGet", "path"), "/readyz", "would be restarted"),
        ((*CONTAINER, "args", 0), "demo=/elsewhere/demo", "/elsewhere/demo is in no volume"),
        (("volumes", 1), {"name": "models", "secret": {"secretName": "x"}}, "others may read it"),
    ],
)
def test_a_pod_that_is_not_is_noticed(path, new, problem):
    assert any(problem in each for each in pods.problems(changed(POD, path, new)))


def test_a_flag_that_does_not_exist_is_noticed():
    with pytest.raises(AssertionError, match="no setting --max-row=1"):
        pods.settings_of(["demo=/models/demo", "--max-row=1"])
    with pytest.raises(StartupError, match="--max-rows: must be at least 1"):
        pods.settings_of(["demo=/models/demo", "--max-rows=0"])


def test_variables_of_a_service_called_glossa_would_stop_the_server(monkeypatch):
    monkeypatch.setenv("GLOSSA_PORT", "tcp://10.0.0.1:50051")
    with pytest.raises(StartupError, match="GLOSSA_PORT"):
        pods.settings_of(["demo=/models/demo"])


def test_everything_selects_the_pods():
    found = selectors(PLAIN)
    assert {kind for kind, _ in found} == {"Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"}
    assert all(labels.items() <= pod_labels(PLAIN).items() for labels in found.values())


def test_podman_gets_the_pod_of_the_deployment():
    pod = pod_of("image", FILE.parent, 1234, 5678)["spec"]
    (server,) = pod["containers"]
    settings = pods.settings_of(server["args"])
    assert (server["image"], settings.port, settings.http_port) == ("image", 1234, 5678)
    assert (pod["securityContext"], pod["volumes"][0]) == (POD["securityContext"], POD["volumes"][0])
    assert server["securityContext"] == POD["containers"][0]["securityContext"]
    assert pod["volumes"][1]["hostPath"]["path"] == str(FILE.parent)


def test_services_speak_http_2():
    ports = [port for each in PLAIN if each["kind"] == "Service" for port in each["spec"]["ports"]]
    grpc = [port for port in ports if port["name"] == "grpc"]
    assert [port["appProtocol"] for port in grpc] == ["kubernetes.io/h2c"] * 2


def test_no_replica_is_missing_during_an_update():
    strategy = of_kind(PLAIN, "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert strategy["maxUnavailable"] == 0
    assert strategy["maxSurge"] > 0


def test_kserve_finds_the_runtime_and_its_port():
    assert crd_problems(KSERVE_OBJECTS) == []
    runtime, model = of_kind(KSERVE_OBJECTS, "ServingRuntime"), of_kind(KSERVE_OBJECTS, "InferenceService")
    wanted, (container,) = model["spec"]["predictor"]["model"], runtime["spec"]["containers"]
    assert wanted["runtime"] == runtime["metadata"]["name"]
    assert wanted["modelFormat"]["name"] in {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert wanted["protocolVersion"] in runtime["spec"]["protocolVersions"]
    settings = pods.settings_of(knative_pod(KSERVE_OBJECTS)["containers"][0]["args"])
    assert [(port["name"], port["containerPort"]) for port in container["ports"]] == [("h2c", settings.port)]
    assert settings.adaptors == ("open-inference",)


def test_an_inference_pool_has_the_pods_their_port_and_their_metrics():
    objects = objects_in(POOL)
    assert crd_problems(objects) == []
    pool, route = of_kind(objects, "InferencePool"), of_kind(objects, "HTTPRoute")
    assert selectors([pool])["InferencePool", "glossa"].items() <= pod_labels(PLAIN).items()
    settings = pods.settings_of(POD["containers"][0]["args"])
    assert [port["number"] for port in pool["spec"]["targetPorts"]] == [settings.port]
    assert f"--model-server-metrics-port={settings.http_port}" in POOL.read_text()
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["group"], backend["name"]) == (pool["apiVersion"].partition("/")[0], pool["metadata"]["name"])
    picker = yaml.safe_load(of_kind(objects, "ConfigMap")["data"]["config.yaml"])
    parameters = {plugin["type"]: plugin.get("parameters", {}) for plugin in picker["plugins"]}
    profiles = [plugin["pluginRef"] for profile in picker["schedulingProfiles"] for plugin in profile["plugins"]]
    (source,) = picker["dataLayer"]["sources"]
    named = [*profiles, source["pluginRef"], *(one["pluginRef"] for one in source["extractors"])]
    assert {*named, *(one["pluginRef"] for one in picker["requestHandler"]["parsers"])} == parameters.keys()
    (engine,) = parameters["core-metrics-extractor"]["engineConfigs"]
    assert parameters["core-metrics-extractor"]["defaultEngine"] == engine.pop("name")
    gauges = {metric.name for metric in vars(VersionSeries).values() if getattr(metric, "kind", "") == "gauge"}
    assert set(engine.values()) <= gauges
    assert engine.keys() == {"queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"}


def test_custom_resources_that_are_wrong_are_noticed():
    (wrong,) = crd_problems([changed(KSERVE_OBJECTS[1], ("spec", "predictor", "model", "protocolVersion"), "grpc")])
    assert "protocolVersion" in wrong


def test_the_defaults_are_those_of_the_code():
    scaling, settings = DEFAULTS["autoscaling"], pods.settings_of(POD["containers"][0]["args"])
    assert scaling["target"] == SCALING_THRESHOLD
    assert scaling["hpa"]["metric"] == EXTERNAL_METRIC
    adapter = yaml.safe_load(FILE.with_name("prometheus-adapter.yaml").read_text())
    assert adapter["rules"]["external"][0]["name"]["as"] == EXTERNAL_METRIC
    fields = type(settings).model_fields
    times = ("drain_delay_s", "drain_timeout_s", "start_timeout_s")
    for name in ("port", "http_port", "max_rows", "max_queue", "max_requests", *times):
        assert getattr(settings, name) == fields[name].default, name
    startup = POD["containers"][0]["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == settings.start_timeout_s + 20


def merged(defaults, values):
    """As helm puts values over the chart's."""
    if not isinstance(defaults, dict) or not isinstance(values, dict):
        return values
    return {**defaults, **{name: merged(defaults.get(name), value) for name, value in values.items()}}


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_values_fit_the_schema(path):
    assert list(json_schema.problems(merged(DEFAULTS, yaml.safe_load(path.read_text())), SCHEMA)) == []


def test_the_schema_knows_every_value_and_no_other():
    def compare(schema, value, path):
        if schema.get("additionalProperties") is False:
            optional = {"global", "initialDelaySeconds"}
            assert schema["properties"].keys() - optional == value.keys(), path
            for name, inner in value.items():
                compare(schema["properties"][name], inner, f"{path}.{name}")

    compare(SCHEMA, DEFAULTS, "values")


def test_every_value_is_used():
    templates = "".join(path.read_text() for path in (CHART / "templates").glob("*"))
    for name, value in DEFAULTS.items():
        assert f".Values.{name}" in templates or f"$values.{name}" in templates, name
        if isinstance(value, dict) and SCHEMA["properties"][name].get("additionalProperties") is False:
            for inner in value.keys() - {"requests", "limits"}:
                assert f".{inner}" in templates, f"{name}.{inner}"
