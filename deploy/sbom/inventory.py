"""What is installed beside the interpreter that runs this program, as JSON: `python3 -I deploy/sbom/inventory.py`.

Every Python distribution under /opt and /usr, and the Debian packages if dpkg's database is there. Imports the standard
library alone, because it runs with the image's interpreter, which lacks the library that writes SBOMs. It reads what
lies on disk and does not ask importlib what can be imported: that is how `make image-test` checks its result.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any

ROOTS = ("/opt/glossa", "/usr")
DPKG_STATUS = Path("/var/lib/dpkg/status")
LICENSE_CLASSIFIER = "License :: "


def distributions(roots: Sequence[str] = ROOTS) -> list[dict[str, Any]]:
    """Name, version and licence of every Python distribution whose metadata lies below one of the roots."""
    return [_distribution(path) for root in roots for path in sorted(_metadata_folders(root))]


def _metadata_folders(root: str) -> Iterator[Path]:
    for folder, names, _ in os.walk(root):
        for name in [name for name in names if name.endswith((".dist-info", ".egg-info"))]:
            names.remove(name)
            yield Path(folder, name)


def _distribution(path: Path) -> dict[str, Any]:
    known = metadata.Distribution.at(path)
    fields: Any = known.metadata  # typeshed's protocol lacks get()
    return {
        "name": fields["Name"],
        "version": known.version,
        "license": license_of(fields),
        "summary": fields.get("Summary"),
        "requires": known.requires or [],
    }


def license_of(fields: Message) -> str | None:
    """The licence that a distribution states: an SPDX expression, else a short name, else a trove classifier."""
    if expression := fields.get("License-Expression"):
        return str(expression)
    named = str(fields.get("License") or "").strip()
    if named and named != "UNKNOWN" and "\n" not in named:  # some put the whole text there
        return named
    classifiers = [str(one) for one in fields.get_all("Classifier") or [] if str(one).startswith(LICENSE_CLASSIFIER)]
    return "; ".join(one.rpartition(" :: ")[2] for one in classifiers) or None


def debian_packages(status: Path = DPKG_STATUS) -> list[dict[str, str]]:
    """The installed packages of dpkg's database; none where there is no such database."""
    if not status.is_file():
        return []
    found = []
    for paragraph in status.read_text(encoding="utf-8").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            found.append({"name": fields["Package"], "version": fields["Version"], "arch": fields["Architecture"]})
    return found


def inventory() -> dict[str, Any]:
    """All of it."""
    system = platform.freedesktop_os_release()
    return {
        "distributions": distributions(),
        "debian": debian_packages(),
        "system": {"id": system["ID"], "name": system["NAME"], "version": system.get("VERSION_ID", "")},
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    json.dump(inventory(), sys.stdout, indent=1)
