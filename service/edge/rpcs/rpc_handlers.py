"""Services of a .proto as handlers of gRPC: each RPC is the method of its name, and every call goes through `Calls`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from service.edge.calls.calls import Calls
from service.edge.calls.message_reader import Parse
from service.edge.observability.metrics import Method


def services_of(file: Any) -> tuple[str, ...]:
    """The full names of the services that a .proto declares. file: its descriptor."""
    return tuple(service.full_name for service in file.services_by_name.values())


def rpcs_of(file: Any) -> tuple[Method, ...]:
    """The RPCs that a .proto declares. file: its descriptor."""
    return tuple(_rpc(service, method) for service in file.services_by_name.values() for method in service.methods)


def handlers_of(
    file: Any,
    servicer: object,
    calls: Calls,
    *,
    without: Collection[str] = (),
    around: Callable[[Method, Callable[..., Any]], Callable[..., Any]] = lambda _, behaviour: behaviour,
) -> list[grpc.GenericRpcHandler]:
    """The handlers of the RPCs that a .proto declares, each the method of that name. file: its descriptor. without:
    names of RPCs that are handled elsewhere or not at all. around: makes of each behaviour the one that is called."""

    def behaviour(service: Any, method: Any) -> Callable[..., Any]:
        return around(_rpc(service, method), getattr(servicer, method.name))

    return [
        grpc.method_handlers_generic_handler(
            service.full_name,
            {
                method.name: _method_handler(calls, _rpc(service, method), behaviour(service, method), method)
                for method in service.methods
                if method.name not in without
            },
        )
        for service in file.services_by_name.values()
    ]


def parser_of(message_type: Any) -> Parse:
    """What makes a message of bytes, or None of those that are none."""

    def parse(data: bytes) -> Message | None:
        try:
            message: Message = message_type.FromString(data)
        except DecodeError:
            return None
        return message

    return parse


def _rpc(service: Any, method: Any) -> Method:
    kind = "bidi_stream" if method.client_streaming else "server_stream" if method.server_streaming else "unary"
    return Method(kind, service.full_name, method.name)


def _method_handler(calls: Calls, rpc: Method, behaviour: Callable[..., Any], method: Any) -> Any:
    parse, response_type = parser_of(method.input_type._concrete_class), method.output_type._concrete_class

    async def handle(_messages: Any, context: Any) -> Any:
        return await calls.run(rpc, behaviour, context, parse)

    # Not by gRPC: parsing makes a message forty times as large, and `calls` asks first whether there is room for that.
    # On the wire a single message is a stream of one. To grpc, `handle` takes a stream: it is called before the message
    # has come, and admits or refuses the call without it.
    make = grpc.stream_stream_rpc_method_handler if method.server_streaming else grpc.stream_unary_rpc_method_handler
    return make(handle, None, response_type.SerializeToString)
