"""The table of panels as a console of Prometheus: one page without files besides, which Prometheus itself serves.

`console.html` has the page and the script that asks Prometheus and draws. Prometheus expands it as a template, in which
`{{ … }}` is an action: the names of instances and models come from there.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy.monitoring.panel import Panel
from deploy.monitoring.panels import SECTIONS, VARIABLES

TEMPLATE = Path(__file__).with_name("console.html")
PLACES = {"options": "<!-- options of the variables -->", "sections": "/* sections */ []"}


def console() -> str:
    """The page."""
    text = TEMPLATE.read_text(encoding="utf-8")
    sections = [
        {"title": section.title, "panels": [_fields(panel) for panel in section.panels]} for section in SECTIONS
    ]
    # Legends have {{label}}, which must not be an action. JSON has no two braces in a row outside of strings.
    data = json.dumps(sections, indent=1, ensure_ascii=False).replace("{{", r"\u007b\u007b")
    for place, made in ((PLACES["options"], _choices()), (PLACES["sections"], data)):
        assert text.count(place) == 1, f"{TEMPLATE}: {place!r}"
        text = text.replace(place, made)
    return text


def _fields(panel: Panel) -> dict[str, Any]:
    return {**asdict(panel), "queries": [query._asdict() for query in panel.queries]}  # JSON has no named tuples


def variable_query(name: str) -> str:
    """The instant query of a variable: a series for each of its values."""
    variable = next(one for one in VARIABLES if one.name == name)
    return f"count by ({variable.label}) ({variable.metric.partition('{')[0]})"


def _choices() -> str:
    lines = []
    for variable in VARIABLES:
        action = f'{{{{ range query "{variable_query(variable.name)}" | sortByLabel "{variable.label}" }}}}'
        value = f"{{{{ .Labels.{variable.label} }}}}"
        lines += [
            f'<label>{variable.name.capitalize()} <select name="{variable.name}"><option value="">all</option>',
            f'{action}<option value="{value}">{value}</option>{{{{ end }}}}</select></label>',
        ]
    return "\n".join(lines)
