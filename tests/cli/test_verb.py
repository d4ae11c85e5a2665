"""Where flags of the connection stand, and which page describes them."""

import asyncio

import pytest

from cli.local_server import free_port
from tests.cli.command import run


def test_the_page_of_a_verb_names_the_flags_of_the_connection_and_does_not_describe_them():
    page = " ".join(run("translate", "--help").split())
    flags = "--address, --tls, --tls-ca, --client-cert, --client-key, --token, --metadata"
    assert f"Connection: {flags}; `glossa --help` describes them." in page
    assert "GLOSSA_TLS_CA" not in page
    assert "GLOSSA_TLS_CA" in run("--help")
    assert "Connection: --tls, --tls-ca," in " ".join(run("eval", "--help").split())
    assert "Connection: " not in run("train", "--help")


async def test_flags_of_the_connection_may_stand_before_a_verb_or_after_it(edge):
    other = f"127.0.0.1:{free_port()}"
    assert await asyncio.to_thread(run, "--address", edge.address, "translate", "a cat") == "zwei rote Häuser\n"
    assert (
        await asyncio.to_thread(run, "--address", other, "translate", "a cat", "--address", edge.address)
        == "zwei rote Häuser\n"
    )
    assert f"no server at {other}" in await asyncio.to_thread(run, "--address", other, "translate", "a cat", fails=True)


async def test_a_flag_before_a_verb_counts_more_than_a_variable(edge, monkeypatch):
    monkeypatch.setenv("GLOSSA_ADDRESS", f"127.0.0.1:{free_port()}")
    assert await asyncio.to_thread(run, "--address", edge.address, "translate", "a cat") == "zwei rote Häuser\n"


def test_a_variable_of_the_connection_is_read_by_the_verbs_that_have_it_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOSSA_TLS", "perhaps")
    run("corpus", str(tmp_path / "pairs.tsv"), "--count", "2")
    assert "GLOSSA_TLS" in run("translate", "a cat", fails=2)


@pytest.mark.parametrize(
    ("flag", "verb"),
    [
        (("--tls",), ("doctor",)),
        (("--address", "h:1"), ("eval", "a")),
        (("--token", "secret"), ("healthcheck",)),
    ],
)
def test_a_flag_that_a_verb_does_not_have_is_refused_before_it(flag, verb):
    refused = run(*flag, *verb, fails=True)
    assert refused.startswith(f"error: {flag[0]}: is not for `")
    assert refused.endswith(f"{' '.join(w for w in verb if w != 'a')}`; leave it out before the verb\n")
