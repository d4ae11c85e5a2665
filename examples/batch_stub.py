"""Translates many texts in one call with the stubs of glossa.v1 alone: docs/batches.md."""

import sys

import grpc

from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as stubs

address, *texts = sys.argv[1:]


def messages():
    defaults = pb.TranslateRequest(options=pb.DecodingOptions(max_tokens=16))
    yield pb.TranslateBatchRequest(defaults=defaults)
    for text in texts:
        item = pb.TranslateBatchItem(id=text[:20], request=pb.TranslateRequest(text=text))
        yield pb.TranslateBatchRequest(items=[item])


with grpc.insecure_channel(address) as channel:
    for message in stubs.TranslationServiceStub(channel).TranslateBatch(messages()):
        for result in message.results:
            if result.HasField("error"):
                print(f"{result.id}: error {result.error.code}: {result.error.message}")
            else:
                print(f"{result.id}: {result.response.text}")
