"""Who may call what: the one table of all methods of the server (`POLICY`), and its check (`Guard`).

A method that is not in the table cannot be called; those of an adaptor that is off do not exist. The pages of the ops
port are not in it: they are public, and that port belongs on loopback or in a pod.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from glossa.v1 import admin_pb2
from glossa.v1 import glossa_pb2 as pb
from service.edge.security.tenants import Tenants
from service.edge.security.tokens import Holder
from service.errors import PermissionDenied
from service.request import Caller

LOCAL = "unix:"  # how names of peers begin on the port of the server's own
HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class Access(enum.Enum):
    """What a method asks of its caller. TLS, and client certificates, come before: without them nobody connects."""

    PUBLIC = enum.auto()  # nothing: probes of load balancers have no token
    TENANT = enum.auto()  # a token, if the server has a file of them
    ADMIN = enum.auto()  # a token with the right `admin`, or the admin socket, which its file's mode protects


OPEN_INFERENCE, VLLM = "inference.GRPCInferenceService", "vllm.grpc.engine.VllmEngine"
ORCA = "xds.service.orca.v3.OpenRcaService"
RIVA, GOOGLE = "nvidia.riva.nmt.RivaTranslation", "google.cloud.translation.v3.TranslationService"

POLICY: Mapping[str, Access] = {
    f"/{HEALTH}/Check": Access.PUBLIC,
    f"/{HEALTH}/Watch": Access.PUBLIC,
    f"/{ORCA}/StreamCoreMetrics": Access.PUBLIC,  # Envoy has no token for it, nor has gRPC one of calls' metadata
    **{f"/{name}/ServerReflectionInfo": Access.TENANT for name in REFLECTIONS},
    **{
        f"/{service.full_name}/{method.name}": Access.TENANT
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    },
    **{
        f"/{service.full_name}/{method.name}": Access.ADMIN
        for service in admin_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    },
    f"/{OPEN_INFERENCE}/ServerLive": Access.PUBLIC,
    f"/{OPEN_INFERENCE}/ServerReady": Access.PUBLIC,
    f"/{OPEN_INFERENCE}/ModelReady": Access.TENANT,
    f"/{OPEN_INFERENCE}/ServerMetadata": Access.TENANT,
    f"/{OPEN_INFERENCE}/ModelMetadata": Access.TENANT,
    f"/{OPEN_INFERENCE}/ModelInfer": Access.TENANT,
    f"/{OPEN_INFERENCE}/ModelStreamInfer": Access.TENANT,
    f"/{VLLM}/HealthCheck": Access.PUBLIC,
    f"/{VLLM}/Generate": Access.TENANT,
    f"/{VLLM}/Abort": Access.TENANT,
    f"/{VLLM}/GetModelInfo": Access.TENANT,
    f"/{VLLM}/GetServerInfo": Access.TENANT,
    f"/{VLLM}/GetLoads": Access.TENANT,
    f"/{VLLM}/GetTokenizer": Access.TENANT,
    f"/{RIVA}/TranslateText": Access.TENANT,
    f"/{RIVA}/ListSupportedLanguagePairs": Access.TENANT,
    f"/{GOOGLE}/TranslateText": Access.TENANT,
    f"/{GOOGLE}/DetectLanguage": Access.TENANT,
    f"/{GOOGLE}/GetSupportedLanguages": Access.TENANT,
}


class Guard:
    """Lets calls pass, or refuses them."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def caller(self, metadata: Iterable[tuple[str, str | bytes]], peer: str) -> Caller:
        """Whose a call is to a method for tenants. Raises InvalidRequest, Unauthenticated and PermissionDenied."""
        self.check_peer(peer)
        return self._tenants.caller(metadata)

    def check(self, access: Access, metadata: Iterable[tuple[str, str | bytes]], peer: str) -> None:
        """Raises what `caller` does, of calls to any method. Those for administrators are on no other socket than the
        admin socket, and on no port that needs no token."""
        if access is Access.ADMIN:
            if not peer.startswith(LOCAL):
                self._tenants.check_admin(metadata)
            return
        self.check_peer(peer)
        if access is Access.TENANT:
            self._tenants.caller(metadata)

    def holder(self, metadata: Iterable[tuple[str, str | bytes]]) -> Holder | None:
        """Whose the token of a call is; None: nobody's that is known."""
        return self._tenants.holder(metadata)

    @staticmethod
    def check_peer(peer: str) -> None:
        """Raises PermissionDenied for calls that come around TLS: on the port of the server's own."""
        if peer.startswith(LOCAL):
            raise PermissionDenied("this port is for the server itself; call the one that it announces")
