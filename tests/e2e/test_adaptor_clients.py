"""Clients of other protocols, unmodified, drive a real server through its adaptors.

They are installed by `make adaptor-clients`, in an environment of their own; `make test-all` does so first.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from glossa.client import Client
from tests.e2e.client_programs import adaptor_clients
from tests.e2e.gateway import in_front_of
from tests.e2e.process import serving
from tests.tiny import TEXTS

HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs():
    """Where the clients are."""
    return adaptor_clients()


@pytest.fixture(scope="module")
def server(tiny_translation_bundle, tiny_generation_bundle):
    models = {"en-de": str(tiny_translation_bundle), "en": str(tiny_generation_bundle)}
    with serving(models=models, adaptors="open-inference") as server:
        yield server


def test_tritonclient_gets_the_answers_of_our_client(programs, server):
    command = [programs / "python", HERE / "triton_client.py", server.address, *TEXTS[:2]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    with Client(server.address) as client:
        greedy = [client.translate(text, model="en-de", max_tokens=16).text for text in TEXTS[:2]]
        beams = [client.translate(text, model="en-de", max_tokens=16, beam_size=4).text for text in TEXTS[:2]]
    assert found["ready"] == [True, True, True]
    assert found["metadata"] == ["glossa", "en-de"]
    assert (found["one"], found["rows"]) == (greedy[:1], beams)
    codes = [status for status, _ in found["errors"]]
    assert codes == ["StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT", "StatusCode.DEADLINE_EXCEEDED"]
    assert "options.beam_size: must be 1..32, got 99" in found["errors"][1][1]
    first, refused, second = found["stream"]
    assert [first["id"], second["id"]] == ["0", "2"]
    assert ["".join(one["pieces"]) for one in (first, second)] == greedy
    assert refused["error"].startswith("INVALID_ARGUMENT: text_input[0]: ")
    assert found["cancelled"] in (None, "StatusCode.CANCELLED")
    server.settle()
    assert server.metric("grpc_server_handled_total", grpc_method="ModelStreamInfer", grpc_code="Canceled") == 1
    assert server.metric("grpc_server_handled_total", grpc_method="ModelStreamInfer", grpc_code="OK") == 1


@pytest.fixture(scope="module")
def generators(tiny_generation_bundle):
    """Two servers of the same generation model."""
    settings = {"models": {"en": str(tiny_generation_bundle)}, "adaptors": "vllm", "engines": 1}
    with serving(**settings) as one, serving(**settings) as other:
        yield one, other


@pytest.fixture(scope="module")
def gateway(programs, generators):
    with in_front_of(programs / "smg", *[server.address for server in generators]) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def expected(generators):
    """The answer of our client."""
    with Client(generators[0].address) as client:
        return client.generate(TEXTS[0], max_tokens=12)


def test_smg_finds_the_model_of_its_workers(gateway):
    assert [model["id"] for model in gateway.get("/v1/models")["data"]] == ["en"]


def test_completions_are_the_answers_of_our_client(gateway, expected):
    status, answer = gateway.post("/v1/completions", model="en", prompt=TEXTS[0], max_tokens=12, temperature=0)
    assert status == 200
    (choice,) = answer["choices"]
    assert choice["text"] == expected.text.strip()
    assert answer["usage"]["completion_tokens"] == expected.generated_tokens


def test_a_chat_is_answered_whole_and_as_a_stream(gateway, expected):
    fields = {"model": "en", "messages": [{"role": "user", "content": TEXTS[0]}], "max_tokens": 12, "temperature": 0}
    status, answer = gateway.post("/v1/chat/completions", **fields)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, expected.text.strip())
    with gateway.stream("/v1/chat/completions", **fields) as events:
        pieces = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(pieces) == expected.text.strip()


def test_several_answers_and_log_probabilities_are_those_of_our_client(gateway, generators):
    fields: Any = {"max_tokens": 8, "temperature": 1.0, "seed": 5}
    status, answer = gateway.post("/v1/completions", model="en", prompt=TEXTS[1], n=2, **fields)
    with Client(generators[0].address) as client:
        ours = client.generate(TEXTS[1], num_sequences=2, **fields)
        greedy = client.generate(TEXTS[1], max_tokens=4, token_logprobs=True)
    assert status == 200
    assert [choice["text"] for choice in answer["choices"]] == [one.text.strip() for one in ours.hypotheses]
    messages = [{"role": "user", "content": TEXTS[1]}]
    fields = {"max_tokens": 4, "temperature": 0, "logprobs": True}
    status, answer = gateway.post("/v1/chat/completions", model="en", messages=messages, **fields)
    found = [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]
    assert found == pytest.approx([token.logprob for token in greedy.hypotheses[0].token_logprobs], abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "unheard-of"}, "closed vocabulary"),
        ({"prompt": TEXTS[0], "regex": "("}, "options.regex"),
        ({"prompt": " ".join([TEXTS[0]] * 20)}, "maximum context length is 64"),
    ],
)
def test_errors_are_those_of_the_client(gateway, fields, message):
    status, answer = gateway.post("/v1/completions", model="en", max_tokens=5, **fields)
    assert status == 400
    assert message in answer["error"]["message"]


def test_requests_are_spread_over_the_workers(gateway, generators):
    def handled():
        return [
            server.metric("grpc_server_handled_total", grpc_method="Generate", grpc_code="OK") for server in generators
        ]

    before = handled()
    for _ in range(10):
        assert gateway.post("/v1/completions", model="en", prompt=TEXTS[0], max_tokens=2)[0] == 200
    assert [now - then for now, then in zip(handled(), before, strict=True)] == [5, 5]


def test_a_client_that_goes_away_ends_its_request(gateway, generators):
    def ended():
        names = {"grpc_service": "vllm.grpc.engine.VllmEngine", "grpc_method": "Generate", "grpc_code": "Canceled"}
        return sum(server.metric("grpc_server_handled_total", **names) for server in generators)

    before = ended()
    for _ in range(50):  # an answer takes milliseconds: some are over before their client has gone
        with gateway.stream("/v1/completions", model="en", prompt="the", n=1, ignore_eos=True, temperature=0) as events:
            next(events)
        if ended() > before:
            break
    else:
        pytest.fail("no request was cancelled")
    for server in generators:
        server.settle()
