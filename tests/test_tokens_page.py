"""docs/tokens.md: its commands and its Python print what stands below them, on a server without engines."""

import asyncio
import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from glossa.client import Client
from tests.cli.command import ask
from tests.edge import running

PAGE = (Path(__file__).parents[1] / "docs/tokens.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```(sh|python)\n(.*?)\n```\n\n```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


async def printed_by(edge, command):
    """What a command of the page prints, fed by what is before its pipe."""
    fed, _, verb = command.rpartition(" | ")
    lines = shlex.split(fed)[1].replace("\\n", "\n") if fed else None
    program, *arguments = shlex.split(verb)
    assert program == "glossa"
    return await ask(edge, *arguments, lines=lines)


def run(code, address):
    printed = io.StringIO()
    with Client(address) as client, contextlib.redirect_stdout(printed):
        exec(code, {"client": client})
    return printed.getvalue()


@pytest.mark.parametrize(("kind", "code", "shown"), EXAMPLES)
async def test_the_page_shows_what_its_examples_print(edge, kind, code, shown):
    found = await (printed_by(edge, code) if kind == "sh" else asyncio.to_thread(run, code, edge.address))
    assert found == shown + "\n"


def test_every_example_is_executed():
    assert [kind for kind, _, _ in EXAMPLES] == ["sh", "sh", "python", "python"]
    assert PAGE.count("```") == 4 * len(EXAMPLES)
