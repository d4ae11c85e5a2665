"""A running server with fake engines and all adaptors, and a channel to it."""

import grpc
import pytest

from service.adaptors.selection import ADAPTORS
from tests.edge import running


@pytest.fixture
async def edge():
    async with running(adaptors=tuple(ADAPTORS)) as edge:
        yield edge


@pytest.fixture
async def channel(edge):
    async with grpc.aio.insecure_channel(edge.address) as channel:
        yield channel
