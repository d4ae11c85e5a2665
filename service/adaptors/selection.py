"""The adaptors that are switched on: their services on the server's own port (`Adaptors`).

An adaptor translates the messages of another protocol and nothing more: its calls are admitted, counted and ended as
those of glossa.v1, and the table of methods says who may make them. Probes are answered as health checks are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from service.adaptors.google_translation_service import GoogleTranslation
from service.adaptors.open_inference import OpenInference
from service.adaptors.riva_translation import RivaTranslation
from service.adaptors.vllm_engine import VllmEngine
from service.edge.calls.calls import Calls
from service.edge.observability.metrics import Method
from service.edge.rpcs.rpc_handlers import handlers_of, rpcs_of, services_of
from service.edge.rpcs.servicer import Servicer
from service.edge.security.access import Guard
from service.edge.security.checked_services import CheckedServices
from service.settings.config import ServerSettings

ADAPTORS: dict[str, Any] = {
    "open-inference": OpenInference,
    "vllm": VllmEngine,
    "riva": RivaTranslation,
    "google-translation": GoogleTranslation,
}


class Adaptors:
    """The adaptors of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        self._kinds, self._settings = [ADAPTORS[name] for name in settings.adaptors], settings
        self.services: tuple[str, ...] = tuple(name for kind in self._kinds for name in services_of(kind.FILE))

    @property
    def rpcs(self) -> tuple[Method, ...]:
        """The RPCs that are counted: all but probes."""
        return tuple(rpc for kind in self._kinds for rpc in rpcs_of(kind.FILE) if rpc.name not in kind.PROBES)

    def add_to(
        self,
        server: Any,
        guard: Guard,
        calls: Calls,
        glossa: Servicer,
        not_ready: Callable[[], Sequence[str]],
    ) -> None:
        """Adds the services to a gRPC server that has not started. glossa: answers the calls of glossa.v1. not_ready:
        why the server is not ready, or nothing. Raises StartupError for models that an adaptor cannot serve."""
        for kind in self._kinds:
            servicer = kind(glossa, self._settings, not_ready)
            server.add_generic_rpc_handlers(tuple(handlers_of(kind.FILE, servicer, calls, without=kind.PROBES)))
            for service in kind.FILE.services_by_name.values():
                probes = {
                    method.name: grpc.unary_unary_rpc_method_handler(
                        getattr(servicer, method.name),
                        request_deserializer=method.input_type._concrete_class.FromString,
                        response_serializer=method.output_type._concrete_class.SerializeToString,
                    )
                    for method in service.methods
                    if method.name in kind.PROBES
                }
                CheckedServices(server, guard).add_registered_method_handlers(service.full_name, probes)
