#!/usr/bin/env bash
# A client of grpc.aio (grpcio 1.85.1) loses the server's status if it is still sending when that comes.
#
# Whom: clients of streams that a server refuses early (a limit, a missing right, an unknown method). Cost: they see
# INTERNAL, "Internal error from Core", instead of the code, message and details by which they would know what to do.
# Source: the documentation of grpc.aio.Call.code: "Accesses the status code sent by the server"; grpc/grpc#36066.
# Expected: RESOURCE_EXHAUSTED in 50 of 50 calls. Seen: INTERNAL in nearly all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check grpcio==1.85.1
export GRPC_VERBOSITY=NONE no_grpc_proxy=127.0.0.1
"$folder/bin/python" - <<'PYTHON'
import asyncio
import collections
import contextlib
import sys

import grpc


class Refusing(grpc.GenericRpcHandler):
    def service(self, details):
        async def refuse(requests, context):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much")

        return grpc.stream_unary_rpc_method_handler(refuse)


async def main():
    print(f"grpcio {grpc.__version__}")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Refusing()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    found = collections.Counter()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(50):
            call = channel.stream_unary("/a/b")()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for _ in range(1000):
                    await call.write(bytes(1000))
            found[f"{(await call.code()).name}: {await call.details()}"] += 1
    await server.stop(None)
    print(f"expected 50 times RESOURCE_EXHAUSTED: too much, seen {dict(found)}")
    return not any(status.startswith("INTERNAL") for status in found)


sys.exit(asyncio.run(main()))
PYTHON
