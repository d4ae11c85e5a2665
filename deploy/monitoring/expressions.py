"""What an expression of PromQL reads: the names of its metrics and labels.

This is no parser. It tells names apart by what stands around them, which suffices for the expressions of this folder;
whether an expression is valid is Prometheus' to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# Labels that Prometheus adds to every series that it scrapes, and series that it makes for every target.
TARGET_LABELS = frozenset({"job", "instance"})
TARGET_SERIES: Mapping[str, frozenset[str]] = {"up": frozenset()}

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([\w\s,]*)\)")
_SELECTOR = re.compile(rf"({_NAME})?\s*\{{([^}}]*)\}}")
_WORD = re.compile(rf"(?<![\w:.$])({_NAME})(\s*\()?")
_DURATION = re.compile(r"\[[^\]]*\]|\boffset\s+\w+")
_KEYWORDS = frozenset({"and", "or", "unless", "bool", "by", "without", "on", "ignoring", "group_left", "group_right"})
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Names(NamedTuple):
    """What an expression reads. metrics: the labels that it matches of each; labels: those that it groups by."""

    metrics: dict[str, set[str]]
    labels: set[str]


def names(expression: str) -> Names:
    """The metrics and labels of an expression of PromQL, which may contain variables such as `$model`."""
    rest, labels = _DURATION.sub(" ", _STRING.sub('""', expression)), set[str]()
    for grouping in _GROUPING.findall(rest):
        labels |= set(re.findall(r"\w+", grouping))
    rest = _GROUPING.sub(" ", rest)
    metrics = dict[str, set[str]]()
    for name, matchers in _SELECTOR.findall(rest):
        metrics.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]", matchers))
    for name, call in _WORD.findall(_SELECTOR.sub(" ", rest)):
        if not call and name not in _KEYWORDS:
            metrics.setdefault(name, set())
    return Names(metrics, labels)


def problems(expression: str, known: Mapping[str, frozenset[str]], legend: str = "") -> Iterator[str]:
    """What an expression and its legend read that nobody exports.

    known: the labels of every series, by its name; those of targets are known besides.
    """
    read, series = names(expression), {**TARGET_SERIES, **known}
    if not read.metrics:
        yield f"no metric in {expression!r}"
    for metric, matched in read.metrics.items():
        if metric not in series:
            yield f"no metric {metric!r}, which {expression!r} reads"
        else:
            for label in sorted(matched - series[metric] - TARGET_LABELS):
                yield f"metric {metric!r} has no label {label!r}, which {expression!r} matches"
    available = TARGET_LABELS.union(*(series.get(metric, frozenset()) for metric in read.metrics))
    for label in sorted((read.labels | set(_LEGEND.findall(legend))) - available):
        yield f"no metric of {expression!r} has the label {label!r}"
