"""Messages to every method of a real server with a pool that answers at once: none may end as UNKNOWN or INTERNAL."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from bench.hostile.hostile_messages import bases, matrix
from glossa.v1 import glossa_pb2 as pb
from service.adaptors.google_translation import translation_service_pb2 as google
from service.adaptors.inference import open_inference_pb2 as oip
from service.adaptors.riva import riva_translation_pb2 as riva
from service.edge.observability.logs import LOGGER
from service.errors import Unsatisfiable
from service.request import EventSink, Request
from tests.edge import ANSWER, FakePool, running
from tests.fuzz.reader import Reader, check_message

BETWEEN = b"\xfe\xfe"  # messages of a stream
OURS = grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL
LONGEST_S = 20.0


def methods() -> list[MethodDescriptor]:
    """Of the API, health aside, and of the adaptors that a server can have together."""
    files = (pb.DESCRIPTOR, google.DESCRIPTOR, oip.DESCRIPTOR, riva.DESCRIPTOR)
    return [method for file in files for service in file.services_by_name.values() for method in service.methods]


class Pool(FakePool):
    """Keeps nothing. It answers what decodes, and ends what needs arrays."""

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Callable[[], None]:
        is_plain = request.encoder_request is None and request.options.alignment == "none"
        answer = ANSWER if is_plain else (Unsatisfiable("nothing is computed here"),)
        loop.call_soon(self.send, sink, answer)
        return lambda: None


class Raised(logging.Handler):
    """The last error that the server did not expect."""

    error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.error = record.exc_info[1]


class Messages:
    """A server that runs while an input is read."""

    def __init__(self) -> None:
        self.methods = methods()
        self._loop = asyncio.new_event_loop()
        self._running = running(adaptors="open-inference,riva,google-translation")
        self._edge = self._loop.run_until_complete(self._running.__aenter__())
        for model in self._edge.models.values():
            model.pool = Pool()
        self._raised = Raised(logging.ERROR)
        LOGGER.handlers = [self._raised]
        self._channel = self._loop.run_until_complete(self._connected())

    async def _connected(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._edge.address)

    def read(self, data: bytes) -> None:
        """The first byte selects the method."""
        if data:
            self._loop.run_until_complete(self._call(self.methods[data[0] % len(self.methods)], data[1:]))

    async def _call(self, method: MethodDescriptor, data: bytes) -> None:
        path = f"/{method.containing_service.full_name}/{method.name}"
        asked: Any = data
        make: Any
        if method.client_streaming:
            asked, make = iter(data.split(BETWEEN)), self._channel.stream_stream
        else:
            make = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        call, message = make(path)(asked, timeout=LONGEST_S), "none"
        try:
            if method.server_streaming:
                async for _ in call:
                    pass
            else:
                await call
        except grpc.aio.AioRpcError as error:
            message = error.details() or ""
            if error.code() in OURS:
                raise AssertionError(f"{path}: {error.code().name}: {message[:200]}") from self._raised.error
        check_message(message)


def readers() -> dict[str, Reader]:
    """By name."""
    messages = Messages()
    places = {f"/{one.containing_service.full_name}/{one.name}": place for place, one in enumerate(messages.methods)}
    seeds = []
    for base, kind in bases("the small red house"):
        every = [base, *itertools.islice(matrix(base, kind), 0, None, 7)]
        seeds += [bytes([places[one.path]]) + one.data for one in every if len(one.data) < 2000]
    text = "the small red house"
    others = {
        "TranslateText": google.TranslateTextRequest(contents=[text], target_language_code="de", parent="projects/x"),
        "ModelInfer": oip.ModelInferRequest(model_name="en-de", inputs=[{"name": "text_input", "datatype": "BYTES"}]),
        "TranslateText ": riva.TranslateTextRequest(texts=[text], source_language="en", target_language="de"),
    }
    for name, message in others.items():
        path = next(path for path in places if path.endswith(name.strip()) and ("riva" in path) == name.endswith(" "))
        seeds.append(bytes([places[path]]) + message.SerializeToString())
    return {"messages": Reader(read=messages.read, errors=(), seeds=seeds)}
