"""The chart's README promises what the values and the scaling query give."""

import re

from deploy.kubernetes.__main__ import CHART
from deploy.monitoring.scaling import replicas
from tests.deploy.helm.objects import DEFAULTS

README = (CHART / "README.md").read_text()


def test_every_value_is_explained():
    assert [name for name in DEFAULTS if f"`{name}`" not in README] == []


def test_the_replicas_for_a_load_are_those_of_the_query():
    scaling, server = DEFAULTS["autoscaling"], DEFAULTS["server"]
    rows = server["engines"] * server["maxRows"]
    promised = {int(load): int(count) for load, count in re.findall(r"^\| (\d+) \| (\d+) \|$", README, re.MULTILINE)}
    assert len(promised) >= 5
    for load, count in promised.items():
        wanted = replicas(load / rows, 0, scaling["target"])
        assert count == min(max(wanted, scaling["minReplicas"]), scaling["maxReplicas"]), load
