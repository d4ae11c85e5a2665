"""The series that a server exports: those of docs/metrics.md, which its own test keeps true, and of its process."""

import re
from pathlib import Path

from prometheus_client import ProcessCollector

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def exported():
    """The labels of every series by its name."""
    found = {
        sample.name: frozenset[str]()
        for family in ProcessCollector(registry=None).collect()
        for sample in family.samples
    }
    for name, kind, text in re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", DOCS.read_text(), re.MULTILINE):
        labels = frozenset(re.findall(r"`(\w+)`", text))
        if kind == "histogram":
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    return found
