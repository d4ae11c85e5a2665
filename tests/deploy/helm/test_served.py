"""A real server with the arguments of the deployment: its health knows every name that a probe may ask for."""

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.adaptors.inference import open_inference_pb2 as inference
from tests.deploy.helm.objects import KSERVE, SCHEMA, knative_pod, objects_in, of_kind
from tests.deploy.helm.pods import settings_of
from tests.deploy.helm.test_committed import POD
from tests.e2e.process import serving

NAMES = SCHEMA["properties"]["probes"]["properties"]["service"]["enum"]
READY = health_pb2.HealthCheckResponse.SERVING


def served(container, bundle, **changes):
    """A server with a container's arguments, but for what a machine has once: ports, and the folder of the models."""
    settings = settings_of(container["args"])
    given = settings.model_dump(mode="json", include=settings.model_fields_set)
    models = dict.fromkeys(settings.models, str(bundle))
    local = {"host": "127.0.0.1", "http_host": "127.0.0.1", "port": 0, "http_port": 0, "drain_delay_s": 0}
    return serving(**{**given, **local, "models": models, "engines": 1, **changes})


def status(channel, name):
    """The status of a service; None: health does not know it."""
    request = health_pb2.HealthCheckRequest(service=name)
    try:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return stub.Check(request, timeout=10).status
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.NOT_FOUND:
            return None
        raise


@pytest.mark.parametrize("adaptor", ["open-inference", pytest.param("vllm", marks=pytest.mark.slow)])
def test_health_knows_every_name_of_the_values(tiny_translation_bundle, tiny_generation_bundle, adaptor):
    (container,) = POD["containers"]
    bundle = {"open-inference": tiny_translation_bundle, "vllm": tiny_generation_bundle}[adaptor]
    other = {"open-inference": "vllm.", "vllm": "inference."}[adaptor]
    with served(container, bundle, adaptors=[adaptor]) as server, grpc.insecure_channel(server.address) as channel:
        unknown = [name for name in NAMES if status(channel, name) is None]
        assert unknown == [name for name in NAMES if name.startswith(other)]
        assert status(channel, "glossa.v1.Nothing") is None
        assert status(channel, NAMES[0]) == READY


def test_probes_of_the_deployment_succeed(tiny_translation_bundle):
    (container,) = POD["containers"]
    with served(container, tiny_translation_bundle) as server, grpc.insecure_channel(server.address) as channel:
        for probe in ("startupProbe", "readinessProbe"):
            assert status(channel, container[probe]["grpc"]["service"]) == READY


def test_kserve_gets_its_answers(tiny_translation_bundle):
    objects = objects_in(KSERVE)
    (container,) = knative_pod(objects)["containers"]
    name = of_kind(objects, "InferenceService")["metadata"]["name"]
    with served(container, tiny_translation_bundle) as server, grpc.insecure_channel(server.address) as channel:
        assert status(channel, container["readinessProbe"]["grpc"]["service"]) == READY
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelReady",
            request_serializer=inference.ModelReadyRequest.SerializeToString,
            response_deserializer=inference.ModelReadyResponse.FromString,
        )
        assert call(inference.ModelReadyRequest(name=name), timeout=10).ready
