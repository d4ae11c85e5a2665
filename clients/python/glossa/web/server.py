"""Runs the application on a port until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from glossa.web.app import Settings, application

GRACE_S = 5  # for answers that are on their way when it is told to stop


def serve(settings: Settings, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. port: 0 for a free one. announce: gets the page's address once it is served.

    Raises OSError for an address that cannot be used, ValueError as `application`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    with listening:
        asyncio.run(_serve(settings, listening, announce))


async def _serve(settings: Settings, listening: socket.socket, announce: Callable[[str], None]) -> None:
    config = uvicorn.Config(
        application(settings),
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    host, port = listening.getsockname()[:2]
    announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    await _Server(config).serve(sockets=[listening])


class _Server(uvicorn.Server):
    """Ends without an error when it is told to stop; uvicorn would raise the signal again, and so end by it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for stop in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(stop, setattr, self, "should_exit", True)
        yield
