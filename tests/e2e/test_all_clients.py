"""All clients drive one server: tritonclient and smg, unmodified, the programs of docs/clients.md in Python, Node and
C++, `buf curl`, and REST through Envoy. Each gets the same answers; nothing is left of any of them.

`make adaptor-clients client-tools` installs them; ENVOY names Envoy's binary.
"""

import base64
import json
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from google.rpc import error_details_pb2

from bench.load import envoy
from glossa.client import Client
from tests.e2e import client_programs
from tests.e2e.client_programs import PROGRAMS, buf, curl, messages
from tests.e2e.gateway import in_front_of
from tests.e2e.process import serving
from tests.tiny import TEXTS, tiny_config, tiny_model

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TEXT, PROMPT = TEXTS[0], "three birds"
PROBLEM = "options.beam_size: must be 1..32, got 99"


class Found(NamedTuple):
    """What a client got; None: it cannot ask for that. streamed: the pieces. refusal: code, reason if it shows that,
    and message."""

    unary: str | None
    streamed: list[str] | None
    generated: str | None
    refusal: tuple[str, ...]


class Site(NamedTuple):
    """The server, and what is between it and some of its clients. folder: the programs of the page."""

    server: object
    address: str
    folder: Path
    smg: object
    gateway: str


@pytest.fixture(scope="module")
def site(exported, build_cache):
    """One server of a translation and a generation model, whose answers can be long enough to be cancelled."""
    others = client_programs.adaptor_clients()
    binary = envoy.find()
    assert binary, envoy.HOW_TO_GET_IT
    folder = build_cache.once(client_programs.build, client_programs.PAGE.read_text(encoding="utf-8"))
    sizes = {"max_source_len": 1024, "max_target_len": 1024}
    kinds = {"en-de": "encoder_decoder", "en": "decoder"}
    models = {name: str(exported(tiny_model(tiny_config(kind, **sizes)))) for name, kind in kinds.items()}
    with (
        serving(models=models, adaptors="open-inference,vllm") as server,
        in_front_of(others / "smg", server.address) as smg,
        envoy.in_front_of([server.address], binary, envoy.read("replicas")) as front,
    ):
        yield Site(server, server.address, folder, smg, front.address)


def page_program(name):
    """A program of docs/clients.md. It cancels a stream, too."""

    def drive(site):
        found = client_programs.run(name, site.folder, site.address, TEXT, PROMPT)
        assert found["cancel"] == "CANCELLED"
        code, reason, message = found["error"].split(" ", 2)
        return Found(found["unary"], found["stream"].split("|"), found["generate"], (code, reason, message))

    return drive


def buf_curl(site):
    """The commands of docs/clients.md. The last one is ended while its stream goes on."""
    unary, stream, generated = (
        messages(buf(name, site.folder, site.address, TEXT, prompt=PROMPT).stdout)
        for name in ("unary", "stream", "generate")
    )
    status = json.loads(buf("error", site.folder, site.address, TEXT, check=False).stderr)
    values = {detail["type"]: detail["value"] for detail in status["details"]}
    info = error_details_pb2.ErrorInfo.FromString(base64.b64decode(values["google.rpc.ErrorInfo"] + "=="))
    buf("cancel", site.folder, site.address, TEXT)
    pieces = [message.get("text", "") for message in stream]
    refusal = (status["code"].upper(), info.reason, status["message"])
    return Found(unary[0]["text"], pieces, generated[0]["text"], refusal)


def tritonclient(site):
    """Translations alone, by the Open Inference Protocol. It cancels a stream, too."""
    command = [client_programs.adaptor_clients() / "python", HERE / "triton_client.py", site.address, *TEXTS[:2]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    code, message = found["errors"][1]
    return Found(found["one"][0], found["stream"][0]["pieces"], None, (code.removeprefix("StatusCode."), message))


def smg(site):
    """Continuations alone, by OpenAI's API over HTTP, which trims them. It leaves a stream, too."""
    fields = {"model": "en", "max_tokens": 12, "temperature": 0}
    status, answer = site.smg.post("/v1/completions", prompt=PROMPT, **fields)
    chat = {"messages": [{"role": "user", "content": PROMPT}], **fields}
    assert (status, site.smg.post("/v1/chat/completions", **chat)[0]) == (200, 200)
    with site.smg.stream("/v1/chat/completions", **chat) as events:
        pieces = [event["choices"][0]["delta"].get("content") or "" for event in events]
    status, refused = site.smg.post("/v1/completions", prompt=PROMPT, **{**fields, "temperature": -1})
    long = {"prompt": PROMPT, "model": "en", "ignore_eos": True, "temperature": 0, "max_tokens": 1000}
    with site.smg.stream("/v1/completions", **long) as events:
        next(events)
    text = answer["choices"][0]["text"]
    assert "".join(pieces) == text
    return Found(None, None, text, (str(status), refused["error"]["message"]))


def rest(site):
    """The commands of docs/clients.md, JSON over HTTP, through Envoy. The last one leaves its stream."""
    unary, stream, generated, refused = (
        json.loads(curl(name, site.folder, site.gateway, TEXT, prompt=PROMPT))
        for name in ("unary", "stream", "generate", "error")
    )
    assert curl("cancel", site.folder, site.gateway, TEXT) == "["
    (reason,) = [detail["reason"] for detail in refused["details"] if detail["@type"].endswith("ErrorInfo")]
    pieces = [message.get("text", "") for message in stream]
    return Found(unary["text"], pieces, generated["text"], (str(refused["code"]), reason, refused["message"]))


CLIENTS = {name: page_program(name) for name in PROGRAMS}
CLIENTS |= {"buf curl": buf_curl, "tritonclient": tritonclient, "smg": smg, "REST": rest}


def ended(server):
    """How many calls ended, by service, method and code; health checks and reflection are not counted."""
    server.settle()
    return Counter(
        {
            (labels["grpc_service"].rpartition(".")[2], labels["grpc_method"], labels["grpc_code"]): int(value)
            for labels, value in server.samples("grpc_server_handled_total")
            if value
        }
    )


@pytest.fixture(scope="module")
def found(site):
    """What each client got, one after the other, and the calls that ended meanwhile."""
    before = ended(site.server)
    found = {name: drive(site) for name, drive in CLIENTS.items()}
    return found, ended(site.server) - before


@pytest.fixture(scope="module")
def expected(site):
    """The answers to our client: a translation and a continuation."""
    with Client(site.address) as client:
        return client.translate(TEXT, max_tokens=16).text, client.generate(PROMPT, max_tokens=12).text


def differences(found, expected):
    """The answers that are others than those expected, by client and kind."""
    translation, continuation = expected
    return {
        (name, kind): answer
        for name, each in found.items()
        for kind, answer, right in (
            ("unary", each.unary, translation),
            ("stream", each.streamed and "".join(each.streamed), translation),
            ("generate", each.generated, continuation.strip() if name == "smg" else continuation),
        )
        if answer is not None and answer != right
    }


def test_all_clients_get_the_same_answers(found, expected):
    assert differences(found[0], expected) == {}
    assert [name for name, each in found[0].items() if each.unary is None] == ["smg"]
    assert [name for name, each in found[0].items() if each.generated is None] == ["tritonclient"]
    assert max(len(each.streamed or []) for each in found[0].values()) > 1, "a busy edge joins what waits for a client"


def test_all_clients_show_the_same_error(found):
    refusals = {name: each.refusal for name, each in found[0].items()}
    status, message = refusals.pop("smg")
    assert (status, "temperature" in message) == ("400", True)
    code, message = refusals.pop("tritonclient")
    assert (code, PROBLEM in message) == ("INVALID_ARGUMENT", True)
    assert refusals.pop("REST") == ("3", "INVALID_FIELD", PROBLEM)
    assert set(refusals.values()) == {("INVALID_ARGUMENT", "INVALID_FIELD", PROBLEM)}


def test_the_server_counts_every_call_of_them(found):
    other = ("GRPCInferenceService", "Abort")  # smg sends Abort after its client has left, at a time of its own
    calls = {key: count for key, count in found[1].items() if not set(key) & set(other)}
    page, others = len(PROGRAMS), 2  # others: buf curl and REST, which give no deadline here
    ends = [("TranslationService", "Translate", code) for code in ("DeadlineExceeded", "Canceled")]
    assert sum(calls.pop(end, 0) for end in ends) <= page, "a late call may also end before it has begun"
    assert calls == {
        ("TranslationService", "Translate", "OK"): page + others,
        ("TranslationService", "StreamTranslate", "OK"): page + others,
        ("TranslationService", "StreamTranslate", "Canceled"): page + others,
        ("TranslationService", "Translate", "InvalidArgument"): page + others,
        ("GenerationService", "Generate", "OK"): page + others,
        ("VllmEngine", "Generate", "OK"): 3,
        ("VllmEngine", "Generate", "Canceled"): 1,
    }
    streams = [found[1]["GRPCInferenceService", "ModelStreamInfer", code] for code in ("OK", "Canceled")]
    assert (streams, found[1]["GRPCInferenceService", "ModelInfer", "OK"]) == ([1, 1], 2)


def test_clients_at_the_same_time_get_the_same_answers(site, expected):
    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        running = {name: threads.submit(drive, site) for name, drive in CLIENTS.items()}
        found = {name: each.result(timeout=300) for name, each in running.items()}
    assert differences(found, expected) == {}
    ended(site.server)
