"""Every method of a running server asks of its callers what the table says."""

import stat
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2

from glossa.v1 import admin_pb2
from glossa.v1 import glossa_pb2 as pb
from service.adaptors.selection import ADAPTORS
from service.edge.security.access import HEALTH, LOCAL, OPEN_INFERENCE, ORCA, POLICY, REFLECTIONS, VLLM, Access, Guard
from service.edge.security.tenants import TENANT, Tenants
from service.edge.security.tokens import ADMIN, ANY_TENANT, Holder, line_of
from service.errors import PermissionDenied, StartupError
from tests.edge import running, settings

MODELS = "/glossa.v1.ModelService/ListModels"
OURS = (("authorization", "Bearer one"),)
ADMINISTRATOR = (("authorization", "Bearer three"),)
DENIED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    proxy = Holder("proxy", frozenset({ANY_TENANT}))
    operator = Holder("operator", frozenset({ADMIN}))
    lines = (line_of("one", Holder("acme")), line_of("two", proxy), line_of("three", operator))
    path.write_text("\n".join(lines))
    return path


async def code_of(channel, path, metadata):
    """The code of a call with an empty message. Any method can be called as one with a stream of answers; with one of
    requests, grpc.aio reports INTERNAL if the call has ended before the message is sent."""
    call: Any = channel.unary_stream(path)(b"", metadata=metadata, timeout=10)
    try:
        async for _ in call:
            break
    except grpc.aio.AioRpcError as error:
        return error.code()
    call.cancel()
    return grpc.StatusCode.OK


async def methods_of(channel, metadata=()):
    """All methods that reflection knows of, of all services that it lists."""

    async def ask(**request):
        message = reflection_pb2.ServerReflectionRequest(**request).SerializeToString()
        call: Any = channel.stream_stream(f"/{REFLECTIONS[0]}/ServerReflectionInfo")(iter([message]), metadata=metadata)
        (answer,) = [answer async for answer in call]
        return reflection_pb2.ServerReflectionResponse.FromString(answer)

    found = set()
    for service in (await ask(list_services="")).list_services_response.service:
        symbol = service.name.replace("reflection.v1.", "reflection.v1alpha.")  # the messages of both
        (data,) = (await ask(file_containing_symbol=symbol)).file_descriptor_response.file_descriptor_proto[:1]
        file = FileDescriptorProto.FromString(data)
        described = next(each for each in file.service if symbol == f"{file.package}.{each.name}")
        found |= {f"/{service.name}/{method.name}" for method in described.method}
    return found


ADMIN_METHODS = {path for path, access in POLICY.items() if access is Access.ADMIN}


async def test_the_table_has_every_method_of_the_running_server():
    async with running(adaptors=tuple(ADAPTORS)) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        found = await methods_of(channel)
        served = {path for path in found if await code_of(channel, path, ()) != grpc.StatusCode.UNIMPLEMENTED}
    assert served == set(POLICY) - ADMIN_METHODS


async def test_without_adaptors_a_server_has_the_methods_of_its_own_services(channel):
    found = await methods_of(channel) - {"/grpc.health.v1.Health/List"}  # newer protocols describe it; it is not served
    assert found == {path for path in POLICY if path.startswith(("/glossa.", "/grpc.", "/xds."))} - ADMIN_METHODS


async def test_the_admin_port_has_the_methods_for_administrators_and_no_others(tokens):
    async with running(tokens=tokens, admin_port=0) as edge:
        services = admin_pb2.DESCRIPTOR.services_by_name.values()
        declared = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
        assert declared == ADMIN_METHODS
        codes = {}
        async with grpc.aio.insecure_channel(f"127.0.0.1:{edge.server.admin_port}") as channel:
            for path in POLICY:
                codes[path] = [await code_of(channel, path, metadata) for metadata in ((), OURS, ADMINISTRATOR)]
        for path, found in codes.items():
            if path not in ADMIN_METHODS:
                assert set(found) == {grpc.StatusCode.UNIMPLEMENTED}, path
                continue
            assert found[:2] == [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED], path
            assert found[2] in {grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND}, path


async def test_tokens_of_administrators_are_not_sent_in_plaintext_to_other_machines(tokens):
    with pytest.raises(StartupError, match=r"^admin_host: 0\.0\.0\.0 is reached from other machines, and tokens would"):
        async with running(tokens=tokens, admin_port=0, admin_host="0.0.0.0"):
            pass
    with pytest.raises(ValueError, match="admin_port needs tokens or oidc_issuer, or anyone who reaches it could"):
        settings(admin_port=0)


async def test_the_admin_socket_is_for_its_owner_alone_and_needs_no_token(tokens, tmp_path):
    path = tmp_path / "admin"
    async with running(tokens=tokens, admin_socket=path) as edge:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            assert await code_of(channel, "/glossa.v1.AdminService/ListVersions", ()) == grpc.StatusCode.OK
        with pytest.raises(StartupError, match=f"admin_socket: a server listens on {path}"):
            async with running(admin_socket=path):
                pass
        assert edge.server.state == "ready"
    async with running(admin_socket=path):  # what the first server left there is no obstacle
        pass


async def test_without_a_token_only_public_methods_answer(tokens):
    changes = {"tokens": tokens, "adaptors": tuple(ADAPTORS)}
    async with running(**changes) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        for path, access in POLICY.items():
            if path in ADMIN_METHODS:
                continue
            without = await code_of(channel, path, ())
            wrong = await code_of(channel, path, (("authorization", "Bearer xne"),))
            right = await code_of(channel, path, OURS)
            expected = grpc.StatusCode.OK if access is Access.PUBLIC else grpc.StatusCode.UNAUTHENTICATED
            assert {without, wrong} == {expected}, path
            assert right not in DENIED, path


async def test_a_call_is_its_tokens_tenants(tokens):
    async with running(tokens=tokens) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        translate: Any = channel.unary_unary("/glossa.v1.TranslationService/Translate")
        message = pb.TranslateRequest(text="the small red house").SerializeToString()
        await translate(message, metadata=OURS)
        await translate(message, metadata=(*OURS, (TENANT, "acme")))
        await translate(message, metadata=(("authorization", "Bearer two"), (TENANT, "guest")))
        assert [request.caller.tenant for request in edge.pool.requests] == ["acme", "acme", "guest"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await translate(message, metadata=(*OURS, (TENANT, "guest")))
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert "must be acme, as the token is, or be left out, got guest" in (caught.value.details() or "")


def test_nobody_comes_around_tls():
    guard = Guard(Tenants(settings()))
    for access in (Access.PUBLIC, Access.TENANT):
        with pytest.raises(PermissionDenied, match="for the server itself"):
            guard.check(access, (), f"{LOCAL}@glossa")
        guard.check(access, (), "ipv4:192.0.2.1:5000")


def test_probes_of_load_balancers_need_no_token():
    assert {path for path, access in POLICY.items() if access is Access.PUBLIC} == {
        f"/{HEALTH}/Check",
        f"/{HEALTH}/Watch",
        f"/{ORCA}/StreamCoreMetrics",
        f"/{OPEN_INFERENCE}/ServerLive",
        f"/{OPEN_INFERENCE}/ServerReady",
        f"/{VLLM}/HealthCheck",
    }
