"""Reflection: the services of a server as `grpcurl` and `buf curl` list and describe them.

grpcio-reflection knows v1alpha alone. v1 has the same messages under another name, so it is answered by the same
servicer; its descriptors are made here, as a client that lists all methods asks for those of every listed service.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from service.edge.security.access import REFLECTIONS, Guard
from service.edge.security.checked_services import CheckedServices


def add_reflection(server: Any, guard: Guard, services: Sequence[str]) -> None:
    """Adds reflection in both versions to a gRPC server that has not started. services: full names of the others."""
    _describe_v1()
    servicer = reflection.aio.ReflectionServicer((*services, *REFLECTIONS))
    for name in REFLECTIONS:
        checked = CheckedServices(server, guard, name)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, checked)  # type: ignore[no-untyped-call]


def _describe_v1() -> None:
    """Adds the descriptor of v1 to those of this process, unless a library has one."""
    pool, of_v1alpha = descriptor_pool.Default(), FileDescriptorProto()
    with contextlib.suppress(KeyError):
        pool.FindFileContainingSymbol(REFLECTIONS[0])
        return
    reflection_pb2.DESCRIPTOR.CopyToProto(of_v1alpha)
    of_v1 = text_format.Parse(text_format.MessageToString(of_v1alpha).replace("v1alpha", "v1"), FileDescriptorProto())
    pool.AddSerializedFile(of_v1.SerializeToString())
