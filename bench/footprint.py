"""Footprint of a server before the first request: packages, seconds until ready, resident memory.

Run it with a Python that has only requirements/serve.txt: no torch, no onnx.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from pathlib import Path

from bench.case import case
from cli.local_server import serving


def resident_mb(port: str) -> float:
    """Resident memory of the process that listens on a port, from /proc: no package is needed for it."""
    tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    listening = "0A"
    (inode,) = {row[9] for row in rows if int(row[1].rpartition(":")[2], 16) == int(port) and row[3] == listening}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(link.readlink()) == f"socket:[{inode}]" for link in (process / "fd").iterdir()):
                status = (process / "status").read_text()
                return int(status.partition("VmRSS:")[2].split()[0]) / 1e3
        except OSError:
            continue
    raise LookupError(port)


@case("bundle")
def footprint(args: argparse.Namespace) -> None:
    bundle = args.bundle
    size_mb = sum(file.stat().st_size for file in bundle.rglob("*") if file.is_file()) / 1e6
    absent = [name for name in ("torch", "onnx") if importlib.util.find_spec(name) is None]
    seconds, resident = [], []
    for _ in range(5):
        started = time.monotonic()
        with serving(bundle) as (address, _):
            seconds.append(time.monotonic() - started)
            resident.append(resident_mb(address.rpartition(":")[2]))
    limit = 150 + 1.5 * size_mb
    print(f"absent: {', '.join(absent) or 'neither torch nor onnx'}; bundle {size_mb:.1f} MB")
    print(
        f"ready in {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f} in 5 starts), at most 3"
    )
    print(f"RSS {statistics.median(resident):.0f} MB, at most {limit:.0f}")
    sys.exit(statistics.median(seconds) > 3 or statistics.median(resident) > limit)
