#!/usr/bin/env bash
# The client of NVIDIA Riva (nvidia-riva-client 2.28.0) sends all phrases with fixed translations as one text, in which
# commas separate them: a phrase or a translation with a comma becomes other phrases.
#
# Whom: servers of RivaTranslation, and users whose dictionary has "Washington, DC" or "1,000". Cost: the part behind the
# comma is taken for a phrase that must not be translated, the part before it for the whole translation; no error.
# Source: the field is `repeated string dnt_phrases`; the client's parameter is a dictionary.
# Expected: one element for each phrase, or an error for a comma. Seen: one element, "a##b,c##d".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check nvidia-riva-client==2.28.0 grpcio==1.85.1 grpcio-tools==1.85.1
export no_grpc_proxy=127.0.0.1
"$folder/bin/python" - <<'PYTHON'
import concurrent.futures
import importlib.metadata
import sys

import grpc
import riva.client
from riva.client.proto import riva_nmt_pb2 as nmt


class Recording(grpc.GenericRpcHandler):
    def service(self, details):
        def answer(request, context):
            print(f"phrases on the wire: {list(request.dnt_phrases)}")
            seen.extend(request.dnt_phrases)
            return nmt.TranslateTextResponse()

        return grpc.unary_unary_rpc_method_handler(
            answer, nmt.TranslateTextRequest.FromString, nmt.TranslateTextResponse.SerializeToString
        )


print(f"nvidia-riva-client {importlib.metadata.version('nvidia-riva-client')}")
seen = []
server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), handlers=[Recording()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
client = riva.client.NeuralMachineTranslationClient(riva.client.Auth(uri=f"127.0.0.1:{port}"))
phrases = {"Washington, DC": "Washington (D. C.)", "price": "Preis"}
print(f"phrases of the caller: {phrases}")
client.translate(["the price in Washington, DC"], "", "en", "de", dnt_phrases_dict=phrases)
server.stop(None)
print(f"expected {len(phrases)} elements or an error, seen {len(seen)}: {seen}")
sys.exit(seen != ["Washington, DC##Washington (D. C.),price##Preis"])
PYTHON
