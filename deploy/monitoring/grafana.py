"""The table of panels as a dashboard of Grafana: the JSON that Grafana provisions, imports and exports."""

from __future__ import annotations

import zlib
from typing import Any

from deploy.monitoring.panel import Panel, Section, Variable
from deploy.monitoring.panels import SECTIONS, VARIABLES

UID, TITLE = "glossa", "Glossa"
SCHEMA_VERSION = 39  # of Grafana 11; later ones migrate it
PROVISIONED = {"name": "Prometheus", "uid": "prometheus"}  # by deploy/grafana/provisioning/datasources
COLUMNS, GRID_WIDTH, HEIGHT, LOW_HEIGHT = 3, 24, 8, 4
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TYPES = {"lines": "timeseries", "heat_map": "heatmap", "numbers": "stat", "labels": "stat"}


def dashboard() -> dict[str, Any]:
    """The whole dashboard."""
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
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_data_source(), *map(_variable, VARIABLES)]},
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


def _layout() -> list[dict[str, Any]]:
    found, top = list[dict[str, Any]](), 0
    for section in SECTIONS:
        found.append(_heading(section, top))
        top += 1
        for start in range(0, len(section.panels), COLUMNS):
            line = section.panels[start : start + COLUMNS]
            height = LOW_HEIGHT if TYPES[line[0].kind] == "stat" else HEIGHT
            for column, panel in enumerate(line):
                width = GRID_WIDTH // COLUMNS
                place = {"x": column * width, "y": top, "w": width, "h": height}
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
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": _options(panel),
    }


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
            return {"reduceOptions": shown, "textMode": text, "colorMode": "none", "graphMode": "none"}
