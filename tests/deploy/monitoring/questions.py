"""All that the dashboard, the rules and the runbooks ask Prometheus, and what it does not answer.

An alert's expression has series only while it fires; so its conditions are asked without their comparison.
"""

import math
import re
from typing import NamedTuple

from deploy.monitoring.__main__ import DEPLOY
from deploy.monitoring.panels import ANNOTATIONS, VARIABLES, panels
from deploy.monitoring.rules import ALERTS, OBJECTIVE_ALERTS, OBJECTIVE_RECORDINGS, RECORDINGS


class Question(NamedTuple):
    """An expression, and who asks it. over_time: as a line or a heat map; else of now. label: whose values are asked
    for."""

    asker: str
    expression: str
    over_time: bool = False
    label: str = ""


class Answer(NamedTuple):
    """What Prometheus returned: how many series, of how many there was a finite value, and whether one was not 0."""

    series: int
    finite: int
    moved: bool


def questions():
    """Every question, in the order of the tables."""
    return [*_of_variables(), *_of_panels(), *_of_rules(), *_of_runbooks()]


def _of_variables():
    for variable in VARIABLES:
        yield Question(f"variable {variable.name}", variable.metric, label=variable.label)


def _of_panels():
    for panel in panels():
        for query in panel.queries:
            yield Question(f"panel {panel.title}", query.expression, panel.kind in ("lines", "heat_map"))
    for annotation in ANNOTATIONS:
        yield Question(f"annotation {annotation.name}", annotation.query.expression, over_time=True)


def _of_rules():
    for rule in (*RECORDINGS, *OBJECTIVE_RECORDINGS):
        yield Question(f"rule {rule.name}", rule.expression)
        yield Question(f"rule {rule.name}, recorded", rule.name)
    for alert in (*ALERTS, *OBJECTIVE_ALERTS):
        for case in alert.cases:
            for condition in case:
                yield Question(f"alert {alert.name}", condition.expression)


def _of_runbooks():
    for path in sorted((DEPLOY / "runbooks").glob("*.md")):
        for expression in re.findall(r"'query=(.*)'", path.read_text()):
            yield Question(f"runbook {path.stem}", expression)


class Questioner:
    """Asks a Prometheus as the dashboard with all instances and models does. range_s: what the dashboard shows;
    interval_s: between two scrapes."""

    def __init__(self, prometheus, *, range_s, interval_s=1):
        self._prometheus, self._range_s, self._interval_s = prometheus, range_s, interval_s

    def ask(self, question):
        """Its answer."""
        expression = self.expanded(question.expression)
        if question.over_time:
            found = self._prometheus.query_range(expression, self._range_s)
        else:
            found = self._prometheus.query(expression)
        if question.label:
            found = [series for series in found if series.labels.get(question.label)]
        finite = [values for values in ([*filter(math.isfinite, series.values)] for series in found) if values]
        return Answer(len(found), len(finite), any(any(values) for values in finite))

    def series(self, expression):
        """The series of an expression over the range."""
        return self._prometheus.query_range(self.expanded(expression), self._range_s)

    def unanswered(self, asked):
        """The questions without any finite value."""
        return [question for question in asked if not self.ask(question).finite]

    def expanded(self, expression):
        """The expression with the values of all variables."""
        for variable in VARIABLES:
            if f"${variable.name}" in expression:
                values = {
                    re.escape(series.labels[variable.label]).replace("\\", "\\\\")
                    for series in self._prometheus.query(variable.metric.partition("{")[0])
                }
                expression = expression.replace(f"${variable.name}", "|".join(sorted(values)))
        return expression.replace("$__rate_interval", f"{max(4 * self._interval_s, 5)}s")
