import re

import pytest

from deploy.monitoring.__main__ import DEPLOY
from deploy.monitoring.expressions import names
from deploy.monitoring.rules import ALERTS, OBJECTIVE_ALERTS, OBJECTIVE_RECORDINGS, RECORDINGS
from service.settings.config import ServerSettings
from tests.deploy.monitoring.series import exported

BOOKS = {path.stem: path.read_text() for path in (DEPLOY / "runbooks").glob("*.md") if path.stem != "README"}
SOURCES = "".join(path.read_text() for path in (DEPLOY.parent / "service").rglob("*.py"))
RECORDED = {rule.name for rule in (*RECORDINGS, *OBJECTIVE_RECORDINGS)}


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    assert {alert.runbook for alert in (*ALERTS, *OBJECTIVE_ALERTS)} == set(BOOKS)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in BOOKS.items()])
def test_a_runbook_has_symptom_checks_and_fix(text):
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Symptom", "Checks", "Fix"]
    assert re.findall(r"^```sh\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in BOOKS.items()])
def test_a_runbook_names_what_there_is(text):
    series = exported()
    for expression in re.findall(r"'query=(.*)'", text):
        assert set(names(expression).metrics) <= set(series) | RECORDED, expression
    for pattern in re.findall(r"/metrics \| grep -E '\^\((.*)\)'", text):
        families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series} | set(series)
        assert set(pattern.split("|")) <= families
    for flag in re.findall(r"`--([a-z-]+)", text):
        assert flag.replace("-", "_") in ServerSettings.model_fields, flag
    for line in re.findall(r"^grep .*$", text, re.MULTILINE):
        events = [event for quoted in re.findall(r'"([^"]*)"', line) for event in re.findall(r"\w+", quoted)]
        assert all(f'"{event}"' in SOURCES for event in events), line
    for link in re.findall(r"\]\(([a-z-]+)\.md\)", text):
        assert link in BOOKS
