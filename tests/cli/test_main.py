"""The whole path from training to a served bundle, and what the command prints without a verb."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.text import Text

import cli.main
from cli.connection import PANEL
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


@pytest.mark.slow
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


MAX_FLAGS = 405


def described(command: Any, context: Any) -> Iterator[tuple[str, Any]]:
    """The flags that the help pages of a command and its verbs describe, with their verb; `--help` of each page is not
    counted."""
    is_root = context.parent is None
    for param in command.get_params(context):
        is_shared = not is_root and getattr(param, "rich_help_panel", None) == PANEL
        if param.param_type_name == "option" and param.name != "help" and not is_shared:
            yield f"{context.command_path} {param.opts[0]}", param
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        verb = command.get_command(context, name)
        yield from described(verb, typer.Context(verb, parent=context, info_name=name))


@pytest.fixture(scope="module")
def flags():
    root: Any = typer.main.get_command(cli.main.app)
    found = list(described(root, typer.Context(root, info_name="glossa")))
    assert len(dict(found)) == len(found)
    return dict(found)


def test_the_command_has_a_bounded_number_of_flags(flags):
    assert {"glossa --address", "glossa serve --max-queue", "glossa admin load --version"} <= flags.keys()
    assert "glossa translate --address" not in flags
    assert len(flags) <= MAX_FLAGS


def test_help_pages_show_the_help_of_each_flag_as_it_is_written(flags):
    """Square brackets may be markup of the page."""
    helps = {name: flag.help or "" for name, flag in flags.items()}
    assert [name for name, help in helps.items() if Text.from_markup(help).plain != help.replace("\\[", "[")] == []
    assert flags["glossa serve --port"].help.endswith("; default: 50051")
