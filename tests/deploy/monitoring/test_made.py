import json

import pytest
import yaml

from deploy.monitoring import __main__ as monitoring
from deploy.monitoring.__main__ import DEPLOY, made, main, outdated
from deploy.monitoring.expressions import names
from deploy.monitoring.grafana import ZEROS
from deploy.monitoring.panels import SECTIONS, panels
from deploy.monitoring.rules import RECORDINGS
from deploy.monitoring.slo import INTER_TOKEN


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
    variables = json.loads((tmp_path / "grafana" / "glossa.json").read_text())["templating"]["list"]
    assert [one["query"] for one in variables if one["name"] == "runbooks"] == ["https://example.com/books"]


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


def panel_of(title):
    """A panel of the dashboard by its title."""
    (found,) = [panel for panel in json.loads(made()["grafana/glossa.json"])["panels"] if panel["title"] == title]
    return found


def test_limits_of_objectives_are_lines_of_their_panels():
    fields = panel_of("Inter-token latency: quantiles")["fieldConfig"]["defaults"]
    assert fields["thresholds"]["steps"][1:] == [{"color": "red", "value": INTER_TOKEN.limit_s}]
    assert fields["custom"]["thresholdsStyle"]["mode"] == "dashed"
    shares = panel_of("Availability: share that misses it")["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [step["value"] for step in shares] == [None, pytest.approx(0.001), pytest.approx(0.0144)]
    assert panel_of("Ready")["options"]["colorMode"] == "background"


def test_only_rates_hide_what_was_always_0():
    def hides(title):
        return [one["matcher"] for one in panel_of(title)["fieldConfig"]["overrides"]] == [ZEROS]

    assert hides("Rejections")
    assert hides("Tokens by version")
    assert not hides("Engine processes"), "0 is what it is there to show"


def test_panels_link_to_the_runbooks_of_what_they_show():
    links = {link["url"] for link in panel_of("Fullness")["links"]}
    assert {f"${{runbooks}}/{name}.md" for name in ("queue-filling", "rows-full")} <= links
    for panel in json.loads(made()["grafana/glossa.json"])["panels"]:
        for link in panel.get("links", []):
            assert (DEPLOY / link["url"].replace("${runbooks}", "runbooks")).is_file()


def test_the_first_row_is_a_line_across_the_whole_width():
    first = json.loads(made()["grafana/glossa.json"])["panels"][1:6]
    assert {panel["gridPos"]["y"] for panel in first} == {1}
    assert sum(panel["gridPos"]["w"] for panel in first) == 24


def test_fullness_is_of_all_versions_of_a_model():
    """Two versions with 64 rows each, of which one is empty, are half full."""
    for rule in RECORDINGS:
        if rule.name.startswith("instance_model:"):
            assert names(rule.expression).labels == {"job", "instance", "model"}


def test_this_folder_is_where_files_are_written_by_default():
    assert DEPLOY.name == "deploy"
    assert (DEPLOY / "monitoring" / "__main__.py").samefile(monitoring.__file__)
