"""The query of the autoscalers: what it reads, and what Prometheus makes of it."""

import pytest
import yaml

from deploy.monitoring.expressions import problems
from deploy.monitoring.scaling import SCALING_QUERY, SCALING_THRESHOLD, replicas, scaling_query
from tests.deploy.monitoring.prometheus import promtool
from tests.deploy.monitoring.series import exported

BOTH = ("a", "b")  # replicas


def load(*, queued=0, running=0, rows=64, model="en-de", on=BOTH, namespace="one"):
    """Series of replicas, each with these numbers."""
    return [
        (f'glossa_{name}{{job="glossa",instance="{replica}",namespace="{namespace}",model="{model}"}}', value)
        for replica in on
        for name, value in (("requests_queued", queued), ("requests_running", running), ("rows_limit", rows))
    ]


def evaluate(folder, series, expected, query=SCALING_QUERY):
    test = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": f"{value}x5"} for name, value in series],
                "promql_expr_test": [
                    {"expr": query, "eval_time": "1m", "exp_samples": [{"labels": "{}", "value": expected}]}
                ],
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(test, width=10_000))
    promtool("test", "rules", path)


def test_the_query_reads_what_the_server_exports():
    assert list(problems(SCALING_QUERY, exported())) == []
    assert scaling_query('service="x"').count('{service="x"}') == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("series", "expected"),
    [
        pytest.param(load(), 0, id="no load"),
        pytest.param(load(running=32), 1, id="half of two replicas"),
        pytest.param(load(queued=64, running=64), 4, id="as many wait as run"),
        pytest.param(load(running=64) + load(model="fr-de", running=8), 2, id="the busiest model counts"),
        pytest.param(load(running=64) + load(on="c", rows=0), 2, id="a replica that starts has no rows yet"),
        pytest.param(load(rows=0), 0, id="none has rows yet"),
    ],
)
def test_the_load_in_replicas(tmp_path, series, expected):
    evaluate(tmp_path, series, expected)


@pytest.mark.slow
def test_matchers_choose_a_release(tmp_path):
    series = load(running=32) + load(running=64, namespace="two")
    evaluate(tmp_path, series, 1, scaling_query('namespace="one"'))


@pytest.mark.parametrize(
    ("load", "present", "wanted"),
    [(0, 2, 0), (0.7, 1, 1), (0.76, 1, 1), (0.78, 1, 2), (1.4, 1, 2), (4, 2, 6), (4, 6, 6), (0.1, 3, 1)],
)
def test_replicas_for_a_load(load, present, wanted):
    assert replicas(load, present) == wanted


def test_the_threshold_leaves_room():
    assert 0 < SCALING_THRESHOLD < 1
