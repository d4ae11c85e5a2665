import pytest

from glossa.client import AsyncClient, ClientError
from tests.clients.python.client.conftest import TEXT


async def test_an_error_has_code_reason_and_fields(client):
    with pytest.raises(ClientError) as caught:
        await client.translate("")
    error = caught.value
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert error.field_violations == {"text": "must not be empty or blank"}
    with pytest.raises(ClientError) as caught:
        _ = [piece async for piece in client.stream_translate(TEXT, model="unknown")]
    assert (caught.value.code, caught.value.reason) == ("NOT_FOUND", "MODEL_NOT_FOUND")


async def test_a_server_that_does_not_answer_is_unavailable():
    async with AsyncClient("127.0.0.1:1", timeout_s=5) as client:
        with pytest.raises(ClientError) as caught:
            await client.translate(TEXT)
    assert (caught.value.code, caught.value.reason) == ("UNAVAILABLE", "")
