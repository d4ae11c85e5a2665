import dataclasses

import pytest

from deploy.monitoring.expressions import Names, names, problems
from deploy.monitoring.panel import Query
from deploy.monitoring.panels import ANNOTATIONS, VARIABLES, panels
from deploy.monitoring.rules import ALERTS, OBJECTIVE_ALERTS, OBJECTIVE_RECORDINGS, RECORDINGS
from tests.deploy.monitoring.series import exported

RECORDED = {rule.name: names(rule.expression).labels for rule in (*RECORDINGS, *OBJECTIVE_RECORDINGS)}
KNOWN = {**exported(), **{name: frozenset(labels) for name, labels in RECORDED.items()}}
QUERIES = [pytest.param(query, id=f"{panel.title}: {query.legend}") for panel in panels() for query in panel.queries]
QUERIES += [pytest.param(one.query, id=one.name) for one in ANNOTATIONS]
RULES = [
    *(pytest.param(rule.expression, id=rule.name) for rule in (*RECORDINGS, *OBJECTIVE_RECORDINGS)),
    *(pytest.param(alert.expression, id=alert.name) for alert in (*ALERTS, *OBJECTIVE_ALERTS)),
]


@pytest.mark.parametrize(
    ("expression", "metrics", "labels"),
    [
        ("up == 0", {"up": set()}, set()),
        ('sum by (model) (rate(a_total{model=~"$model",b!="{c}"}[5m]))', {"a_total": {"model", "b"}}, {"model"}),
        ("a:b:ratio / on (job, instance) group_left () c", {"a:b:ratio": set(), "c": set()}, {"job", "instance"}),
        ("x > 14.4 * 0.001 and y offset 5m or z - time()", {"x": set(), "y": set(), "z": set()}, set()),
    ],
)
def test_names_of_an_expression(expression, metrics, labels):
    assert names(expression) == Names(metrics, labels)


@pytest.mark.parametrize(
    ("expression", "legend", "says"),
    [
        ("b", "", "no metric 'b'"),
        ('a{y="1"}', "", "metric 'a' has no label 'y'"),
        ("sum by (y) (a)", "", "has the label 'y'"),
        ("a", "{{y}}", "has the label 'y'"),
        ("1 + 1", "", "no metric in"),
    ],
)
def test_what_nobody_exports_is_found(expression, legend, says):
    (problem,) = problems(expression, {"a": frozenset({"x"})}, legend)
    assert says in problem


@pytest.mark.parametrize("query", QUERIES)
def test_panels_read_what_the_server_exports(query):
    assert list(problems(query.expression, KNOWN, query.legend)) == []


@pytest.mark.parametrize("expression", RULES)
def test_rules_read_what_the_server_exports(expression):
    assert list(problems(expression, KNOWN)) == []


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_variables_read_what_the_server_exports(variable):
    query = Query(variable.metric, f"{{{{{variable.label}}}}}")
    assert list(problems(query.expression, KNOWN, query.legend)) == []


def test_every_metric_that_is_renamed_is_missed():
    """Whatever a panel reads: without it, the panel's expressions have a problem."""
    for panel in panels():
        for query in panel.queries:
            for metric in names(query.expression).metrics:
                without = {name: labels for name, labels in KNOWN.items() if name != metric}
                assert list(problems(query.expression, without, query.legend)), metric


def test_panels_are_told_apart_by_their_titles():
    found = [dataclasses.asdict(panel)["title"] for panel in panels()]
    assert len(set(found)) == len(found)
