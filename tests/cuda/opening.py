"""What becomes of a bundle that is opened on the fake CUDA, as an engine process opens it.

Usage: python -m tests.cuda.opening BUNDLE SETTINGS [fail]. SETTINGS: fields of `EngineSettings` and
of `EngineLimits` as JSON. Prints the
error, or the choice of device and the limit of parked rows, and warnings. fail: after the first tokens the device fails
for good; then the ends of four requests, and whether the engine has lost its device, are printed, too.
"""

import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from export.bundle.directory import load_bundle
from service.engine.engine import Engine
from service.engine_process.open_engines import open_engines
from service.errors import StartupError
from service.memory.engine_limits import EngineLimits
from service.request import TextDelta
from service.settings.engine_settings import EngineSettings
from tests.cuda.fake import FakeCuda
from tests.engines import request

REQUESTS, MAX_TOKENS, WITHIN_S = 4, 20, 60.0


def ends_of_requests(engine: Engine, source: tuple[int, ...]) -> list[str]:
    """The kinds of the last events of requests whose device fails once they have their first tokens."""
    cuda, ends, is_over = FakeCuda(), list[str](), threading.Event()

    def deliver(events: Any) -> None:
        if not ends:
            cuda.fail_launch(1)
        ends.extend(type(event).__name__ for _, event in events if not isinstance(event, TextDelta))
        if len(ends) == REQUESTS:
            is_over.set()

    engine.start(deliver)
    for ticket in range(REQUESTS):
        engine.submit(ticket, request(str(ticket), source=source, max_tokens=MAX_TOKENS))
    is_over.wait(WITHIN_S)
    return ends


def main(bundle: Path, settings: dict[str, Any], *, fails: bool) -> dict[str, Any]:
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        limits = {name: settings.pop(name) for name in list(settings) if hasattr(EngineLimits, name)}
        opened = open_engines(bundle, EngineSettings(limits=EngineLimits(**limits), **settings))
    except StartupError as error:
        return {"error": str(error), "warnings": warnings}
    (engine,) = opened.engines
    choice = opened.choice
    found: dict[str, Any] = {
        "error": "",
        "device": choice.provider.removesuffix("ExecutionProvider").lower(),
        "fallback": choice.fallback,
        "reason": choice.reason,
        "parking_bytes": engine.limits.parking_bytes,
        "warnings": warnings,
    }
    if fails:
        found["ends"] = ends_of_requests(engine, (5, 6, 2) if load_bundle(bundle).limits.max_source_len else ())
        found["has lost its device"] = engine.has_lost_device
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]), fails="fail" in sys.argv[3:])), flush=True)
    os._exit(0)  # as an engine process: destructors of a session whose device has failed end the program
