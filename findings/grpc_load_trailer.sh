#!/usr/bin/env bash
# A client of gRPC for Python (grpcio 1.85.1) never sees a server's load report in the trailing metadata of a call.
#
# Whom: programs and tests that read `endpoint-load-metrics-bin` (ORCA) themselves, to balance by it or to show it. Cost:
# the server looks as if it sent none, while the library's own weighted_round_robin acts on it; with other policies the
# report is lost. The way out: the stream StreamCoreMetrics, or another name beside it.
# Source: gRPC's proposal A51 gives load-balancing policies access to the report, and says nothing of taking it away.
# Expected: an entry of trailing metadata reaches the client under any name. Seen: all names but this one do.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check grpcio==1.85.1
export GRPC_VERBOSITY=NONE no_grpc_proxy=127.0.0.1
"$folder/bin/python" - <<'PYTHON'
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

REPORT = b"\x49" + struct.pack("<d", 0.5)  # application_utilization of xds.data.orca.v3.OrcaLoadReport
SENT = {"endpoint-load-metrics-bin": REPORT, "other-load-metrics-bin": REPORT}


class Loaded(grpc.GenericRpcHandler):
    def service(self, details):
        def answer(request, context):
            context.set_trailing_metadata(tuple(SENT.items()))
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


print(f"grpcio {grpc.__version__}")
server = grpc.server(ThreadPoolExecutor(1), handlers=[Loaded()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    _, call = channel.unary_unary("/a/b").with_call(b"hello", timeout=10)
    seen = dict(call.trailing_metadata())
server.stop(None).wait()
print(f"names: expected {sorted(SENT)}, seen {sorted(seen)}")
sys.exit(seen.keys() != SENT.keys() - {"endpoint-load-metrics-bin"})
PYTHON
