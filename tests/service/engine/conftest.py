"""Engines without threads."""

import pytest

from tests.engines import engine_limits
from tests.fakes import (
    ManualEngine,
    ManualLoop,
    ScriptedRunner,
)


@pytest.fixture
def manual():
    """An engine without a thread, on a clock and an event loop that the test turns."""

    def make(runner=None, settings=None, **more):
        runner, settings = runner or ScriptedRunner(), settings or engine_limits()
        runner.max_rows = settings.max_rows
        return ManualEngine(runner, settings, **more), ManualLoop()

    return make
