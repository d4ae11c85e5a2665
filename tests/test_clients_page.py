"""What docs/clients.md states of errors, retries and limits is what the code does. `tests/e2e/test_clients.py` runs its
programs."""

import json
import re

import pytest

from glossa.client.channel import SERVICE_CONFIG
from service.edge.observability.status import STATUS, status_code
from service.errors import Retryable, ShuttingDown
from service.settings.config import ServerSettings
from tests.e2e.client_programs import EXAMPLES, FILES, PAGE, PROGRAMS, block, blocks, commands


def rows(heading):
    """The cells of each row of the table in a section."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in re.findall(r"^\| .*$", section, re.M)]


def test_every_error_has_a_row_with_its_code_and_whether_to_retry():
    def retry(kind):
        return "after the pause" if issubclass(kind, Retryable) else "elsewhere" if kind is ShuttingDown else "no"

    expected = {
        f"`{kind.reason}`": [status_code(kind.__new__(kind)).name, retry(kind)] for kind in STATUS
    }  # __new__: no row depends on what an error carries
    assert {reason: cells[:2] for reason, *cells in rows("Errors")[1:]} == expected


def test_the_service_config_is_that_of_our_client():
    assert json.loads(block("Retries", "json")) == SERVICE_CONFIG


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("max_message_bytes", "256 KiB"),
        ("max_document_bytes", "4 MiB"),
        ("max_concurrent_streams", "256"),
        ("min_ping_interval_s", "one in 5 s"),
        ("max_connection_age_s", "half an hour"),
        ("stall_timeout_s", "30 s"),
    ],
)
def test_limits_are_the_defaults_of_the_settings(setting, shown):
    values = {
        "256 KiB": 1 << 18,
        "4 MiB": 1 << 22,
        "256": 256,
        "one in 5 s": 5,
        "half an hour": 1800,
        "30 s": 30,
    }
    flag = "`--" + setting.replace("_", "-") + "`"
    (row,) = [cells for cells in rows("Limits") if cells[2] == flag]
    assert row[1].startswith(shown)
    assert ServerSettings.model_fields[setting].default == values[shown]


def test_each_program_has_its_source_and_its_command():
    for program in PROGRAMS:
        languages = [language for language, _ in blocks(program)]
        assert languages[0] == "console", program
        assert languages[-1] == "sh", program
        assert len(languages) == 2, program
    assert {f"../examples/clients/{name}" for name in FILES.values()} == set(
        re.findall(r"^Program: \[.*\]\((.*)\)\.$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {path.name for path in EXAMPLES.iterdir()} == set(FILES.values())
    shown = {"unary", "stream", "generate", "error", "deadline", "cancel"}
    assert (set(commands("buf curl")), set(commands("REST"))) == (shown | {"tls", "certificate"}, shown)
