from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.edge import running

MALFORMED = b"\x0a\xff\xff\xff"
NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


async def code_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call if isinstance(call, grpc.aio.UnaryUnaryCall) else [message async for message in call]
    return caught.value.code()


async def test_malformed_messages_of_health_and_reflection_are_invalid_arguments(channel, caplog):
    check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert await code_of(check(MALFORMED)) == grpc.StatusCode.INVALID_ARGUMENT
    watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
    assert await code_of(watch(MALFORMED)) == grpc.StatusCode.INVALID_ARGUMENT
    for name in NAMES:
        reflect: Any = channel.stream_stream(f"/{name}/ServerReflectionInfo")
        assert await code_of(reflect(iter([MALFORMED]))) == grpc.StatusCode.INVALID_ARGUMENT
    assert [record for record in caplog.records if record.exc_info] == [], "no traceback"


async def test_well_formed_messages_are_answered(channel):
    check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
    answer = health_pb2.HealthCheckResponse.FromString(await check(b""))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
    assert health_pb2.HealthCheckResponse.FromString(await watch.read()) == answer
    watch.cancel()


@pytest.mark.parametrize("name", NAMES)
async def test_both_versions_of_reflection_list_the_same_services(channel, name):
    asked = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    reflect: Any = channel.stream_stream(f"/{name}/ServerReflectionInfo")
    (answer,) = [message async for message in reflect(iter([asked]))]
    services = reflection_pb2.ServerReflectionResponse.FromString(answer).list_services_response.service
    found = {service.name for service in services}
    assert {*NAMES, "grpc.health.v1.Health", "glossa.v1.TranslationService"} <= found


@pytest.mark.parametrize("name", NAMES)
async def test_reflection_can_be_switched_off(name):
    async with running(reflection=False) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        reflect: Any = channel.stream_stream(f"/{name}/ServerReflectionInfo")
        # Sends nothing: a write that fails after the status came would overwrite it.
        assert await code_of(reflect(iter(()))) == grpc.StatusCode.UNIMPLEMENTED
