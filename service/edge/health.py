"""grpc.health.v1, answered from memory, never from a queue of work.

Own code instead of the library's servicer: there, one watcher that leaves takes the condition of the others with it, so
that they never hear of a change, and one that stops reading holds the lock that a change needs, so that shutdown hangs.
Here every watcher has its own event and a change only sets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Status = health_pb2.HealthCheckResponse
MAX_WATCHERS = 512


class Health(health_pb2_grpc.HealthServicer):
    """The serving status of the server ("") and of each of its services. Used on the event-loop thread only."""

    def __init__(self, services: Iterable[str]) -> None:
        self._serving = dict.fromkeys(("", *services), False)
        self._watchers: set[asyncio.Event] = set()
        self._closed = False

    def set(self, service: str, serving: bool) -> None:
        """No effect after `close`."""
        assert service in self._serving, service
        if not self._closed and self._serving[service] != serving:
            self._serving[service] = serving
            self._wake()

    def close(self) -> None:
        """NOT_SERVING everywhere, for good."""
        self._closed = True
        self._serving = dict.fromkeys(self._serving, False)
        self._wake()

    def status(self, service: str) -> int:
        if service not in self._serving:
            return Status.SERVICE_UNKNOWN
        return Status.SERVING if self._serving[service] else Status.NOT_SERVING

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Status:
        status = self.status(request.service)
        if status == Status.SERVICE_UNKNOWN:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"no service of that name; known: {', '.join(self._serving)}"
            )
        return Status(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> AsyncIterator[Status]:
        if len(self._watchers) >= MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MAX_WATCHERS} watchers at once")
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            last = None
            while True:
                changed.clear()
                status = self.status(request.service)
                if status != last:
                    last = status
                    yield Status(status=status)
                if self._closed:  # the last word: a watcher must not hold up the server's stop
                    return
                await changed.wait()
        finally:
            self._watchers.discard(changed)
