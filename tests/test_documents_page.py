"""docs/documents.md: its commands print what stands below them, its program runs, its lists and limits are right."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from glossa.client import Client
from service.settings.config import ServerSettings
from service.text.documents import html, xliff_units
from service.text.languages import LANGUAGES
from tests.cli.command import ask
from tests.edge import running

PAGE = (Path(__file__).parents[1] / "docs/documents.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^```sh\n(glossa .*?)\n```\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


async def test_the_commands_print_what_is_shown(edge, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES:
        Path(name).write_text(content, encoding="utf-8")
    assert COMMANDS
    for command, shown in COMMANDS:
        assert await ask(edge, *shlex.split(command)[1:]) == shown


async def test_the_program_runs(edge, capsys):
    def run():
        with Client(edge.address) as client:
            for program in PROGRAMS:
                exec(program, {"client": client})

    assert PROGRAMS
    await asyncio.to_thread(run)
    assert capsys.readouterr().out == "<p>zwei rote Häuser</p>"


def test_limits_are_those_of_the_code():
    assert ServerSettings.model_fields["max_document_bytes"].default == 4 << 20
    assert ServerSettings.model_fields["max_message_bytes"].default == 256 << 10
    assert f"| {html.MAX_TAGS:,} |" in PAGE
    assert html.MAX_TAGS == xliff_units.MAX_TAGS
    assert f"| {html.MAX_DEPTH} in HTML, {xliff_units.MAX_DEPTH} in XLIFF |" in PAGE


def test_languages_are_those_of_the_code():
    (listed,) = re.findall(r"own have (.*?)\. At abbreviations", PAGE, re.DOTALL)
    assert set(re.findall(r"\b[a-z]{2}\b", listed)) <= LANGUAGES
    assert {"cs", "sv", "tr", "zh"} < LANGUAGES
    assert "th" not in LANGUAGES
