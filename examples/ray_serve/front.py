"""A Ray Serve deployment that passes translations on to a Glossa server, by Ray's own gRPC proxy.

Usage: python front.py GLOSSA_ADDRESS PORT. Needs `ray[serve-grpc]` and `glossa-client`. Prints "ready" once calls to
PORT are answered, and ends with its standard input.
"""

import sys
from typing import Any

import grpc
from ray import serve

from glossa.v1 import glossa_pb2_grpc as stubs

SERVICES = ["glossa.v1.glossa_pb2_grpc.add_TranslationServiceServicer_to_server"]


@serve.deployment
class Front:
    """Its methods are those of the .proto. Without `grpc_context` every error would be INTERNAL."""

    def __init__(self, address: str) -> None:
        self._server: Any = stubs.TranslationServiceStub(grpc.aio.insecure_channel(address))

    async def Translate(self, request: Any, grpc_context: Any) -> Any:
        try:
            return await self._server.Translate(request)
        except grpc.aio.AioRpcError as error:
            _pass_on(error, grpc_context)
            raise

    async def StreamTranslate(self, request: Any, grpc_context: Any) -> Any:
        try:
            async for message in self._server.StreamTranslate(request):
                yield message
        except grpc.aio.AioRpcError as error:
            _pass_on(error, grpc_context)
            raise


def _pass_on(error: grpc.aio.AioRpcError, grpc_context: Any) -> None:
    grpc_context.set_code(error.code())
    grpc_context.set_details(error.details())


if __name__ == "__main__":
    serve.start(grpc_options={"port": int(sys.argv[2]), "grpc_servicer_functions": SERVICES})
    serve.run(Front.bind(sys.argv[1]), name="glossa")
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
