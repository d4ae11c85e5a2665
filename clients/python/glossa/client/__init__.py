"""A client of Glossa: `Client` for blocking calls, `AsyncClient` for asyncio. Needs gRPC and the stubs alone."""

from glossa.client.async_client import AsyncClient
from glossa.client.calls import AttendOptions, CallOptions, Options, ScoreOptions, closest
from glossa.client.client import Client
from glossa.client.errors import ClientError

__all__ = [
    "AsyncClient",
    "AttendOptions",
    "CallOptions",
    "Client",
    "ClientError",
    "Options",
    "ScoreOptions",
    "closest",
]
