"""A client of Glossa: `Client` for blocking calls, `AsyncClient` for asyncio. Needs only gRPC and the stubs."""

from glossa.client.batches import AsyncBatch, Batch
from glossa.client.channel import tls_credentials
from glossa.client.client import AsyncClient, Client
from glossa.client.errors import ClientError
from glossa.client.requests import AttendOptions, CallOptions, Options, ScoreOptions, TranslateOptions, closest

__all__ = [
    "AsyncBatch",
    "AsyncClient",
    "AttendOptions",
    "Batch",
    "CallOptions",
    "Client",
    "ClientError",
    "Options",
    "ScoreOptions",
    "TranslateOptions",
    "closest",
    "tls_credentials",
]
