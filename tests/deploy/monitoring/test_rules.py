"""Alerts, as Prometheus itself evaluates them over hours of invented series."""

import math

import pytest
import yaml

from deploy.monitoring.__main__ import DEPLOY
from deploy.monitoring.rules import ALERTS, OBJECTIVE_ALERTS
from tests.deploy.monitoring.alert_scenes import BAD_MINUTES, MINUTES, OTHERS, SCENES, WELL_MINUTES
from tests.deploy.monitoring.prometheus import promtool

RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yaml"))
AGAIN_MINUTES = 600  # the longest short window is of 6 hours


def evaluate(folder, name, series, firing):
    """Runs promtool over series. firing: how many alerts of that name fire, by minute of the scene."""
    minutes = MINUTES.get(name, 1)
    test = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": f"{minutes}m",
        "tests": [
            {
                "interval": f"{minutes}m",
                "input_series": [
                    {"series": one.name, "values": " ".join(map(text_of, one.values(AGAIN_MINUTES)))} for one in series
                ],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                        "eval_time": f"{minute * minutes}m",
                        "exp_samples": [{"labels": "{}", "value": count}] if count else [],
                    }
                    for minute, count in firing.items()
                ],
            }
        ],
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(test, width=10_000_000))
    promtool("test", "rules", path)


def text_of(value):
    """A value as promtool writes it: `_` for none."""
    return "_" if math.isnan(value) else f"{value:.10g}"


def test_every_alert_has_a_scene():
    assert set(SCENES) == {alert.name for alert in (*ALERTS, *OBJECTIVE_ALERTS)}
    assert set(OTHERS) <= set(SCENES)


@pytest.mark.slow
def test_the_files_of_rules_are_valid():
    assert "FAILED" not in promtool("check", "rules", *RULES)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_an_alert_fires_and_clears(tmp_path, name):
    bad = WELL_MINUTES + BAD_MINUTES
    evaluate(tmp_path, name, SCENES[name], {WELL_MINUTES - 1: 0, bad - 1: 1, bad + AGAIN_MINUTES - 1: 0})


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_an_alert_stays_quiet_where_another_should_tell(tmp_path, name):
    bad = WELL_MINUTES + BAD_MINUTES
    evaluate(tmp_path, name, OTHERS[name], {WELL_MINUTES - 1: 0, bad - 1: 0, bad + AGAIN_MINUTES - 1: 0})


@pytest.mark.slow
def test_a_server_that_never_succeeded_burns_its_budget(tmp_path):
    failed = [one for one in SCENES["GlossaAvailabilityBurnsFast"] if "Internal" in one.name]
    evaluate(tmp_path, "GlossaAvailabilityBurnsFast", failed, {WELL_MINUTES - 1: 1})
