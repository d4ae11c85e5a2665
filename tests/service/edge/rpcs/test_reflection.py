"""Reflection on a real gRPC server: what it lists, it describes, in both versions."""

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2  # noqa: F401  # its descriptors, as the server imports them
from grpc_reflection.v1alpha import reflection_pb2 as messages

from service.adaptors.selection import ADAPTORS
from service.edge.rpcs.reflection import add_reflection
from service.edge.rpcs.rpc_handlers import services_of
from service.edge.rpcs.servicer import SERVICES
from service.edge.security.access import HEALTH, REFLECTIONS, Guard
from service.edge.security.tenants import Tenants
from tests.edge import settings


@pytest.mark.parametrize("version", REFLECTIONS)
async def test_every_listed_service_is_described(version):
    adaptors = [name for kind in ADAPTORS.values() for name in services_of(kind.FILE)]
    server = grpc.aio.server()
    guard = Guard(Tenants(settings(), None))
    add_reflection(server, guard, (*SERVICES, *adaptors, HEALTH))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.stream_stream(
            f"/{version}/ServerReflectionInfo",
            request_serializer=messages.ServerReflectionRequest.SerializeToString,
            response_deserializer=messages.ServerReflectionResponse.FromString,
        )
        [listed] = [each async for each in ask(iter([messages.ServerReflectionRequest(list_services="*")]))]
        names = [service.name for service in listed.list_services_response.service]
        assert {*SERVICES, *adaptors, HEALTH, *REFLECTIONS} == set(names)
        asked = [messages.ServerReflectionRequest(file_containing_symbol=name) for name in names]
        for name, answer in zip(names, [each async for each in ask(iter(asked))], strict=True):
            files = [
                FileDescriptorProto.FromString(data) for data in answer.file_descriptor_response.file_descriptor_proto
            ]
            described = {f"{file.package}.{service.name}" for file in files for service in file.service}
            assert name in described
            methods = [method for file in files for service in file.service for method in service.method]
            known = {f".{file.package}.{message.name}" for file in files for message in file.message_type}
            assert {kind for method in methods for kind in (method.input_type, method.output_type)} <= known
    await server.stop(None)
