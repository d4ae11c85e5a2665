import pytest

from glossa.client import AsyncClient
from tests.edge import running

TEXT = "the small red house"


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


@pytest.fixture
async def client(edge):
    async with AsyncClient(edge.address, timeout_s=5) as client:
        yield client
