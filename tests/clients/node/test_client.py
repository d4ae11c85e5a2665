"""The npm client of clients/node: packed as for npm, its types by the TypeScript compiler, its calls on a server."""

import asyncio
import json
import re
import shutil
import socket
from pathlib import Path

import pytest

from glossa.client.channel import SERVICE_CONFIG
from tests.e2e.client_programs import NODE, missing, npm_project, output_of
from tests.edge import running

pytestmark = pytest.mark.slow

ROOT, HERE = Path(__file__).parents[3], Path(__file__).parent
GERMAN = "zwei rote Häuser"  # every answer
TSC = ("--noEmit", "--strict", "--target", "es2022", "--module", "nodenext")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder where the packed client is installed beside what it needs."""
    assert not missing(NODE), missing(NODE)
    folder = npm_project(tmp_path_factory.mktemp("npm"))
    for name in ("use.ts", "calls.js"):
        shutil.copy(HERE / name, folder)
    return folder


def test_the_package_has_its_protos_and_types(project):
    package = project / "node_modules/glossa-client"
    assert (package / "protos/glossa/v1/glossa.proto").read_bytes() == (
        ROOT / "protos/glossa/v1/glossa.proto"
    ).read_bytes()
    assert {path.name for path in package.iterdir()} == {
        "LICENSE", "README.md", "index.d.ts", "index.js", "package.json", "protos", "types",
    }  # fmt: skip


def test_its_types_accept_what_the_proto_has_and_refuse_what_it_lacks(project):
    assert output_of(project / "node_modules/typescript/bin/tsc", *TSC, "use.ts", cwd=project) == ""


def test_its_retries_are_those_of_the_python_client():
    text = (ROOT / "clients/node/index.js").read_text()
    (config,) = re.findall(r"^const SERVICE_CONFIG = (.*?^\});", text, re.MULTILINE | re.DOTALL)
    assert json.loads(re.sub(r",(\s*[}\]])", r"\1", re.sub(r"(\w+):", r'"\1":', config))) == SERVICE_CONFIG


async def test_its_calls_answer_end_and_fail_as_the_server_says(project):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with running() as edge:
            never = f"127.0.0.1:{silent.getsockname()[1]}"
            printed = await asyncio.to_thread(output_of, "node", "calls.js", edge.address, never, cwd=project)
            models = list(edge.models)
    found = json.loads(printed)
    assert found["unary"] == found["stream"] == GERMAN
    assert GERMAN.startswith(found["first"])
    assert "en-de" in found["models"]
    assert {*found["models"]} <= {*models}
    assert found["document"] == f"1\n00:00:01,000 --> 00:00:02,000\n{GERMAN}\n"
    for name, code, reason in (
        ("refused", "INVALID_ARGUMENT", "INVALID_FIELD"),
        ("refusedStream", "INVALID_ARGUMENT", "INVALID_FIELD"),
        ("unknown", "NOT_FOUND", "MODEL_NOT_FOUND"),
        ("cancelled", "CANCELLED", ""),
        ("late", "DEADLINE_EXCEEDED", ""),
        ("lateStream", "DEADLINE_EXCEEDED", ""),
    ):
        assert (found[name]["code"], found[name]["reason"]) == (code, reason), name
    assert "en-de" in found["unknown"]["metadata"]["models"]
    assert found["broken"] == "RangeError: the caller's own"
    assert found["aborted"].startswith("AbortError")
