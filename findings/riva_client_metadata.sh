#!/usr/bin/env bash
# With TLS the client of NVIDIA Riva (nvidia-riva-client 2.28.0) sends each entry of its metadata twice: as credentials of
# the channel, and with every call.
#
# Whom: servers and proxies that read a token. Cost: those that take `authorization` only once, as RFC 9110 (5.3, 11.6.2)
# has it, refuse each call of a caller whose token is right, and only over TLS: a test without it shows nothing.
# Source: Auth(metadata_args=…) of the client, and its documentation, "Metadata for authorizing requests".
# Expected: once. Seen: once without TLS, twice with it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check nvidia-riva-client==2.28.0 grpcio==1.85.1 grpcio-tools==1.85.1
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
  -keyout "$folder/key.pem" -out "$folder/certificate.pem" 2>/dev/null
export no_grpc_proxy=localhost GRPC_VERBOSITY=NONE
"$folder/bin/python" - "$folder" <<'PYTHON'
import concurrent.futures
import importlib.metadata
import pathlib
import sys

import grpc
import riva.client
from riva.client.proto import riva_nmt_pb2 as nmt

folder = pathlib.Path(sys.argv[1])
key, certificate = (folder / name for name in ("key.pem", "certificate.pem"))


class Counting(grpc.GenericRpcHandler):
    def service(self, details):
        def answer(request, context):
            seen.append([name for name, _ in context.invocation_metadata()].count("authorization"))
            return nmt.TranslateTextResponse()

        return grpc.unary_unary_rpc_method_handler(
            answer, nmt.TranslateTextRequest.FromString, nmt.TranslateTextResponse.SerializeToString
        )


print(f"nvidia-riva-client {importlib.metadata.version('nvidia-riva-client')}, grpcio {grpc.__version__}")
seen = []
server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), handlers=[Counting()])
plain = server.add_insecure_port("localhost:0")
pair = (key.read_bytes(), certificate.read_bytes())
secure = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([pair]))
server.start()
for fields in ({"uri": f"localhost:{plain}"}, {"uri": f"localhost:{secure}", "ssl_root_cert": certificate}):
    auth = riva.client.Auth(metadata_args=[["authorization", "Bearer token"]], **fields)
    riva.client.NeuralMachineTranslationClient(auth).translate(["a"], "", "en", "de")
server.stop(None)
print(f"authorization, without TLS and with it: expected [1, 1] times, seen {seen}")
sys.exit(seen != [1, 2])
PYTHON
