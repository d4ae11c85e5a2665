"""Engines without threads."""

import pytest

from service.engine.engine import EngineConfig
from tests.fakes import (
    ManualEngine,
    ManualLoop,
    ScriptedRunner,
)


@pytest.fixture
def manual():
    """An engine without a thread, on a clock and an event loop that the test turns."""

    def make(runner=None, settings=None, **more):
        runner, settings = runner or ScriptedRunner(), settings or EngineConfig()
        runner.max_rows = settings.scheduler.max_rows
        return ManualEngine(runner, settings, **more), ManualLoop()

    return make
