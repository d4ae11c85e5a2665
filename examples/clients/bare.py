"""A client of glossa.v1 from the .proto alone, without `glossa.client`: docs/clients.md."""

import os
import sys
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as stubs

address, text, *prompts = sys.argv[1:]
authority, token = os.environ.get("GLOSSA_TLS_CA"), os.environ.get("GLOSSA_TOKEN")
certificate, key = os.environ.get("GLOSSA_CLIENT_CERT"), os.environ.get("GLOSSA_CLIENT_KEY")
metadata = [("x-request-id", "bare-python")] + ([("authorization", f"Bearer {token}")] if token else [])
options = [("grpc.service_config", Path("service_config.json").read_text()), ("SingleThreadedUnaryStream", 1)]
if authority:
    pem = [Path(path).read_bytes() if path else None for path in (authority, key, certificate)]
    credentials = grpc.ssl_channel_credentials(*pem)
    channel = grpc.secure_channel(address, credentials, options)
else:
    channel = grpc.insecure_channel(address, options)


def reason(error):
    """The stable reason of an error: that of its ErrorInfo."""
    status, info = rpc_status.from_call(error), error_details_pb2.ErrorInfo()
    return next((info.reason for detail in (status.details if status else ()) if detail.Unpack(info)), "")


with channel:
    translation, generation = stubs.TranslationServiceStub(channel), stubs.GenerationServiceStub(channel)
    short, long = pb.DecodingOptions(max_tokens=16), pb.DecodingOptions(ignore_eos=True)

    answer = translation.Translate(pb.TranslateRequest(text=text, options=short), timeout=10, metadata=metadata)
    print("unary:", answer.text)

    request = pb.StreamTranslateRequest(text=text, options=short)
    pieces = translation.StreamTranslate(request, timeout=10, metadata=metadata)
    print("stream:", "|".join(piece.text for piece in pieces))

    for prompt in prompts:
        request = pb.GenerateRequest(text=prompt, options=pb.DecodingOptions(max_tokens=12))
        print("generate:", generation.Generate(request, timeout=10, metadata=metadata).text)

    try:
        request = pb.TranslateRequest(text=text, options=pb.DecodingOptions(beam_size=99))
        translation.Translate(request, timeout=10, metadata=metadata)
    except grpc.RpcError as error:
        print("error:", error.code().name, reason(error), error.details())

    try:
        translation.Translate(pb.TranslateRequest(text=text, options=long), timeout=0.005, metadata=metadata)
    except grpc.RpcError as error:
        print("deadline:", error.code().name)

    stream = translation.StreamTranslate(pb.StreamTranslateRequest(text=text, options=long), metadata=metadata)
    next(stream)
    stream.cancel()
    print("cancel:", stream.code().name)
