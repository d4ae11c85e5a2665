"""Every door to translations in one run, against one server: clients that others wrote, unmodified, and that of npm.

Each program asks for the same and prints the same JSON: a translation, a batch, a language, an error, a deadline; null
where its protocol or its client cannot say it. `make adaptor-clients client-tools` installs what they import.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.load.web_process import web_process
from glossa.client import Client
from tests.e2e.client_programs import NODE, adaptor_clients, missing, npm_project, output_of
from tests.e2e.process import serving
from tests.tiny import TEXTS, tiny_config, tiny_model

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
LATE = "DEADLINE_EXCEEDED"
FOUND = {  # of each client: what an error about a model or pair that is not there and a missed deadline are to it
    "riva": ("NOT_FOUND", "FutureTimeoutError"),
    "google": ("NOT_FOUND MODEL_NOT_FOUND", LATE),
    "libretranslatepy": ("HTTP 400", "TimeoutError"),
    "deep-translator": ("ServerException", None),
    "npm": ("NOT_FOUND MODEL_NOT_FOUND", LATE),
}
UNSAID = {("riva", "detect"), ("deep-translator", "detect"), ("libretranslatepy", "batch")}


@pytest.fixture(scope="module")
def doors(exported):
    """The server, and the address of the page in front of it."""
    bundle = exported(tiny_model(tiny_config("encoder_decoder", source_language="en", target_language="de")))
    with (
        serving(models={"en-de": str(bundle)}, adaptors="riva,google-translation") as server,
        web_process(server.address) as address,
    ):
        yield server, address


@pytest.fixture(scope="module")
def expected(doors):
    """The answers of our client."""
    with Client(doors[0].address) as client:
        return [client.translate(text).text for text in TEXTS]


@pytest.fixture(scope="module")
def answered(doors, tmp_path_factory):
    """What a client prints, by its name."""
    server, address = doors

    def ask(name):
        if name == "npm":
            if missing(NODE):
                pytest.skip(missing(NODE))
            folder = npm_project(tmp_path_factory.mktemp("npm"))
            shutil.copy(HERE / "npm_client.js", folder)
            return json.loads(output_of("node", "npm_client.js", server.address, *TEXTS, cwd=folder))
        if name in ("riva", "google"):
            python = adaptor_clients() / "python"
            return json.loads(output_of(python, HERE / f"{name}_client.py", server.address, "en-de", *TEXTS))
        return json.loads(output_of(sys.executable, HERE / "libretranslate_clients.py", name, address, *TEXTS))

    found: dict[str, Any] = {}
    return lambda name: found[name] if name in found else found.setdefault(name, ask(name))


@pytest.mark.parametrize("client", FOUND)
def test_a_client_gets_the_answers_of_ours_and_errors_in_its_own_form(doors, answered, expected, client):
    error, late = FOUND[client]
    said = {"translate": expected[0], "batch": expected, "detect": "en", "error": error, "deadline": late}
    said |= {key: None for key in said if (client, key) in UNSAID}
    found = answered(client)
    assert {key: found[key] for key in said} == said
    doors[0].settle()  # nothing of what was too late is left


def test_riva_names_texts_and_fields_and_lists_languages(answered, expected):
    found = answered("riva")
    assert found["named"] == [[expected[0], "de"]]
    assert [code for code, _ in found["errors"]] == ["INVALID_ARGUMENT"] * 2
    assert found["errors"][0][1].startswith("texts[1]: ")
    assert found["pairs"] == {"en-de": [["en"], ["de"]]}


def test_google_detects_finds_models_and_reads_html(answered, expected):
    found = answered("google")
    assert found["chosen"] == [[text, ""] for text in expected]
    assert found["detected"] == [[text, "en"] for text in expected]
    assert found["html"] == [[f"<p>{expected[0]}</p>", ""]]
    assert found["errors"] == ["INVALID_ARGUMENT INVALID_FIELD"] * 2
    assert found["languages"] == [["de", False, True], ["en", True, False]]


def test_libretranslate_lists_languages(answered):
    assert answered("libretranslatepy")["languages"] == [["en", ["de"]]]
