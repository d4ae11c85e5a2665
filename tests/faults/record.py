"""A pytest plugin: writes the failing tests of a run, and whether each is slow, to the file that RESULT names.

The test that runs counts as failing until it ends, so that one that never ends is known.
"""

import json
import os
from pathlib import Path

from tests.faults.__main__ import RESULT

_failed: dict[str, bool] = {}


def _write(running: dict[str, bool]) -> None:
    Path(os.environ[RESULT]).write_text(json.dumps({**_failed, **running}))


def pytest_collectreport(report):
    if report.failed:
        _failed[report.nodeid] = False


def pytest_runtest_setup(item):
    _write({item.nodeid: item.get_closest_marker("slow") is not None})


def pytest_runtest_logreport(report):
    if report.failed:
        _failed[report.nodeid] = "slow" in report.keywords


def pytest_sessionfinish():
    _write({})
