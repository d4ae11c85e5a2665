"""A collector of traces: the OTLP service over gRPC, in this process."""

import concurrent.futures
import contextlib
import threading

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

KINDS = {1: "internal", 2: "server"}


class Collector(TraceServiceServicer):
    """Keeps the spans that it gets, in order. is_stuck: it does not answer until `release`."""

    def __init__(self):
        self.spans, self.resources, self.metadata = [], [], []
        self.endpoint = ""
        self.free = threading.Event()
        self.free.set()
        self._changed = threading.Condition()

    def Export(self, request, context):
        with self._changed:
            for resource_spans in request.resource_spans:
                self.resources.append(fields(resource_spans.resource.attributes))
                for scope_spans in resource_spans.scope_spans:
                    self.spans += scope_spans.spans
            self.metadata.append(dict(context.invocation_metadata()))
            self._changed.notify_all()
        self.free.wait(60)
        return ExportTraceServiceResponse()

    def wait_for(self, count, name=None):
        """The spans, once there are so many (of that name)."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self.named(name)) >= count, 60)
            assert found, [span.name for span in self.spans]
            return self.named(name)

    def named(self, name=None):
        return [span for span in self.spans if name is None or span.name == name]

    def children(self, parent):
        """The spans below one, by the start of each."""
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(found, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))


@contextlib.contextmanager
def collecting(port=0):
    """A running collector."""
    collector = Collector()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    collector.endpoint = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        collector.free.set()
        server.stop(None).wait()


def fields(attributes):
    """Attributes as a dictionary."""
    return {attribute.key: value(attribute.value) for attribute in attributes}


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(one) for one in any_value.array_value.values]
    return getattr(any_value, kind)
