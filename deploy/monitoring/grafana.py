"""The table of panels as a dashboard of Grafana: the JSON that Grafana provisions, imports and exports."""

from __future__ import annotations

import re
import zlib
from typing import Any

from deploy.monitoring.expressions import names
from deploy.monitoring.panel import Annotation, Panel, Section, Variable
from deploy.monitoring.panels import ANNOTATIONS, SECTIONS, VARIABLES
from deploy.monitoring.rules import ALERTS, OBJECTIVE_ALERTS, OBJECTIVE_RECORDINGS, RECORDINGS, RUNBOOKS

UID, TITLE = "glossa", "Glossa"
SCHEMA_VERSION = 39  # of Grafana 11; later ones migrate it
PROVISIONED = {"name": "Prometheus", "uid": "prometheus"}  # by deploy/grafana/provisioning/datasources
GRID_WIDTH, HEIGHT, LOW_HEIGHT = 24, 8, 4
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TYPES = {"lines": "timeseries", "heat_map": "heatmap", "numbers": "stat", "labels": "stat"}


RUNBOOK_VARIABLE = "runbooks"
# Series that were 0 all the time.
ZEROS = {"id": "byValue", "options": {"reducer": "allIsZero", "op": "gte", "value": 0}}


def dashboard(runbooks: str = RUNBOOKS) -> dict[str, Any]:
    """The whole dashboard. runbooks: the address of their folder, for links, which whoever looks may change."""
    return {
        "uid": UID,
        "title": TITLE,
        "description": "Traffic, errors, latency and saturation of Glossa servers.",
        "tags": ["glossa"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair in all panels
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_annotation(annotation) for annotation in ANNOTATIONS]},
        "links": [],
        "templating": {"list": [_data_source(), *map(_variable, VARIABLES), _runbooks(runbooks)]},
        "panels": _layout(),
    }


def variable_query(variable: Variable) -> str:
    """How Grafana asks for the values of a variable."""
    return f"label_values({variable.metric}, {variable.label})"


def _data_source() -> dict[str, Any]:
    """A choice among all sources of this type. Grafana takes its default one if the current one does not exist."""
    current = {"text": PROVISIONED["name"], "value": PROVISIONED["uid"]}
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": current,
    }


def _variable(variable: Variable) -> dict[str, Any]:
    query = variable_query(variable)
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _runbooks(address: str) -> dict[str, Any]:
    current = {"text": address, "value": address}
    return {"name": RUNBOOK_VARIABLE, "label": "Runbooks", "type": "textbox", "query": address, "current": current}


def _annotation(annotation: Annotation) -> dict[str, Any]:
    return {
        "name": annotation.name,
        "datasource": SOURCE,
        "enable": True,
        "iconColor": annotation.colour,
        "expr": annotation.query.expression,
        "step": "60s",
        "titleFormat": annotation.query.legend,
    }


def _layout() -> list[dict[str, Any]]:
    found, top = list[dict[str, Any]](), 0
    for section in SECTIONS:
        found.append(_heading(section, top))
        top += 1
        edges = [GRID_WIDTH * column // section.columns for column in range(section.columns + 1)]
        for start in range(0, len(section.panels), section.columns):
            line = section.panels[start : start + section.columns]
            height = LOW_HEIGHT if TYPES[line[0].kind] == "stat" else HEIGHT
            for panel, left, right in zip(line, edges, edges[1:], strict=False):
                place = {"x": left, "y": top, "w": right - left, "h": height}
                found.append({"id": _identifier(section, panel), "gridPos": place, **_panel(panel)})
            top += height
    return found


def _identifier(section: Section, panel: Panel | None = None) -> int:
    """The number that links to a panel name it by. It stays the same when others come and go."""
    return zlib.crc32(f"{section.title}/{panel.title if panel else ''}".encode()) >> 1


def _heading(section: Section, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": GRID_WIDTH, "h": 1}
    return {
        "id": _identifier(section),
        "type": "row",
        "title": section.title,
        "collapsed": False,
        "panels": [],
        "gridPos": place,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": TYPES[panel.kind],
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "targets": [_target(panel, number) for number in range(len(panel.queries))],
        "links": [_link(runbook) for runbook in runbooks_of(panel)],
        "fieldConfig": _fields(panel),
        "options": _options(panel),
    }


def runbooks_of(panel: Panel) -> list[str]:
    """The runbooks of the alerts that read what a panel shows."""
    shown = {metric for query in panel.queries for metric in _metrics(query.expression)}
    return sorted({alert.runbook for alert in (*ALERTS, *OBJECTIVE_ALERTS) if shown & _metrics(alert.expression)})


def _metrics(expression: str) -> set[str]:
    """The families that an expression reads, itself or in what is recorded for it."""
    read = set(names(expression).metrics)
    recorded = [_metrics(rule.expression) for rule in (*RECORDINGS, *OBJECTIVE_RECORDINGS) if rule.name in read]
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in read}.union(*recorded)


def _link(runbook: str) -> dict[str, Any]:
    return {
        "title": f"Runbook: {runbook.replace('-', ' ')}",
        "url": f"${{{RUNBOOK_VARIABLE}}}/{runbook}.md",
        "targetBlank": True,
    }


def _fields(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.limits:
        steps = [{"color": colour, "value": value} for value, colour in panel.limits]
        defaults["thresholds"] = {"mode": "absolute", "steps": [{"color": "green", "value": None}, *steps]}
        if panel.kind == "lines":
            defaults["custom"] = {"thresholdsStyle": {"mode": "dashed"}}
    hidden = {"id": "custom.hideFrom", "value": {"legend": True, "tooltip": True, "viz": True}}
    return {"defaults": defaults, "overrides": [{"matcher": ZEROS, "properties": [hidden]}] * panel.hides_zeros}


def _target(panel: Panel, number: int) -> dict[str, Any]:
    query, is_of_now = panel.queries[number], TYPES[panel.kind] == "stat"
    return {
        "refId": chr(ord("A") + number),
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "legendFormat": query.legend,
        "range": not is_of_now,
        "instant": is_of_now,
        "format": "heatmap" if panel.kind == "heat_map" else "time_series",
    }


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case "lines":
            legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case "heat_map":
            color = {"mode": "scheme", "scheme": "Oranges", "steps": 64}
            return {"calculate": False, "color": color, "yAxis": {"unit": panel.unit}, "cellGap": 1}
        case "numbers" | "labels":
            shown = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            text = "name" if panel.kind == "labels" else "value_and_name"
            colour = "background" if panel.limits else "none"
            return {"reduceOptions": shown, "textMode": text, "colorMode": colour, "graphMode": "none"}
