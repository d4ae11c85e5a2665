"""Engines on their threads, closed when a test is over."""

from typing import Any

import pytest

from service.engine.engine import Engine, EngineConfig
from tests.fakes import LetterTokenizer, ScriptedRunner


@pytest.fixture
def start():
    """Starts an engine with its thread; all are closed at the end."""
    engines: list[Any] = []

    def make(runner=None, settings=None, **more):
        runner, settings = runner or ScriptedRunner(), settings or EngineConfig(checks_invariants=True)
        runner.max_rows = settings.scheduler.max_rows
        engines.append(Engine(runner, LetterTokenizer(), settings, **more))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        if engine._runner.gate is not None:
            engine._runner.gate.set()
        engine.close()
        assert not engine._thread.is_alive()
