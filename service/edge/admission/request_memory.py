"""The memory that open calls may come to hold in the edge and in engine processes, beside caches (`RequestMemory`):
their messages, options, tokens, answers and responses.

A call reserves what its message may become before the message is parsed, and what its answer may become before an
engine gets the request. It keeps both until its response is written. One that does not fit is refused: what is admitted
has room. Nothing here knows gRPC.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from service.edge.admission.tenant_shares import TenantShares
from service.errors import MemoryLimit
from service.memory.memory_prediction import ATTENTION_FACTOR
from service.request import Caller

RETRY_S = 0.5

# Growth of resident memory in all processes together while 100 to 1,500 such requests are there (demo model):
CALL_BYTES = 32 << 10  # a call with a short text; 32 KB
MESSAGE_FACTOR = 32  # for each byte of a message; 16 with `allowed_tokens` of two bytes each, ids of one byte take more
ANSWER_FACTOR = 10  # for each byte of `request_limits.response_size`; 6 in an engine and 3 in the edge, top_logprobs


def message_bytes(size: int) -> int:
    """What a message of `size` bytes may take, from its parsing to the request of an engine."""
    return CALL_BYTES + MESSAGE_FACTOR * size


def answer_bytes(response: int, attention: int) -> int:
    """What the answer to a request may take. response, attention: bytes, see `request_limits.ResponseSize`."""
    return ANSWER_FACTOR * response + ATTENTION_FACTOR * attention


class RequestMemory:
    """The memory of one server's calls. Event-loop thread only. limit_bytes: of all calls.

    A single call that could need more than the limit has it for itself.
    """

    def __init__(self, limit_bytes: int, tenant_share: float, clock: Callable[[], float] = time.monotonic) -> None:
        """tenant_share: see `TenantShares`. clock: seconds."""
        self.limit_bytes, self._clock = limit_bytes, clock
        self._shares = TenantShares(tenant_share)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all calls."""
        return self._shares.total

    def reserve(self, caller: Caller, size: int) -> None:
        """Reserves `size` bytes. Raises MemoryLimit instead."""
        if error := self.refusal(caller, size):
            raise error
        self._shares.enter(caller, size)

    def refusal(self, caller: Caller, size: int) -> MemoryLimit | None:
        """Why `size` bytes cannot be reserved; None if they can."""
        shares, limit = self._shares, self.limit_bytes
        if shares.has_room(caller, limit, self._clock(), size):
            return None
        whose = "a tenant's share" if shares.total + size <= limit else "what is free"
        return MemoryLimit(
            f"this request may take {size} bytes of memory, more than {whose} of the {limit} for all requests: "
            "send less, or ask for fewer hypotheses or details",
            retry_after_s=RETRY_S,
            limit=limit,
        )

    def release(self, caller: Caller, size: int) -> None:
        """Gives reserved bytes back."""
        self._shares.leave(caller, size)


class SpareMemory(RequestMemory):
    """Of another memory what half of its limit leaves, for work that nobody waits for."""

    def __init__(self, memory: RequestMemory) -> None:
        self.limit_bytes, self._shares = memory.limit_bytes // 2, memory._shares

    def refusal(self, caller: Caller, size: int) -> MemoryLimit | None:
        """See `RequestMemory`. No tenant counts as present by it."""
        if self.reserved_bytes + size <= self.limit_bytes:
            return None
        problem = f"{size} bytes are more than half of the memory for requests leaves"
        return MemoryLimit(problem, retry_after_s=RETRY_S, limit=self.limit_bytes)


class Reservation:
    """What one call has reserved."""

    def __init__(self, memory: RequestMemory, caller: Caller) -> None:
        self._memory, self._caller = memory, caller
        self.size = 0

    def grow(self, size: int) -> None:
        """Reserves `size` more bytes, or what the limit leaves of them. Raises MemoryLimit."""
        size = min(size, self._memory.limit_bytes - self.size)
        self._memory.reserve(self._caller, size)
        self.size += size

    def shrink(self, size: int) -> None:
        """Gives back what is more than `size` bytes."""
        if (excess := self.size - size) > 0:
            self._memory.release(self._caller, excess)
            self.size = size

    def release(self) -> None:
        """Gives everything back."""
        self.shrink(0)

    def another(self) -> Reservation:
        """An empty one of the same caller."""
        return Reservation(self._memory, self._caller)

    def split(self, count: int) -> list[Reservation]:
        """Passes everything on to `count` others, in equal parts, or gives it back if there is none."""
        parts = [self.another() for _ in range(count)]
        for index, part in enumerate(parts):
            part.size = self.size // count + (index < self.size % count)
        if parts:
            self.size = 0
        self.release()
        return parts
