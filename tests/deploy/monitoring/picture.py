"""The first rows of the dashboard as a picture: its JSON and what a Prometheus answers, drawn here, not by Grafana."""

import json
import math
import re

import matplotlib as mpl
from matplotlib.figure import Figure

from deploy.monitoring.__main__ import made
from deploy.monitoring.grafana import GRID_WIDTH, ZEROS

mpl.use("agg")
ROWS = 2  # of the dashboard's sections
COLOURS = {"orange": "#e8890c", "red": "#d32f2f", "green": "#2e7d32", "blue": "#1f6fd1", "purple": "#7b3fb8"}
UNITS = {"reqps": " req/s", "s": " s", "suffix: tokens/s": " tokens/s"}
CELL_IN = 0.62  # of the grid, in inches


def drawn(questioner, path):
    """Draws the panels of the first sections. Returns how many lines each of them has."""
    dashboard = json.loads(made()["grafana/glossa.json"])
    heads = [panel for panel in dashboard["panels"] if panel["type"] == "row"]
    end = heads[ROWS]["gridPos"]["y"]
    panels = [one for one in dashboard["panels"] if one["type"] != "row" and one["gridPos"]["y"] < end]
    figure = Figure(figsize=(GRID_WIDTH * CELL_IN, end * CELL_IN * 0.6), dpi=80, layout=None)
    found = {
        panel["title"]: _draw(figure, panel, end, dashboard["annotations"]["list"], questioner) for panel in panels
    }
    for head in heads[:ROWS]:
        figure.text(0.008, 1 - (head["gridPos"]["y"] + 0.75) / end, head["title"], fontsize=12, weight="bold")
    figure.savefig(path, bbox_inches="tight")
    return found


def _draw(figure, panel, rows, annotations, questioner):
    place, fields = panel["gridPos"], panel["fieldConfig"]
    left, right = (place["x"] + 1.1) / GRID_WIDTH, (place["x"] + place["w"] - 0.15) / GRID_WIDTH
    bottom, top = 1 - (place["y"] + place["h"] - 2.2) / rows, 1 - (place["y"] + 1) / rows
    axes = figure.add_axes((left, bottom, right - left, top - bottom))
    count, highest = 0, 0.0
    for target in panel["targets"]:
        for series in questioner.series(target["expr"]):
            values = [value if math.isfinite(value) else math.nan for value in series.values]
            if fields["overrides"] and fields["overrides"][0]["matcher"] == ZEROS and not any(values):
                continue
            legend = target["legendFormat"]
            for label, value in series.labels.items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            axes.plot(series.times, values, linewidth=1.2, label=re.sub(r"\S+:\d+ ", "", legend))
            count += any(map(math.isfinite, values))
            highest = max([highest, *filter(math.isfinite, values)])
    for step in fields["defaults"].get("thresholds", {"steps": [{}]})["steps"][1:]:
        axes.axhline(step["value"], color=COLOURS[step["color"]], linestyle="--", linewidth=0.9)
        highest = max(highest, step["value"])
    for annotation in annotations:
        for series in questioner.series(annotation["expr"]):
            begins = [
                now
                for now, before, value in zip(series.times[1:], series.values, series.values[1:], strict=False)
                if value == 1 and before != 1
            ]
            for time in begins:
                axes.axvline(time, color=COLOURS[annotation["iconColor"]], linestyle=":", linewidth=0.8)
    axes.set_title(panel["title"], fontsize=9, loc="left")
    axes.set_ylim(0, 1.15 * highest or 1)
    axes.set_xticks([])
    axes.yaxis.set_major_formatter(lambda value, _: _text(value, fields["defaults"]["unit"]))
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=3, frameon=False)
    return count


def _text(value, unit):
    return f"{100 * value:g} %" if unit == "percentunit" else f"{value:g}{UNITS.get(unit, '')}"
