"""Memory of a CUDA device, and the stream on which everything of a model runs there.

The CUDA runtime is called through ctypes, so that no further package is needed. All sessions of a model compute on one
stream of our own (`CudaStream`), and all copies are put on it too: hence each operation sees what earlier ones did, and
nothing has to wait, except for values that the host reads. Host memory that takes part in a copy is pinned, because
only such copies are asynchronous in order (CUDA Runtime API, "API synchronization behavior").
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from service.runtime.memory import ALIGNMENT, Block, Region, RowCopy, StoredArray
from service.step import DeviceLost

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3  # cudaMemcpyKind
NON_BLOCKING = 1  # cudaStreamNonBlocking
IN_STREAM_ORDER = (ctypes.c_int * 6)(1)  # cudaMemcpyAttributes: cudaMemcpySrcAccessOrderStream, no hints, no flags
STAGING_BYTES = 1 << 20
PIECE_BYTES = 1 << 20
"""Unused bytes between two lines that are copied with them: a copy costs 1.4 us on an H200, however small it is."""


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed. status: its cudaError_t."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(f"{what} failed with CUDA error {status}")
        self.status = status


class CudaRuntime:
    """The functions of the CUDA runtime library, of CUDA 13: earlier ones have another cudaMemcpyBatchAsync."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def call(self, name: str, *arguments: Any, size: int | None = None) -> None:
        """Calls a function. Raises CudaError. size: bytes concerned, for the message."""
        status = self.status(name, *arguments)
        if status:
            raise CudaError(name if size is None else f"{name} of {size} bytes", status)

    def status(self, name: str, *arguments: Any) -> int:
        """Calls a function and returns its cudaError_t."""
        status: int = getattr(self.library, name)(*arguments)
        return status

    def lasting_error(self) -> int:
        """The cudaError_t of a device that has failed for good; 0: it has not."""
        # An illegal address, a failed launch or an uncorrectable memory error makes every later call of the process
        # fail. Other errors, such as out of memory, are reported once.
        self.status("cudaGetLastError")
        return self.status("cudaDeviceSynchronize") or self.status("cudaGetLastError")


class CudaStream:
    """A stream that does not wait for others, and that others do not wait for. It is never destroyed, as sessions end
    at any time and use it then.

    handle: cudaStream_t, as ONNX Runtime takes it.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self.runtime, stream = runtime, ctypes.c_void_p()
        runtime.call("cudaStreamCreateWithFlags", ctypes.byref(stream), ctypes.c_uint(NON_BLOCKING))
        self.handle: int = stream.value or 0

    @property
    def argument(self) -> ctypes.c_void_p:
        """The stream as a function of the runtime takes it."""
        return ctypes.c_void_p(self.handle)

    def wait(self) -> None:
        """Blocks until the device has done everything that was put on the stream. Raises CudaError."""
        self.runtime.call("cudaStreamSynchronize", self.argument)


class CudaBlock:
    """Contiguous bytes in the memory of the current device, freed with the last reference. size: bytes."""

    def __init__(self, stream: CudaStream, size: int) -> None:
        self._stream, self.size, self.address = stream, size, 0
        pointer = ctypes.c_void_p()
        if size:
            stream.runtime.call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(size), size=size)
            self.address = pointer.value or 0

    def __del__(self) -> None:
        if self.address:
            runtime = self._stream.runtime
            runtime.status("cudaStreamSynchronize", self._stream.argument)  # what was put on it may use the block
            runtime.status("cudaFree", ctypes.c_void_p(self.address))


class _Pinned:
    """Page-locked bytes in main memory."""

    def __init__(self, runtime: CudaRuntime, size: int) -> None:
        self._runtime, self.address = runtime, 0
        pointer = ctypes.c_void_p()
        runtime.call("cudaHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_uint(0), size=size)
        self.address = pointer.value or 0
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))

    def __del__(self) -> None:
        if self.address:
            self._runtime.status("cudaFreeHost", ctypes.c_void_p(self.address))


class CudaEvent:
    """A point on a stream: what was put there before it has been done when it has passed."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream, event = stream, ctypes.c_void_p()
        stream.runtime.call("cudaEventCreate", ctypes.byref(event))
        self._event = event

    def record(self) -> None:
        """Puts it on the stream, in place of where it was before."""
        self._stream.runtime.call("cudaEventRecord", self._event, self._stream.argument)

    def wait(self) -> None:
        """Blocks until it has passed. Raises CudaError."""
        self._stream.runtime.call("cudaEventSynchronize", self._event)

    def seconds_since(self, earlier: CudaEvent) -> float:
        """The device's time between two events that have passed."""
        milliseconds = ctypes.c_float()
        self._stream.runtime.call("cudaEventElapsedTime", ctypes.byref(milliseconds), earlier._event, self._event)
        return milliseconds.value / 1e3

    def __del__(self) -> None:
        if self._event:
            self._stream.runtime.status("cudaEventDestroy", self._event)


class _Staged(NamedTuple):
    """Bytes of pinned memory, uint8, and as many on the device."""

    pinned: np.ndarray
    pinned_address: int
    device_address: int


class _StagingPart:
    """Pinned memory and as much on the device. used: bytes that have been handed out."""

    def __init__(self, stream: CudaStream, size: int) -> None:
        self.size, self.used = size, 0
        self._pinned, self._device = _Pinned(stream.runtime, size), CudaBlock(stream, size)

    def take(self, size: int) -> _Staged:
        start, self.used = self.used, self.used + -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        pinned = self._pinned.bytes[start : start + size]
        return _Staged(pinned, self._pinned.address + start, self._device.address + start)


class _Staging:
    """Memory through which values go to the device and back. It is handed out anew when the turn is over, or after a
    wait for the stream: until then copies may read it, and so may a run that is not on the stream yet. Hence another
    part is added when one is full; only the first one stays."""

    def __init__(self, stream: CudaStream, size: int) -> None:
        self._stream, self._parts = stream, [_StagingPart(stream, size)]

    def take(self, size: int) -> _Staged:
        """`size` bytes that no one uses."""
        if self._parts[-1].used + size > self._parts[-1].size:
            self._parts.append(_StagingPart(self._stream, max(self._parts[0].size, size)))
        return self._parts[-1].take(size)

    def free(self) -> None:
        """Takes all of it back. No copy may be left that reads it."""
        del self._parts[1:]
        self._parts[0].used = 0


class DeviceTurn:
    """What belongs to one of the turns that are on the stream: memory for its copies, and events of its course.

    fetched: arrays on their way to main memory, valid until the next turn but one begins.
    """

    def __init__(self, stream: CudaStream) -> None:
        self.staging, self.fetched = _Staging(stream, STAGING_BYTES), list[np.ndarray]()
        self.begun, self.prefilled, self.stepped, self.done = (CudaEvent(stream) for _ in range(4))
        self._runtime = stream.runtime
        self._parts, self._used = [_Pinned(self._runtime, STAGING_BYTES)], 0

    def begin(self) -> None:
        """Takes back all memory of the last turn."""
        self.staging.free()
        self.fetched, self._used = [], 0
        del self._parts[1:]
        self.begun.record()

    def room(self, stored: StoredArray) -> tuple[int, np.ndarray]:
        """Pinned memory for an array: its address, and the array."""
        size = -(-_size(stored) // ALIGNMENT) * ALIGNMENT
        if self._used + size > len(self._parts[-1].bytes):
            self._parts.append(_Pinned(self._runtime, max(size, 2 * len(self._parts[-1].bytes))))
            self._used = 0
        part, start = self._parts[-1], self._used
        self._used += size
        return part.address + start, np.ndarray(stored.shape, stored.dtype, part.bytes.data, start)

    def wait(self) -> list[np.ndarray]:
        """Blocks until the turn is over, and returns what was fetched. Raises CudaError."""
        self.done.wait()
        return self.fetched

    def seconds(self) -> tuple[float, float, float]:
        """The device's time until its rows were prefilled, until they had stepped, and until the turn was over."""
        events = (self.begun, self.prefilled, self.stepped, self.done)
        first, second, third = [later.seconds_since(earlier) for earlier, later in itertools.pairwise(events)]
        return first, second, third


class CudaMemory:
    """Memory of the current device, used in the order of a stream. See `service.runtime.memory.Memory`: only `read`
    waits.

    turn: the one that is being put on the stream. There may be another one on it.
    """

    device = "cuda"

    def __init__(self, stream: CudaStream) -> None:
        self.stream, self._runtime = stream, stream.runtime
        self.turn, self._other = DeviceTurn(stream), DeviceTurn(stream)

    @property
    def _staging(self) -> _Staging:
        return self.turn.staging

    def begin_turn(self) -> None:
        """A turn begins; the last one but one is over."""
        self.turn, self._other = self._other, self.turn
        self.turn.begin()

    def fetch(self, arrays: Iterable[StoredArray]) -> None:
        """Copies arrays to main memory, as they are at this point of the turn. Does not wait."""
        for stored in arrays:
            address, array = self.turn.room(stored)
            self._transfer(address, stored.block.address + stored.offset, _size(stored), DEVICE_TO_HOST)
            self.turn.fetched.append(array)

    def end_turn(self) -> DeviceTurn:
        """All of the turn is on the stream."""
        self.turn.done.record()
        return self.turn

    def allocate(self, size: int) -> CudaBlock:
        return CudaBlock(self.stream, size)

    def copy(self, target: Region, source: Region, *, width: int, height: int) -> None:
        for part in range(target.parts if width and height else 0):
            self._runtime.call(
                "cudaMemcpy2DAsync",
                ctypes.c_void_p(target.block.address + target.offset + part * target.stride),
                ctypes.c_size_t(target.pitch),
                ctypes.c_void_p(source.block.address + source.offset + part * source.stride),
                ctypes.c_size_t(source.pitch),
                ctypes.c_size_t(width),
                ctypes.c_size_t(height),
                ctypes.c_int(DEVICE_TO_DEVICE),
                self.stream.argument,
                size=height * width,
            )

    def copy_rows(self, rows: Region, copies: Sequence[RowCopy], *, height: int, unit: int) -> None:
        """One call for all of them: each row of each part in one piece, unless much lies between its lines."""
        copies_C4 = np.array([copy for copy in copies if copy[2] < copy[3]], np.uint64)
        if not len(copies_C4) or not height:
            return
        sources_C, targets_C, starts_C, stops_C = copies_C4.T
        row_bytes, unit_bytes = np.uint64(height * rows.pitch), np.uint64(unit)
        first_C, sizes_C = starts_C * unit_bytes, (stops_C - starts_C) * unit_bytes
        lines_L = np.arange(height) * rows.pitch
        if rows.pitch - sizes_C.min() <= PIECE_BYTES:
            lines_L, sizes_C = lines_L[:1], sizes_C + np.uint64(lines_L[-1])
        lines_PL = (np.arange(rows.parts) * rows.stride)[:, None] + lines_L
        base_PL1 = (lines_PL + rows.block.address + rows.offset).astype(np.uint64)[:, :, None]
        sources = (base_PL1 + (sources_C * row_bytes + first_C)).ravel()
        targets = (base_PL1 + (targets_C * row_bytes + first_C)).ravel()
        sizes = np.broadcast_to(sizes_C, (*lines_PL.shape, len(copies_C4))).ravel()
        self._runtime.call(
            "cudaMemcpyBatchAsync",
            *[ctypes.c_void_p(array.ctypes.data) for array in (targets, sources, sizes)],
            ctypes.c_size_t(len(sizes)),
            ctypes.byref(IN_STREAM_ORDER),
            ctypes.byref(ctypes.c_size_t(0)),
            ctypes.c_size_t(1),
            self.stream.argument,
            size=int(sizes.sum()),
        )

    def read(self, *arrays: StoredArray) -> list[np.ndarray]:
        """One wait for all arrays."""
        staged = []
        for stored in arrays:
            size = _size(stored)
            staged.append(self._staging.take(size))
            self._transfer(staged[-1].pinned_address, stored.block.address + stored.offset, size, DEVICE_TO_HOST)
        self.stream.wait()
        found = [
            np.frombuffer(pinned.tobytes(), stored.dtype).reshape(stored.shape)
            for stored, (pinned, *_) in zip(arrays, staged, strict=True)
        ]
        self._staging.free()
        return found

    def write(self, block: Block, values: np.ndarray) -> None:
        assert values.nbytes <= block.size, (values.nbytes, block.size)
        self._transfer(block.address, self._stage(values).pinned_address, values.nbytes, HOST_TO_DEVICE)

    def clear(self, block: Block, *, start: int = 0, size: int | None = None) -> None:
        if count := block.size - start if size is None else size:
            pointer, bytes_ = ctypes.c_void_p(block.address + start), ctypes.c_size_t(count)
            self._runtime.call("cudaMemsetAsync", pointer, ctypes.c_int(0), bytes_, self.stream.argument, size=count)

    def upload(self, values: np.ndarray) -> int:
        staged = self._stage(values)
        self._transfer(staged.device_address, staged.pinned_address, values.nbytes, HOST_TO_DEVICE)
        return staged.device_address

    def check_device(self) -> None:
        if status := self._runtime.lasting_error():
            raise DeviceLost(f"the CUDA device fails for good with CUDA error {status}")

    def _stage(self, values: np.ndarray) -> _Staged:
        staged = self._staging.take(values.nbytes)
        staged.pinned[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return staged

    def _transfer(self, target: int, source: int, size: int, kind: int) -> None:
        if size:
            self._runtime.call(
                "cudaMemcpyAsync",
                ctypes.c_void_p(target),
                ctypes.c_void_p(source),
                ctypes.c_size_t(size),
                ctypes.c_int(kind),
                self.stream.argument,
                size=size,
            )


def _size(stored: StoredArray) -> int:
    """Bytes."""
    return math.prod(stored.shape) * stored.dtype.itemsize
