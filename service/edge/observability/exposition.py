"""The text of all metrics, in Prometheus' format or in OpenMetrics', which has exemplars.

The library writes the same text, but forms the names and labels of every line anew, 7 microseconds each, and a scrape
must not hold up the event loop. Here they are formed once, and a scrape reads values. Tests compare both.

https://prometheus.io/docs/instrumenting/exposition_formats/
https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.utils import floatToGoString

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
END = b"# EOF\n"
number: Any = floatToGoString


def content_type(accept: str) -> str:
    """The type in which to answer a request with such an Accept header."""
    kinds = {part.partition(";")[0].strip() for part in accept.split(",")}
    return OPEN_METRICS if "application/openmetrics-text" in kinds else TEXT


class Exposition:
    """The text of metrics. families: with one or more series each. others: whose metrics the library writes. Any thread
    may call it; series may appear and vanish."""

    def __init__(self, families: Iterable[Any], others: CollectorRegistry) -> None:
        self._families, self._others = [_Family(family) for family in families], others

    def render(self, kind: str) -> bytes:
        """All metrics. kind: TEXT or OPEN_METRICS."""
        is_open = kind == OPEN_METRICS
        others = (generate_open_metrics if is_open else generate_latest)(self._others).removesuffix(END)
        parts = itertools.chain.from_iterable(family.parts(is_open=is_open) for family in self._families)
        return others + "".join(parts).encode() + (END if is_open else b"")


class _Family:
    """The series of one metric. heads: the lines before them, in text and in OpenMetrics."""

    def __init__(self, family: Any) -> None:
        self._family = family
        name, kind, text = family._name, family._type, family._documentation
        full = f"{name}_total" if kind == "counter" else name
        self._is_histogram, self._is_counter = kind == "histogram", kind == "counter"
        self._heads = [f"# HELP {one} {text}\n# TYPE {one} {kind}\n" for one in (full, name)]
        self._lines: dict[tuple[str, ...], list[str]] = {}  # up to their values, by labels

    def parts(self, *, is_open: bool) -> Iterator[str]:
        """The lines in pieces."""
        yield self._heads[is_open]
        family = self._family
        children = family._metrics.copy() if family._labelnames else {(): family}
        if len(self._lines) > len(children):  # labels of versions and processes that are no longer there
            self._lines = {labels: lines for labels, lines in self._lines.items() if labels in children}
        for labels, child in children.items():
            lines = self._lines.get(labels)
            if lines is None:
                lines = self._lines[labels] = list(self._starts(labels, child))
            if self._is_histogram:
                yield from _histogram(lines, child, is_open=is_open)
            elif self._is_counter:
                yield f"{lines[0]} {_text(child._value.get())}\n"
            else:  # a gauge may compute its value
                (sample,) = child._child_samples()
                yield f"{lines[0]} {_text(sample.value)}\n"

    def _starts(self, labels: tuple[str, ...], child: Any) -> Iterator[str]:
        name, pairs = self._family._name, list(zip(self._family._labelnames, labels, strict=True))
        if self._is_histogram:
            for bound in child._upper_bounds:
                yield f"{name}_bucket{_labels([*pairs, ('le', number(bound))])}"
            yield f"{name}_count{_labels(pairs)}"
            yield f"{name}_sum{_labels(pairs)}"
        else:
            yield f"{name}{'_total' if self._family._type == 'counter' else ''}{_labels(pairs)}"


def _labels(pairs: list[tuple[str, str]]) -> str:
    if not pairs:
        return ""
    escaped = [(name, value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")) for name, value in pairs]
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(escaped)) + "}"


def _histogram(lines: list[str], child: Any, *, is_open: bool) -> Iterator[str]:
    total = 0.0
    for start, bucket in zip(lines, child._buckets, strict=False):
        total += bucket.get()
        exemplar = bucket.get_exemplar() if is_open else None
        yield f"{start} {_text(total)}{_exemplar(exemplar) if exemplar else ''}\n"
    yield f"{lines[-2]} {_text(total)}\n{lines[-1]} {_text(child._sum.get())}\n"


def _exemplar(exemplar: Any) -> str:
    labels = _labels(list(exemplar.labels.items()))
    return f" # {labels} {number(exemplar.value)} {exemplar.timestamp}"


def _text(value: float) -> str:
    return "0.0" if value == 0 else number(value)
