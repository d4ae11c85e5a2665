"""Programs on the fake CUDA, one function each: what `test_fake.py` runs in processes of their own, and prints.

Usage: python -m tests.cuda.semantics NAME. A program returns what its test compares.
"""

import ctypes
import json
import sys
import threading
from typing import Any

from tests.cuda.fake import FakeCuda

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # cudaMemcpyKind
NON_BLOCKING = 1
GLOBAL, RELAXED = 0, 2  # cudaStreamCaptureMode
SIZE = 4


class Cuda(FakeCuda):
    """Calls that raise for errors, on numbers of one byte."""

    def call(self, name: str, *arguments: Any) -> None:
        if status := self.status(name, *arguments):
            raise RuntimeError(f"{name}: {status}")

    def status(self, name: str, *arguments: Any) -> int:
        converted = [ctypes.c_size_t(a) if isinstance(a, int) else a for a in arguments]
        return int(getattr(self.library, name)(*converted))

    def handle(self, name: str, *arguments: Any) -> int:
        """What a call writes through its first argument, a pointer to a pointer."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made.value or 0

    def stream(self, flags: int = NON_BLOCKING) -> int:
        return self.handle("cudaStreamCreateWithFlags", flags)

    def device(self, value: int, size: int = SIZE) -> int:
        """Memory on the device whose bytes are `value`."""
        address = self.handle("cudaMalloc", size)
        self.call("cudaMemset", address, value, size)
        self.call("cudaDeviceSynchronize")
        return address

    def pinned(self, value: int) -> int:
        address = self.handle("cudaMallocHost", SIZE)
        ctypes.memset(address, value, SIZE)
        return address

    def copy(self, target: int, source: int, kind: int, stream: int) -> None:
        self.call("cudaMemcpyAsync", target, source, SIZE, kind, stream)


def byte(address: int) -> int:
    return ctypes.string_at(address, 1)[0]


def host(value: int) -> Any:
    """Pageable memory."""
    return (ctypes.c_ubyte * SIZE)(*[value] * SIZE)


def read_pinned_too_early(cuda: Cuda) -> Any:
    stream, source, target = cuda.stream(), cuda.device(7), cuda.pinned(1)
    cuda.copy(target, source, TO_HOST, stream)
    early = byte(target)
    cuda.call("cudaStreamSynchronize", stream)
    return [early, byte(target)]


def overwrite_pinned_too_early(cuda: Cuda) -> Any:
    stream, target, source = cuda.stream(), cuda.device(0), cuda.pinned(1)
    cuda.copy(target, source, TO_DEVICE, stream)
    ctypes.memset(source, 9, SIZE)
    cuda.call("cudaStreamSynchronize", stream)
    return byte(target)


def overwrite_staged(cuda: Cuda) -> Any:
    stream, target, source = cuda.stream(), cuda.device(0), host(1)
    cuda.copy(target, ctypes.addressof(source), TO_DEVICE, stream)
    ctypes.memset(source, 9, SIZE)
    cuda.call("cudaStreamSynchronize", stream)
    return byte(target)


def copy_to_pageable(cuda: Cuda) -> Any:
    stream, source, target = cuda.stream(), cuda.device(7), host(1)
    cuda.copy(ctypes.addressof(target), source, TO_HOST, stream)
    return byte(ctypes.addressof(target))


def _written_by_null_stream(cuda: Cuda, flags: int, *, settle: bool = False) -> int:
    """What another stream reads of a pageable cudaMemcpy."""
    stream, target, seen, source = cuda.stream(flags), cuda.device(0), cuda.pinned(0), host(5)
    cuda.call("cudaMemcpy", target, ctypes.addressof(source), SIZE, TO_DEVICE)
    if settle:
        cuda.call("cudaStreamSynchronize", 0)
    cuda.copy(seen, target, TO_HOST, stream)
    cuda.call("cudaStreamSynchronize", stream)
    return byte(seen)


def null_stream(cuda: Cuda) -> Any:
    return {
        "not blocking": _written_by_null_stream(cuda, NON_BLOCKING),
        "not blocking, settled": _written_by_null_stream(cuda, NON_BLOCKING, settle=True),
        "blocking": _written_by_null_stream(cuda, 0),
    }


def null_stream_waits(cuda: Cuda) -> Any:
    """What a copy on the null stream reads of other streams' writes that nobody waited for."""
    found = []
    for flags in (0, NON_BLOCKING):
        stream, target, seen = cuda.stream(flags), cuda.device(0), host(0)
        cuda.call("cudaMemsetAsync", target, 5, SIZE, stream)
        cuda.call("cudaMemcpy", ctypes.addressof(seen), target, SIZE, TO_HOST)
        found.append(byte(ctypes.addressof(seen)))
    return found


def events(cuda: Cuda) -> Any:
    """What a stream reads of another's write, without and with waiting for its event."""
    first, second, event = cuda.stream(), cuda.stream(), cuda.handle("cudaEventCreateWithFlags", 2)
    target, seen, found = cuda.device(0), cuda.pinned(0), []
    cuda.call("cudaMemsetAsync", target, 5, SIZE, first)
    cuda.call("cudaEventRecord", event, first)
    for waits in (False, True):
        if waits:
            cuda.call("cudaStreamWaitEvent", second, event, 0)
        cuda.copy(seen, target, TO_HOST, second)
        cuda.call("cudaStreamSynchronize", second)
        found.append(byte(seen))
    return found


def queries(cuda: Cuda) -> Any:
    """The answers of cudaStreamQuery until the stream is done."""
    stream, target = cuda.stream(), cuda.device(0)
    for value in range(3):
        cuda.call("cudaMemsetAsync", target, value, SIZE, stream)
    return [cuda.status("cudaStreamQuery", stream) for _ in range(4)]


def destroyed_stream(cuda: Cuda) -> Any:
    stream, target, seen = cuda.stream(), cuda.device(0), host(0)
    cuda.call("cudaMemsetAsync", target, 5, SIZE, stream)
    cuda.call("cudaStreamDestroy", stream)
    again = cuda.status("cudaStreamSynchronize", stream)
    cuda.call("cudaDeviceSynchronize")
    cuda.call("cudaMemcpy", ctypes.addressof(seen), target, SIZE, TO_HOST)
    return [again, byte(ctypes.addressof(seen))]


def _captured(cuda: Cuda, stream: int, *operations: tuple[Any, ...], mode: int = GLOBAL) -> tuple[int, int]:
    """Status of the end of a capture of calls, and the graph."""
    cuda.call("cudaStreamBeginCapture", stream, mode)
    for operation in operations:
        cuda.status(*operation)
    graph = ctypes.c_void_p()
    return cuda.status("cudaStreamEndCapture", stream, ctypes.byref(graph)), graph.value or 0


def replay(cuda: Cuda) -> Any:
    """What a captured copy has copied after the capture and after each of two launches with other sources."""
    stream, target, source, seen = cuda.stream(), cuda.device(0), cuda.pinned(1), host(0)
    _, graph = _captured(cuda, stream, ("cudaMemcpyAsync", target, source, SIZE, TO_DEVICE, stream))
    executable, found = cuda.handle("cudaGraphInstantiate", graph, 0), []
    for value in (0, 3, 4):
        if value:
            ctypes.memset(source, value, SIZE)
            cuda.call("cudaGraphLaunch", executable, stream)
        cuda.copy(ctypes.addressof(seen), target, TO_HOST, stream)
        found.append(byte(ctypes.addressof(seen)))
    return found


def replay_after_free(cuda: Cuda) -> Any:
    stream, target = cuda.stream(), cuda.device(0)
    _, graph = _captured(cuda, stream, ("cudaMemsetAsync", target, 1, SIZE, stream))
    executable = cuda.handle("cudaGraphInstantiate", graph, 0)
    cuda.call("cudaFree", target)
    cuda.call("cudaGraphLaunch", executable, stream)
    return cuda.status("cudaStreamSynchronize", stream)


def _call_of_a_thread(cuda: Cuda, mode: int, name: str, *arguments: Any) -> dict[str, int]:
    """A call of another thread during a capture: statuses of the call, of what is recorded next, and of the end."""
    stream, target, statuses = cuda.stream(), cuda.device(0), []
    cuda.call("cudaStreamBeginCapture", stream, mode)
    thread = threading.Thread(target=lambda: statuses.append(cuda.status(name, *arguments)))
    thread.start()
    thread.join()
    recorded = cuda.status("cudaMemsetAsync", target, 0, SIZE, stream)
    ended = cuda.status("cudaStreamEndCapture", stream, ctypes.byref(ctypes.c_void_p()))
    return {"call": statuses[0], "recorded": recorded, "ended": ended, "illegal": cuda.total("illegal in capture")}


def capture_and_malloc(cuda: Cuda) -> Any:
    return _call_of_a_thread(cuda, GLOBAL, "cudaMalloc", ctypes.byref(ctypes.c_void_p()), SIZE)


def relaxed_capture_and_malloc(cuda: Cuda) -> Any:
    return _call_of_a_thread(cuda, RELAXED, "cudaMalloc", ctypes.byref(ctypes.c_void_p()), SIZE)


def capture_and_wait(cuda: Cuda) -> Any:
    return _call_of_a_thread(cuda, GLOBAL, "cudaDeviceSynchronize")


def capture_and_launch(cuda: Cuda) -> Any:
    other, target = cuda.stream(), cuda.device(0)
    return _call_of_a_thread(cuda, GLOBAL, "cudaMemsetAsync", target, 0, SIZE, other)


def capture_waits_for_itself(cuda: Cuda) -> Any:
    stream = cuda.stream()
    return _captured(cuda, stream, ("cudaStreamSynchronize", stream))[0]


def capture_of_blocking_stream(cuda: Cuda) -> Any:
    """Use of the null stream while a blocking stream is captured, and the end of the capture."""
    stream, target = cuda.stream(0), cuda.device(0)
    cuda.call("cudaStreamBeginCapture", stream, RELAXED)
    used = cuda.status("cudaMemsetAsync", target, 0, SIZE, 0)
    return [used, cuda.status("cudaStreamEndCapture", stream, ctypes.byref(ctypes.c_void_p()))]


def out_of_memory(cuda: Cuda) -> Any:
    """Allocations of 600 of 1,000 bytes, before and after the first one is freed."""
    first, pointer = cuda.handle("cudaMalloc", 600), ctypes.c_void_p()
    refused = cuda.status("cudaMalloc", ctypes.byref(pointer), 600)
    cuda.call("cudaFree", first)
    return [refused, cuda.status("cudaMalloc", ctypes.byref(pointer), 600)]


def impossible_copies(cuda: Cuda) -> Any:
    """Statuses of copies past the end of an allocation, to freed memory, and to the host's memory as the device's."""
    stream, target, source = cuda.stream(), cuda.device(0), cuda.pinned(0)
    freed, pageable = cuda.device(0), host(0)
    cuda.call("cudaFree", freed)
    cases = [(target, source, 2 * SIZE, TO_DEVICE), (freed, source, SIZE, TO_DEVICE)]
    cases.append((ctypes.addressof(pageable), target, SIZE, ON_DEVICE))
    return [cuda.status("cudaMemcpyAsync", *case, stream) for case in cases]


def failed_call(cuda: Cuda) -> Any:
    cuda.fail_call(2)
    statuses = [cuda.status("cudaDeviceSynchronize") for _ in range(3)]
    cuda.reset()
    return [*statuses, cuda.status("cudaDeviceSynchronize")]


def launch(cuda: Cuda) -> Any:
    """Statuses of the enqueueing of a product, and of waiting."""
    stream = cuda.stream()
    return [cuda.status("enqueue", stream, None, None, 0), cuda.status("cudaStreamSynchronize", stream)]


def failed_launch(cuda: Cuda) -> Any:
    """Statuses of the enqueueing of two products, and of waiting twice, when the first product fails."""
    stream, products = cuda.stream(), ctypes.CDLL("libcublas.so.13")
    handle = ctypes.c_void_p()
    products.cublasCreate_v2(ctypes.byref(handle))
    cuda.fail_launch(1)
    enqueued = [cuda.status("enqueue", stream, None, None, 0) for _ in range(2)]
    return [*enqueued, *[cuda.status("cudaStreamSynchronize", stream) for _ in range(2)]]


def num_devices(cuda: Cuda) -> Any:
    found = ctypes.c_int(-1)
    return [cuda.status("cudaGetDeviceCount", ctypes.byref(found)), found.value]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Cuda())))
