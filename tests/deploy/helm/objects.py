"""Objects of Kubernetes in tests: the committed ones, and what selects what."""

import json
from pathlib import Path

import yaml

from deploy.kubernetes.__main__ import CHART, FILE
from tests.deploy.helm import json_schema

HERE = Path(__file__).parent
VALUES = sorted((HERE / "values").glob("*.yaml"))
CRDS = {path.stem: json.loads(path.read_text()) for path in sorted((HERE / "crds").glob("*.json"))}
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
KSERVE, POOL = FILE.with_name("kserve.yaml"), FILE.with_name("inferencepool.yaml")


def objects_in(path):
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def of_kind(objects, kind):
    """The only object of a kind."""
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def crd_problems(objects):
    """What is wrong with the custom resources among objects."""
    return [
        f"{each['kind']} {problem}"
        for each in objects
        if each["kind"] in CRDS
        for problem in json_schema.problems(each, CRDS[each["kind"]])
    ]


def selectors(objects):
    """The labels by which each object selects pods, by its kind and name."""
    found = {}
    for each in objects:
        spec = each.get("spec", {})
        selector = spec.get("podSelector") or (spec.get("selector") if each["kind"] != "ServiceMonitor" else None)
        if selector:
            found[each["kind"], each["metadata"]["name"]] = selector.get("matchLabels", selector)
    return found


def pod_labels(objects):
    return of_kind(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]


def knative_pod(objects):
    """The pod that KServe makes of a runtime and a model: volumes of the one, the rest of the other's predictor, and
    the model in /mnt/models."""
    runtime, predictor = (
        of_kind(objects, "ServingRuntime")["spec"],
        of_kind(objects, "InferenceService")["spec"]["predictor"],
    )
    (container,) = runtime["containers"]
    name = of_kind(objects, "InferenceService")["metadata"]["name"]
    arguments = [each.replace("{{.Name}}", name) for each in container["args"]]
    model = {"name": "model", "mountPath": "/mnt/models"}
    container = {**container, "args": arguments, "volumeMounts": [*container["volumeMounts"], model]}
    volumes = [*runtime["volumes"], {"name": "model"}]
    return {**predictor, "securityContext": {"fsGroup": 65532}, "containers": [container], "volumes": volumes}
