"""Footprint of a server before the first request: packages, seconds until ready, resident memory.

Run it with a Python that has only requirements/serve.txt: no torch, no onnx.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys

from bench.case import case
from cli.local_server import measure_serving

EDGE_MB, PROCESS_MB = 100, 100  # both without what they read of the bundle


@case("bundle")
def footprint(args: argparse.Namespace) -> None:
    bundle = args.bundle
    size_mb = sum(file.stat().st_size for file in bundle.rglob("*") if file.is_file()) / 1e6
    absent = [name for name in ("torch", "onnx") if importlib.util.find_spec(name) is None]
    starts = [measure_serving(bundle) for _ in range(5)]
    seconds = [start["ready_s"] for start in starts]
    resident = [start["resident_bytes"] / 1e6 for start in starts]
    limit = EDGE_MB + starts[0]["processes"] * (PROCESS_MB + 1.5 * size_mb)
    print(f"absent: {', '.join(absent) or 'neither torch nor onnx'}; bundle {size_mb:.1f} MB")
    print(
        f"ready in {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f} in 5 starts), at most 3"
    )
    print(
        f"RSS of the edge and {starts[0]['processes']} engine processes {statistics.median(resident):.0f} MB, at most "
        f"{limit:.0f}"
    )
    sys.exit(statistics.median(seconds) > 3 or statistics.median(resident) > limit)
