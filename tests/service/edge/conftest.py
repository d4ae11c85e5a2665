"""A running server with fake engines, and a channel to it."""

import contextlib

import grpc
import pytest

from tests.edge import running


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


@pytest.fixture
async def channel(edge):
    async with grpc.aio.insecure_channel(edge.address) as channel:
        yield channel


@pytest.fixture
def channel_to():
    """A running server with settings, and a channel to it."""

    @contextlib.asynccontextmanager
    async def open_channel(**changes):
        async with running(**changes) as edge, grpc.aio.insecure_channel(edge.address) as channel:
            yield edge, channel

    return open_channel
