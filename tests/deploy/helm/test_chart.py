"""The chart, as helm renders it."""

import itertools
import re

import pytest
import yaml

from deploy.kubernetes.__main__ import CHART, FILE, main
from deploy.monitoring.__main__ import made
from deploy.monitoring.scaling import scaling_query
from tests.deploy.helm import pods
from tests.deploy.helm.objects import CRDS, VALUES, crd_problems, objects_in, of_kind, pod_labels, selectors
from tests.deploy.helm.programs import helm, rendered, template, validate

pytestmark = pytest.mark.slow
MONITORING = ("serviceMonitor.enabled=true", "prometheusRule.enabled=true", "dashboard.enabled=true")


def values(*settings):
    return [argument for setting in settings for argument in ("--set", setting)]


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_values_give_valid_objects(path, tmp_path):
    linted = helm("lint", "--strict", CHART, "--values", path)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    objects = rendered("--values", path)
    assert crd_problems(objects) == []
    own = [each for each in objects if each["kind"] not in CRDS]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump_all(own))
    assert validate(tmp_path / "own.yaml").count(" passed for ") == len(own)
    deployment = of_kind(objects, "Deployment")
    assert list(pods.problems(deployment["spec"]["template"]["spec"])) == []
    assert all(labels.items() <= pod_labels(objects).items() for labels in selectors(objects).values())
    scales = {"HorizontalPodAutoscaler", "ScaledObject"} & {each["kind"] for each in objects}
    assert ("replicas" in deployment["spec"]) == (not scales), "an update would undo what the autoscaler did"
    assert len(scales) <= 1


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("replicas=two", "replicas"),
        ("replicas=-1", "replicas"),
        ("server.maxRows=0", "server.maxRows"),
        ("server.maxRow=64", "maxRow"),
        ("server.adaptors={triton}", "server.adaptors.0"),
        ("server.extraArgs={max-rows=1}", "server.extraArgs.0"),
        ("server.otlpEndpoint=http://collector", "server.otlpEndpoint"),
        ("server.traceSampleRatio=2", "server.traceSampleRatio"),
        ("server.drainDelaySeconds=soon", "server.drainDelaySeconds"),
        ("image.digest=sha256:12", "image.digest"),
        ("models=null", "models"),
        ("models.en/de=x", "models"),
        ("models.demo=../secret/", "models.demo"),
        ("modelVolume.kind=hostPath", "modelVolume.kind"),
        ("tls.enabled=1", "tls.enabled"),
        ("service.port=70000", "service.port"),
        ("probes.service=glossa.v1.Nothing", "probes.service"),
        ("autoscaling.kind=both", "autoscaling.kind"),
        ("autoscaling.target=70", "autoscaling.target"),
        ("autoscaling.minReplicas=0", "autoscaling.minReplicas"),
        ("resources.limits.memory=null", "memory"),
        ("podDisruptionBudget.maxUnavailable=all", "podDisruptionBudget.maxUnavailable"),
        ("fullnameOverride=translator", "fullnameOverride"),
        ("terminationGracePeriodSeconds=40", "terminationGracePeriodSeconds"),
        ("server.engines=13", "server.maxRequests"),  # 832 rows, and 256 that wait
        ("server.maxRequests=383", "server.maxRequests"),
        ("modelVolume.claimName=", "modelVolume.claimName"),
        ("modelVolume.kind=image", "modelVolume.image.reference"),
        ("modelVolume.kind=initContainer", "modelVolume.initContainer.image"),
        ("tls.enabled=true", "tls.secretName"),
        ("tls.clientCa.secretName=x", "tls.clientCa.secretName"),
        ("tokens.enabled=true", "tokens.secretName"),
        ("probes.service=inference.GRPCInferenceService", "probes.service"),
        ("autoscaling.kind=hpa,autoscaling.minReplicas=11", "autoscaling.minReplicas"),
    ],
)
def test_a_wrong_value_is_refused_by_name(setting, name):
    done = template("--set", setting)
    assert done.returncode != 0, "rendered"
    assert re.search(rf"(?<![\w.]){re.escape(name)}\b", done.stderr), done.stderr


def test_a_server_may_be_given_more_time_to_start():
    objects = rendered(*values("server.startTimeoutSeconds=900", "probes.startup.periodSeconds=7"))
    (container,) = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert "--start-timeout-s=900" in container["args"]
    assert container["startupProbe"]["failureThreshold"] == 132  # of 7 s: at least 920 s
    assert container["readinessProbe"]["failureThreshold"] == 2


def test_the_least_time_to_end_is_accepted():
    objects = rendered(*values("terminationGracePeriodSeconds=41"))
    assert of_kind(objects, "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 41


RELEASES = ("a", "glossa", "a-glossa", "a-glossa-headless", "x" * 46, "x" * 47, "x" * 52 + "y", "x" * 53)


def test_releases_in_one_namespace_do_not_collide():
    settings = values(*MONITORING, "autoscaling.kind=keda")
    releases = {release: rendered(*settings, release=release) for release in RELEASES}
    for objects in releases.values():
        assert all(len(each["metadata"]["name"]) <= 63 for each in objects)
        assert all(len(label) <= 63 for label in pod_labels(objects).values())
    for one, other in itertools.permutations(releases.values(), 2):
        names, others = ({(each["kind"], each["metadata"]["name"]) for each in objects} for objects in (one, other))
        assert not names & others
        assert not any(labels.items() <= pod_labels(other).items() for labels in selectors(one).values())
        monitored = of_kind(one, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
        services = [each["metadata"]["labels"] for each in other if each["kind"] == "Service"]
        assert not any(monitored.items() <= labels.items() for labels in services)


def test_the_monitor_finds_one_service_with_the_ops_port():
    objects = rendered(*values(*MONITORING))
    spec = of_kind(objects, "ServiceMonitor")["spec"]
    services = [each for each in objects if each["kind"] == "Service"]
    wanted = spec["selector"]["matchLabels"].items()
    (found,) = [each for each in services if wanted <= each["metadata"]["labels"].items()]
    assert spec["endpoints"][0]["port"] in {port["name"] for port in found["spec"]["ports"]}


def test_the_rules_are_those_of_prometheus():
    objects = rendered("--set", "prometheusRule.enabled=true,prometheusRule.runbooks=https://example.com/books/")
    groups = {group["name"]: group["rules"] for group in of_kind(objects, "PrometheusRule")["spec"]["groups"]}
    files = [text for name, text in made("https://example.com/books").items() if name.startswith("prometheus/rules/")]
    expected = [group for text in files for group in yaml.safe_load(text)["groups"]]
    assert groups == {group["name"]: group["rules"] for group in expected}


def test_the_dashboard_is_grafanas():
    (text,) = of_kind(rendered("--set", "dashboard.enabled=true"), "ConfigMap")["data"].values()
    assert text == made()["grafana/glossa.json"]


def test_keda_asks_the_query_for_the_release_alone():
    objects = rendered("--set", "autoscaling.kind=keda", release="a", namespace="b")
    trigger = of_kind(objects, "ScaledObject")["spec"]["triggers"][0]["metadata"]
    assert trigger["query"] == scaling_query('namespace="b",service="a-glossa"')
    assert trigger["threshold"] == "0.7"


def test_an_hpa_has_the_same_target(tmp_path):
    (tmp_path / "values.yaml").write_text("autoscaling: {kind: hpa, target: 0.29}")  # --set makes a text of a fraction
    objects = rendered("--values", tmp_path / "values.yaml")
    (metric,) = of_kind(objects, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "290m"}
    assert metric["external"]["metric"]["selector"]["matchLabels"] == {"service": "glossa"}


@pytest.mark.parametrize(("version", "hook"), [("1.27.0", "exec"), ("1.30.0", "sleep")])
def test_a_pod_sleeps_before_it_stops(version, hook):
    objects = rendered("--kube-version", version)
    (server,) = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert list(server["lifecycle"]["preStop"]) == [hook]
    assert pods.sleep_before_stop_s(server) == 5


def test_pods_reach_the_collector_of_traces_and_nothing_else():
    def outgoing(*settings):
        return of_kind(rendered(*values(*settings)), "NetworkPolicy")["spec"]["egress"]

    assert outgoing() == []
    own = "networkPolicy.egress[0].ports[0].port=443"
    kept, added = outgoing(own, "server.otlpEndpoint=http://collector.traces:4317")
    assert kept == {"ports": [{"port": 443}]}
    assert added == {
        "ports": [{"port": port, "protocol": kind} for port, kind in ((53, "UDP"), (53, "TCP"), (4317, "TCP"))]
    }


def test_a_gpu_is_asked_for_and_used():
    objects = rendered("--set", "gpu.enabled=true,gpu.count=2")
    (server,) = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    settings = pods.settings_of(server["args"])
    assert (settings.device, settings.cuda_devices) == ("cuda", "0,1")
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 2


def test_the_plain_objects_are_up_to_date(monkeypatch, tmp_path):
    main(["--check"])
    validate(FILE)
    stale = tmp_path / "glossa.yaml"
    stale.write_text(FILE.read_text() + "---\n")
    monkeypatch.setattr("deploy.kubernetes.__main__.FILE", stale)
    with pytest.raises(SystemExit, match="run: make kubernetes"):
        main(["--check"])


def test_the_plain_objects_are_the_charts_without_helms_labels():
    def key(each):
        return each["kind"], each["metadata"]["name"]

    plain, objects = sorted(objects_in(FILE), key=key), sorted(rendered(), key=key)
    assert list(map(key, plain)) == list(map(key, objects))
    assert "helm" not in str(plain).lower()
