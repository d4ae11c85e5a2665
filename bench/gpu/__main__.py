"""One part of `python -m bench gpu-check`, in a process of its own: a device that fails for good fails it alone.

usage: python -m bench.gpu PART SETTING, where SETTING is JSON; see `bench.gpu.findings.Setting`. The last line printed
is the part's result as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.gpu import answers, peers, serving, speed, turns
from bench.gpu.device import is_fake, not_emulated
from bench.gpu.findings import Findings, Setting

RUNS = {
    "machine": answers.machine,
    "golden": answers.golden,
    "answers": answers.answers,
    "capture": answers.capture,
    "race": answers.race,
    "steps": speed.steps,
    "copies": speed.copies,
    "encode": speed.encode,
    "engine": turns.engine,
    "two-models": serving.two_models,
    "goodput": serving.goodput,
    "peers": peers.peers,
}


def main(part: str, setting: Setting) -> dict[str, Any]:
    """The findings of a part, with its error if it ended with one."""
    found, error = Findings(), ""
    try:
        RUNS[part](setting, found)
    except (Exception, SystemExit) as failed:  # whatever the device's libraries raise
        error = f"{type(failed).__name__}: {failed}"
    return {**found.to_json(), "error": error, "is_fake": is_fake(), "not_emulated": sorted(not_emulated())}


if __name__ == "__main__":
    asked = json.loads(sys.argv[2])
    for field in ("models", "bundle"):
        asked[field] = asked[field] and Path(asked[field])
    print(json.dumps(main(sys.argv[1], Setting(**asked))))
