#!/usr/bin/env bash
# Channels of gRPC for Python (grpcio 1.85.1) share connections, and with them the pause after a failed one.
#
# Whom: clients and tests that open a new channel when a server has come back. Cost: the new channel reports
# UNAVAILABLE, "connection refused", for up to a second or more without trying, although the server listens. The way
# out: ("grpc.use_local_subchannel_pool", 1), or wait_for_ready.
# Source: a channel's documentation says nothing of others; grpc/grpc#17282 has the mechanism.
# Expected: the first call of a new channel connects. Seen: it fails each time as long as another channel to the
# address is open that has failed there, and never with a pool of its own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check grpcio==1.85.1
export GRPC_VERBOSITY=NONE no_grpc_proxy=127.0.0.1
"$folder/bin/python" - <<'PYTHON'
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


def answered(channel):
    try:
        return channel.unary_unary("/a/b")(b"hello", timeout=10) == b"hello"
    except grpc.RpcError:
        return False


def is_new_channel_answered(*options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as old:
        assert not answered(old), "nobody listens yet"
        server = grpc.server(ThreadPoolExecutor(1), handlers=[Echo()])
        assert server.add_insecure_port(f"127.0.0.1:{port}") == port
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}", options) as new:
            found = answered(new)
        server.stop(None).wait()
    return found


print(f"grpcio {grpc.__version__}")
shared = sum(is_new_channel_answered() for _ in range(10))
own = sum(is_new_channel_answered(("grpc.use_local_subchannel_pool", 1)) for _ in range(10))
print(f"new channels that reach a server that listens: expected 10 of 10, seen {shared}; with pools of their own {own}")
sys.exit(shared == 10 or own < 10)
PYTHON
