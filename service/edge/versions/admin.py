"""The admin service: messages of glossa.v1.AdminService ↔ `Reloader`, on a server of its own.

It does not share the queues, limits and port of requests, so that it answers while those are full. A Unix socket has
the mode 0600; calls to the port need TLS, unless it listens on loopback, and a token with the right `admin`.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from glossa.v1 import admin_pb2 as pb
from glossa.v1 import admin_pb2_grpc
from service.edge.observability import logs
from service.edge.observability.ops import explain_bind
from service.edge.observability.status import abort
from service.edge.requests.prompt_encoder import LanguagePair
from service.edge.security.checked_services import CheckedServices
from service.edge.security.security import Security
from service.edge.versions.admin_calls import AdminCalls
from service.edge.versions.canaries import Canaries
from service.edge.versions.canary_messages import canary_message, canary_order, traffic_of
from service.edge.versions.evaluation import MAX_LOSS, EvaluationSet
from service.edge.versions.reloader import Loaded, Order, Reloader, Status
from service.errors import InternalFailure, RequestError, StartupError
from service.settings.config import ServerSettings

MAX_MESSAGE_BYTES = 1 << 25  # of 10,000 examples with 3 KB each
OWNER_ONLY = 0o177  # the part of a mode that a new socket does not get
OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES))

T = TypeVar("T")


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """The RPCs. Event-loop thread only."""

    def __init__(self, reloader: Reloader, canaries: Canaries) -> None:
        self._reloader, self._canaries = reloader, canaries

    async def LoadVersion(self, request: pb.LoadVersionRequest, context: Any) -> pb.LoadVersionResponse:
        return await _answer(context, self._load(request))

    async def UnloadVersion(self, request: pb.UnloadVersionRequest, context: Any) -> pb.UnloadVersionResponse:
        async def unload() -> pb.UnloadVersionResponse:
            model = self._reloader.unload(request.model, request.version)
            return pb.UnloadVersionResponse(version=self._version(model))

        return await _answer(context, unload())

    async def ListVersions(self, request: pb.ListVersionsRequest, context: Any) -> pb.ListVersionsResponse:
        async def list_versions() -> pb.ListVersionsResponse:
            statuses = self._reloader.statuses(request.model)
            canaries = self._canaries.canaries(request.model)
            return pb.ListVersionsResponse(versions=map(_message, statuses), canaries=map(canary_message, canaries))

        return await _answer(context, list_versions())

    async def SetTraffic(self, request: pb.SetTrafficRequest, context: Any) -> pb.SetTrafficResponse:
        async def set_traffic() -> pb.SetTrafficResponse:
            self._canaries.set_traffic(request.model, traffic_of(request))
            return pb.SetTrafficResponse(versions=map(_message, self._reloader.statuses(request.model)))

        return await _answer(context, set_traffic())

    async def StartCanary(self, request: pb.StartCanaryRequest, context: Any) -> pb.StartCanaryResponse:
        async def start() -> pb.StartCanaryResponse:
            test_set = _test_set(request.evaluation) if request.HasField("evaluation") else None
            return pb.StartCanaryResponse(canary=canary_message(self._canaries.start(canary_order(request, test_set))))

        return await _answer(context, start())

    async def SetDefaultVersion(
        self, request: pb.SetDefaultVersionRequest, context: Any
    ) -> pb.SetDefaultVersionResponse:
        async def set_default() -> pb.SetDefaultVersionResponse:
            model = self._reloader.set_default(request.model, request.version)
            return pb.SetDefaultVersionResponse(version=self._version(model))

        return await _answer(context, set_default())

    async def RollBack(self, request: pb.RollBackRequest, context: Any) -> pb.RollBackResponse:
        async def roll_back() -> pb.RollBackResponse:
            model = await self._reloader.roll_back(request.model, keep_previous=request.keep_previous)
            return pb.RollBackResponse(version=self._version(model))

        return await _answer(context, roll_back())

    async def _load(self, request: pb.LoadVersionRequest) -> pb.LoadVersionResponse:
        loaded: Loaded = await self._reloader.load(
            Order(
                model=request.model,
                path=Path(request.path) if request.path else None,
                version=request.version,
                keep_default=request.keep_default,
                keep_previous=request.keep_previous,
                test_set=_test_set(request.evaluation) if request.HasField("evaluation") else None,
            )
        )
        scores = pb.EvaluationResult(**loaded.scores._asdict()) if loaded.scores else None
        return pb.LoadVersionResponse(version=self._version(loaded.model), evaluation=scores)

    def _version(self, model: Any) -> pb.Version:
        statuses = self._reloader.statuses(model.name)
        return _message(next(status for status in statuses if status.model is model))


def _test_set(message: pb.Evaluation) -> EvaluationSet:
    return EvaluationSet(
        examples=[(example.text, example.reference) for example in message.examples],
        languages=LanguagePair(message.source_language, message.target_language),
        max_loss=message.max_loss if message.HasField("max_loss") else MAX_LOSS,
    )


def _message(status: Status) -> pb.Version:
    model = status.model
    return pb.Version(
        model=status.name,
        version=status.version,
        state=f"VERSION_STATE_{status.state.upper()}",
        is_default=status.is_default,
        bundle_sha256=model.bundle_sha256 if model else "",
        path=str(status.path),
        calls=model.users.count if model else 0,
        engine_processes=model.processes if model else 0,
        weight=status.weight,
        shadow_share=status.shadow_share,
    )


async def _answer(context: Any, behaviour: Awaitable[T]) -> T:
    """The response, or the end of the RPC with the status of what went wrong."""
    failure: RequestError
    try:
        return await behaviour
    except RequestError as error:
        failure = error
    except Exception as error:
        request_id = secrets.token_hex(16)
        logs.event("internal_error", {"request_id": request_id}, level=logs.ERROR, exception=error)
        failure = InternalFailure(request_id)
    await abort(context, failure, ())
    raise failure  # not reached: `abort` raises


class AdminServer:
    """Listens on the admin socket and the admin port, as far as the settings name them."""

    def __init__(self, reloader: Reloader, canaries: Canaries, security: Security, settings: ServerSettings) -> None:
        self._settings, self._security, self._canaries = settings, security, canaries
        calls = AdminCalls(security.guard, settings.admin_socket)
        self._server: Any = grpc.aio.server(interceptors=(calls,), options=OPTIONS)
        services: Any = CheckedServices(self._server, security.guard)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(reloader, canaries), services)  # type: ignore[no-untyped-call]

    async def start(self) -> int:
        """Returns the number of the admin port; 0: there is none. Raises StartupError."""
        settings, found, number = self._settings, list[str](), 0
        if settings.admin_socket is not None:
            self._listen_on_socket(settings.admin_socket)
            found.append(f"unix:{settings.admin_socket}")
        if settings.admin_port is not None:
            host, port = settings.admin_host, settings.admin_port
            try:
                number = self._security.listen_admin(self._server, host, port)
            except RuntimeError as error:
                raise StartupError(explain_bind(host, port, "admin_port", OSError(0, str(error)))) from None
            found.append(f"{host}:{number}")
        await self._server.start()
        logs.event("admin", {"addresses": found})
        return number

    async def aclose(self) -> None:
        """Ends what runs: a version that is being loaded is not, and canaries stop."""
        await self._server.stop(None)
        await self._canaries.aclose()

    def _listen_on_socket(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError as error:  # nobody listens: the socket of a server that ended may be there
                if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
                    raise StartupError(f"admin_socket: cannot listen on {path}: {error.strerror or error}") from None
            else:
                raise StartupError(f"admin_socket: a server listens on {path}; choose another path")
        before = os.umask(OWNER_ONLY)
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise StartupError(f"admin_socket: cannot listen on {path}: {error}; check the folder's rights") from None
        finally:
            os.umask(before)
