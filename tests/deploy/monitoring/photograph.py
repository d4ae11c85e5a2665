"""Makes docs/monitoring.webp: the console of a real Prometheus, after a server has had its mixed load for some minutes.

usage: python -m tests.deploy.monitoring.photograph [--minutes 5] [--out docs/monitoring.webp]
"""

import argparse
import tempfile
import time
from pathlib import Path

from PIL import Image

from tests.build_cache import BuildCache
from tests.deploy.monitoring import browser
from tests.deploy.monitoring.mixed_load import MixedLoad, bundles, served
from tests.deploy.monitoring.prometheus import scraping

WIDTH, HEIGHT = 1400, 5560  # all of the page
INTERVAL_S, RANGE_S = 2, 300
COLORS = 128  # of the picture: the page has few


def main(arguments=None):
    """Runs the server, the load, Prometheus and the browser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="of load before the picture")
    parser.add_argument("--out", type=Path, default=Path("docs/monitoring.webp"))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder) / name for name in ("bundles", "served", "prometheus")]
        for part in parts:
            part.mkdir()
        made = bundles(BuildCache(parts[0]).exported)
        with (
            served(parts[1], made) as server,
            scraping(server.http, parts[2], interval_s=INTERVAL_S) as prometheus,
            MixedLoad(server, callers=1, pause_s=0.1) as load,
        ):
            time.sleep(60 * options.minutes)
            address = f"http://{prometheus.address}/consoles/glossa.html?interval={INTERVAL_S}&range={RANGE_S}"
            browser.photograph(address, Path(folder) / "page.png", width=WIDTH, height=HEIGHT)
            page = Image.open(Path(folder) / "page.png").convert("RGB")
            few = page.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            few.convert("RGB").save(options.out, lossless=True, method=6)
            ended = [line for line in server.server.events if line["event"] == "engine_process_ended"]
            print(f"{options.out}: {options.out.stat().st_size} bytes; calls: {dict(load.ends)}; ended: {ended}")


if __name__ == "__main__":
    main()
