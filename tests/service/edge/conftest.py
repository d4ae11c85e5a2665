"""A running server with fake engines, and a channel to it."""

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
