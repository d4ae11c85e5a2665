"""grpc.health.v1, answered from memory, never from a queue of work.

Not the library's asyncio servicer: there a watcher that leaves removes the condition of the others, so that they miss
changes, and one that stops reading holds the lock that a change needs, so that shutdown hangs. Here every watcher has
an event of its own, and a change only sets them.
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
        """Changes the status of a service; no effect after `close`."""
        assert service in self._serving, service
        if not self._closed and self._serving[service] != serving:
            self._serving[service] = serving
            self._wake()

    def close(self) -> None:
        """NOT_SERVING for every service, permanently."""
        self._closed = True
        self._serving = dict.fromkeys(self._serving, False)
        self._wake()

    def status(self, service: str) -> int:
        """The number of a ServingStatus."""
        if service not in self._serving:
            return Status.SERVICE_UNKNOWN
        return Status.SERVING if self._serving[service] else Status.NOT_SERVING

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Status:
        status = self.status(request.service)
        if status == Status.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service; known: {', '.join(self._serving)}")
        return Status(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> AsyncIterator[Status]:
        if len(self._watchers) >= MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MAX_WATCHERS} concurrent watchers")
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
                if self._closed:  # the last status: a watcher must not delay shutdown
                    return
                await changed.wait()
        finally:
            self._watchers.discard(changed)
