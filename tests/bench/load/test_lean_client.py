"""The HTTP/2 client of measurements against a gRPC server: batches, streams, closed loops, and calls that fail."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from bench.load.lean_client import CallFailed, LeanConnection, closed_loop


class Echo(grpc.GenericRpcHandler):
    """`/Echo/Unary` answers a request with itself, `/Echo/Stream` with each of its bytes; b"bad" is refused. Counts
    requests that run concurrently."""

    def __init__(self):
        self.seen: list[bytes] = []
        self.running = self.most_running = 0
        self._lock = threading.Lock()

    def service(self, details):
        if details.method == "/Echo/Unary":
            return grpc.unary_unary_rpc_method_handler(self._unary)
        return grpc.unary_stream_rpc_method_handler(self._stream)

    def _unary(self, request, context):
        with self._lock:
            self.seen.append(request)
            self.running += 1
            self.most_running = max(self.running, self.most_running)
        if request == b"bad":
            context.abort(grpc.StatusCode.UNAVAILABLE, "no")
        with self._lock:
            self.running -= 1
        return request

    def _stream(self, request, _):
        yield from (bytes([byte]) for byte in request)


@pytest.fixture
def echo():
    return Echo()


@pytest.fixture
def address(echo):
    server = grpc.server(ThreadPoolExecutor(16), handlers=[echo])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def connection(address):
    with LeanConnection(address) as connection:
        yield connection


def test_answers_have_the_order_of_their_messages(connection):
    messages = [str(number).encode() for number in range(300)]
    assert connection.call("/Echo/Unary", messages) == messages


def test_the_last_message_of_a_stream_is_its_answer(connection):
    assert connection.call("/Echo/Stream", [b"abc", b"xy"]) == [b"c", b"y"]


def test_a_refused_call_is_an_error(connection):
    with pytest.raises(CallFailed, match="without a message"):
        connection.call("/Echo/Unary", [b"bad"])


def test_a_closed_loop_answers_every_request_that_it_sends(echo, address):
    messages = [b"a", b"bb", b"ccc"]
    with LeanConnection(address) as one, LeanConnection(address) as two:
        found = closed_loop([one, two], "/Echo/Unary", messages, callers=5, seconds=0.1)
    assert len(found) == len(echo.seen) > 5
    assert all(answered.answer == messages[answered.place] for answered in found)
    assert all(answered.began_s <= answered.ended_s for answered in found)
    assert {answered.place for answered in found} == {0, 1, 2}
    assert [one.ended_s <= two.ended_s for one, two in itertools.pairwise(found)] == [True] * (len(found) - 1)


def test_each_caller_of_a_closed_loop_has_one_request_open(echo, address):
    with LeanConnection(address) as one:
        closed_loop([one], "/Echo/Unary", [b"a"], callers=3, seconds=0.1)
    assert echo.most_running <= 3


def test_a_closed_loop_without_time_sends_one_request_of_each_caller(echo, address):
    with LeanConnection(address) as one, LeanConnection(address) as two:
        found = closed_loop([one, two], "/Echo/Unary", [b"a", b"b"], callers=3, seconds=0.0)
    assert len(found) == len(echo.seen) == 3


def test_a_closed_loop_reports_a_failed_call(address):
    with LeanConnection(address) as one, pytest.raises(CallFailed):
        closed_loop([one], "/Echo/Unary", [b"a", b"bad"], callers=1, seconds=5.0)
