import json

import pytest
import yaml

from deploy.monitoring import __main__ as monitoring
from deploy.monitoring.__main__ import DEPLOY, made, main, outdated
from deploy.monitoring.panels import SECTIONS, panels


def test_the_files_are_as_they_would_be_made_now():
    assert outdated() == [], "run: make monitoring"


def test_a_change_is_noticed_and_written(tmp_path, capsys):
    main(["--out", str(tmp_path)])
    main(["--out", str(tmp_path), "--check"])
    (tmp_path / "grafana" / "glossa.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"out of date: grafana/glossa\.json; run: make monitoring"):
        main(["--out", str(tmp_path), "--check"])


def test_runbooks_may_be_read_elsewhere(tmp_path):
    main(["--out", str(tmp_path), "--runbooks", "https://example.com/books"])
    rules = yaml.safe_load((tmp_path / "prometheus" / "rules" / "alerts.yaml").read_text())
    addresses = [rule["annotations"]["runbook_url"] for rule in rules["groups"][0]["rules"]]
    assert all(address.startswith("https://example.com/books/") for address in addresses)


def test_the_dashboard_has_every_panel_once_and_none_overlap():
    dashboard = json.loads(made()["grafana/glossa.json"])
    shown = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert [panel["title"] for panel in shown] == [panel.title for panel in panels()]
    assert [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"] == [
        one.title for one in SECTIONS
    ]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    cells = [
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_this_folder_is_where_files_are_written_by_default():
    assert DEPLOY.name == "deploy"
    assert (DEPLOY / "monitoring" / "__main__.py").samefile(monitoring.__file__)
