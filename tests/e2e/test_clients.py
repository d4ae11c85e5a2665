"""Clients in several languages: the programs of docs/clients.md, from its text, against real servers.

Node's packages come with `make client-tools`, a compiler for C++ from the system.
"""

import asyncio
import base64
import json

import pytest
from google.rpc import error_details_pb2

from bench.load import envoy
from glossa.client import Client
from service.errors import Overloaded
from tests.certificates import issue, save
from tests.cli.command import run as glossa
from tests.e2e import client_programs
from tests.e2e.client_programs import PROGRAMS, buf, curl, messages
from tests.e2e.process import serving
from tests.edge import running
from tests.tiny import TEXTS, tiny_config, tiny_model

pytestmark = pytest.mark.slow

TEXT, PROMPT = TEXTS[0], "three birds"
SHORT = "the small red house"  # for servers without engines
REFUSED = "INVALID_ARGUMENT INVALID_FIELD options.beam_size: must be 1..32, got 99"


@pytest.fixture(scope="session")
def programs(build_cache):
    """The folder with the programs of the page."""
    return build_cache.once(client_programs.build, client_programs.PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def models(exported):
    """Their answers can be so long that a client cancels or gives up before their end."""
    sizes = {"max_source_len": 1024, "max_target_len": 1024}
    architectures = {"en-de": "encoder_decoder", "en": "decoder"}
    return {name: str(exported(tiny_model(tiny_config(kind, **sizes)))) for name, kind in architectures.items()}


@pytest.fixture(scope="module")
def server(models):
    with serving(models=models) as server:
        yield server


@pytest.fixture(scope="module")
def expected(server):
    """The answers of our client."""
    with Client(server.address) as client:
        return client.translate(TEXT, max_tokens=16).text, client.generate(PROMPT, max_tokens=12).text


def handled(server, code, *methods):
    """How many calls of some methods ended with a code."""
    server.settle()
    return sum(server.metric("grpc_server_handled_total", grpc_method=method, grpc_code=code) for method in methods)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_gets_answers_errors_deadlines_and_cancels(programs, server, expected, program):
    counts = {  # not those of the late call: it ends as DeadlineExceeded, as Canceled, or before it has begun
        ("OK", "Translate", "StreamTranslate", "Generate"): 3,
        ("InvalidArgument", "Translate"): 1,
        ("Canceled", "StreamTranslate"): 1,
    }
    before = {names: handled(server, *names) for names in counts}
    found = client_programs.run(program, programs, server.address, TEXT, PROMPT)
    assert found.pop("stream").replace("|", "") == expected[0]  # that it streams shows the cancelled one
    assert found == {
        "unary": expected[0],
        "generate": expected[1],
        "error": REFUSED,
        "deadline": "DEADLINE_EXCEEDED",
        "cancel": "CANCELLED",
    }
    assert {names: handled(server, *names) - before[names] for names in counts} == counts


def test_buf_curl_gets_answers_and_errors(programs, server, expected):
    (unary,) = messages(buf("unary", programs, server.address, TEXT).stdout)
    stream = messages(buf("stream", programs, server.address, TEXT).stdout)
    (generated,) = messages(buf("generate", programs, server.address, TEXT, prompt=PROMPT).stdout)
    assert (unary["text"], generated["text"]) == expected
    assert "".join(message.get("text", "") for message in stream) == expected[0]
    refused = buf("error", programs, server.address, TEXT, check=False)
    assert refused.returncode == 8 * 3
    status = json.loads(refused.stderr)
    values = {detail["type"]: detail["value"] for detail in status["details"]}
    info = error_details_pb2.ErrorInfo.FromString(base64.b64decode(values["google.rpc.ErrorInfo"] + "=="))
    assert f"{status['code'].upper()} {info.reason} {status['message']}" == REFUSED


def test_buf_curl_cancels_when_it_ends(programs, server):
    before = handled(server, "Canceled", "StreamTranslate")
    assert buf("cancel", programs, server.address, TEXT).stdout.startswith('{\n  "text": ')
    assert handled(server, "Canceled", "StreamTranslate") == before + 1


async def test_the_deadline_of_buf_curl_reaches_the_server(programs):
    async with running() as edge:
        edge.pool.hold = True
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + 2.0
        done = await asyncio.to_thread(buf, "deadline", programs, edge.address, SHORT, check=False)
        assert (done.returncode, "deadline_exceeded" in done.stderr) == (8 * 4, True)
        assert edge.pool.requests[0].deadline_s == pytest.approx(ends_s, abs=1.5)
        await edge.server.calls.idle()


@pytest.fixture(scope="module")
def protected(models, tmp_path_factory):
    """A server with TLS and tokens, and the environment of its clients."""
    folder, authority = tmp_path_factory.mktemp("protected"), issue("authority")
    (folder / "authority.pem").write_bytes(authority.pem)
    secret = glossa("token", "acme", "--file", str(folder / "tokens")).strip()
    settings = {name: str(path) for name, path in save(folder, issue(by=authority)).items()}
    with serving(models=models, tokens=str(folder / "tokens"), **settings) as server:
        yield server, {"GLOSSA_TLS_CA": folder / "authority.pem", "GLOSSA_TOKEN": secret}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_uses_tls_and_a_token(programs, protected, expected, program):
    server, environment = protected
    found = client_programs.run(program, programs, server.address, TEXT, **environment)
    assert (found["unary"], found["error"]) == (expected[0], REFUSED)


def test_buf_curl_uses_tls_and_a_token(programs, protected, expected):
    server, environment = protected
    (unary,) = messages(buf("tls", programs, server.address, TEXT, **environment).stdout)
    assert unary["text"] == expected[0]
    refused = buf("tls", programs, server.address, TEXT, check=False, **{**environment, "GLOSSA_TOKEN": "wrong"})
    assert "failed to find service" in refused.stderr, "reflection needs the token, and buf does not show its error"


@pytest.fixture(scope="module")
def guarded(models, tmp_path_factory):
    """A server that wants certificates of its clients, and the environment of one that has one."""
    folder, authority = tmp_path_factory.mktemp("guarded"), issue("authority")
    client = issue("client", by=authority)
    files = {"authority.pem": authority.pem, "client.pem": client.pem, "client.key": client.key_pem}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    settings = {name: str(path) for name, path in save(folder, issue(by=authority), client_ca=authority.pem).items()}
    with serving(models=models, **settings) as server:
        names = {
            "GLOSSA_TLS_CA": "authority.pem",
            "GLOSSA_CLIENT_CERT": "client.pem",
            "GLOSSA_CLIENT_KEY": "client.key",
        }
        yield server, {variable: folder / name for variable, name in names.items()}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_shows_a_certificate(programs, guarded, expected, program):
    server, environment = guarded
    found = client_programs.run(program, programs, server.address, TEXT, **environment)
    assert (found["unary"], found["error"]) == (expected[0], REFUSED)


def test_buf_curl_shows_a_certificate(programs, guarded, expected):
    server, environment = guarded
    (unary,) = messages(buf("certificate", programs, server.address, TEXT, **environment).stdout)
    assert unary["text"] == expected[0]
    without = {"GLOSSA_TLS_CA": environment["GLOSSA_TLS_CA"], "GLOSSA_TOKEN": "none"}
    assert buf("tls", programs, server.address, TEXT, check=False, **without).returncode != 0


async def test_the_deadline_of_rest_reaches_the_server(programs):
    binary = envoy.find()
    assert binary, envoy.HOW_TO_GET_IT
    async with running() as edge:
        edge.pool.hold = True
        front = envoy.in_front_of([edge.address], binary, envoy.read("replicas"))
        found = await asyncio.to_thread(front.__enter__)  # it asks the server, which this thread runs
        try:
            ends_s = asyncio.get_running_loop().time() + 2.0
            printed = await asyncio.to_thread(curl, "deadline", programs, found.address, SHORT)
            assert edge.pool.requests[0].deadline_s == pytest.approx(ends_s, abs=1.5)
            await edge.server.calls.idle()
        finally:
            await asyncio.to_thread(front.__exit__, None, None, None)
    assert json.loads(printed)["code"] == 4, printed


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_refused_call_is_retried_after_the_pause_that_the_server_names(programs, program):
    async with running() as edge:
        loop = asyncio.get_running_loop()
        refused_s = list[float]()

        class Full(Overloaded):
            """Refuses the first call, and accepts all later ones."""

            def __init__(self):
                super().__init__("the queue is full", retry_after_s=0.7, limit=1)

        def submit(*arguments):
            if not refused_s:
                refused_s.append(loop.time())
                raise Full()
            again_s.append(loop.time())
            return accept(*arguments)

        again_s, accept = list[float](), edge.pool.submit
        edge.pool.submit = submit
        found = await asyncio.to_thread(client_programs.run, program, programs, edge.address, SHORT)
        assert found["unary"] == "zwei rote Häuser"
        assert 0.65 < again_s[0] - refused_s[0] < 5, "its own backoff would be 0.1 s at most"
