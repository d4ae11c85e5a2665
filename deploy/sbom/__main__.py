"""Writes an image's SBOM to standard output: `inventory.py | python -m deploy.sbom --target cpu …`, in finish.sh."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from deploy.sbom.document import document, hashes_of


def main() -> None:
    """Reads the inventory from standard input."""
    parser = argparse.ArgumentParser(prog="python -m deploy.sbom", description=__doc__)
    parser.add_argument("--target", required=True, help="of the Dockerfile: cpu or cuda")
    parser.add_argument("--revision", default="", help="the commit")
    parser.add_argument("--created", default="", help="as in 2030-01-02T03:04:05Z; now if it is empty")
    parser.add_argument("--report", type=Path, action="append", default=[], help="of pip install, for hashes")
    options = parser.parse_args()
    text = document(
        json.load(sys.stdin),
        hashes=hashes_of([json.loads(path.read_text()) for path in options.report]),
        target=options.target,
        revision=options.revision,
        created=datetime.fromisoformat(options.created) if options.created else datetime.now(UTC),
    )
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
