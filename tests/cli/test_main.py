"""The whole path from training to a served bundle, and what the command prints without a verb."""

import json

from cli.demo import counters
from cli.local_server import fetch, is_ready, serving
from glossa.version import VERSION
from tests.cli.command import run


def test_the_whole_path_from_training_to_a_served_bundle(trained, trained_bundle):
    report = json.loads(run("verify", trained_bundle, "--checkpoint", trained, "--json"))
    assert report["passed"]
    files = [path for path in trained_bundle.rglob("*") if path.is_file() and path.stem != "manifest"]
    assert report["serving"]["bundle_bytes"] == sum(path.stat().st_size for path in files)
    assert 0 < report["serving"]["ready_s"] < 60
    assert report["serving"]["resident_bytes"] > 10e6


def test_a_running_server_translates_from_the_command_line(trained_bundle):
    with serving(trained_bundle) as (address, ops):
        before = counters(fetch(f"{ops}/metrics"))
        streamed = run("translate", "a b c", "--address", address)
        whole = json.loads(run("translate", "a b c", "--address", address, "--json"))
        lines = run("translate", "--address", address, lines="a b c\n\na b c\n")
        after = counters(fetch(f"{ops}/metrics"))
        refused = run("translate", "a", "--address", address, "--model", "nobody", fails=True)
        unknown = run("translate", "a zebra", "--address", address, fails=True)
        wrong_task = run("generate", "a", "--address", address, fails=True)
        assert is_ready(ops)
    assert not is_ready(ops)
    assert streamed.rstrip("\n") == whole["text"]
    assert lines == whole["text"] + "\n\n" + whole["text"] + "\n"
    assert (
        after["glossa_generated_tokens_total"]
        == before["glossa_generated_tokens_total"] + 4 * whole["generated_tokens"]
    )
    assert "NOT_FOUND" in refused
    assert "nobody" in refused
    assert "zebra" in unknown
    assert "FAILED_PRECONDITION" in wrong_task


def test_the_version_is_that_of_the_distributions():
    assert run("--version") == f"glossa {VERSION}\n"
