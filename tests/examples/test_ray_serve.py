"""The example for Ray Serve, with a real server and a real Ray: `RAY_PYTHON` names an interpreter that has it."""

import os
import subprocess
from pathlib import Path

import pytest

from bench.load.peer_server import ending_with_parent
from cli.local_server import free_port
from glossa.client import Client, ClientError
from tests.e2e.process import serving
from tests.tiny import TEXTS

ROOT = Path(__file__).parents[2]
HINT = "RAY_PYTHON must name a Python with Ray: python -m venv DIR && DIR/bin/pip install 'ray[serve-grpc]==2.60.0'"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tiny_translation_bundle):
    with serving(models={"en-de": str(tiny_translation_bundle)}) as server:
        yield server


@pytest.fixture(scope="module")
def front(server, tmp_path_factory):
    """The address of Ray's proxy."""
    python, port = os.environ.get("RAY_PYTHON"), free_port()
    assert python, HINT
    log = tmp_path_factory.mktemp("ray") / "log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "clients/python"), "RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("w") as errors:
        process = subprocess.Popen(
            ending_with_parent([python, ROOT / "examples/ray_serve/front.py", server.address, str(port)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        )
    with process:
        assert process.stdout is not None
        assert "ready\n" in iter(process.stdout.readline, ""), log.read_text()[-3000:]
        yield f"127.0.0.1:{port}"
        process.communicate(timeout=60)  # closes its input, which ends it


def test_answers_are_those_of_the_server(server, front):
    with Client(server.address) as direct, Client(front) as client:
        expected = direct.translate(TEXTS[0], max_tokens=16).text
        assert client.translate(TEXTS[0], max_tokens=16).text == expected
        assert "".join(piece.text for piece in client.stream_translate(TEXTS[0], max_tokens=16)) == expected


def test_errors_keep_code_and_message_and_lose_their_details(front):
    def refused(call):
        with pytest.raises(ClientError) as caught:
            call()
        return caught.value.code, caught.value.message, caught.value.reason

    with Client(front) as client:
        expected = ("INVALID_ARGUMENT", "options.beam_size: must be 1..32, got 99", "")
        assert refused(lambda: client.translate(TEXTS[0], beam_size=99)) == expected
        assert refused(lambda: list(client.stream_translate(TEXTS[0], beam_size=99))) == expected
