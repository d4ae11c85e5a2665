"""Engines on their threads, closed when a test is over."""

from typing import Any

import pytest

from bench.engine_pool import EnginePool
from tests.engines import engine_limits
from tests.fakes import CheckedEngine, LetterTokenizer, ScriptedRunner


@pytest.fixture
def start():
    """Starts a pool of engines, one for each runner, with their threads; all are closed at the end."""
    started = []

    def make(*runners, settings=None, **more):
        settings = settings or engine_limits()
        runners = runners or (ScriptedRunner(),)
        for runner in runners:
            runner.max_rows = settings.max_rows
        tokenizer: Any = LetterTokenizer()
        pool = EnginePool([CheckedEngine(runner, tokenizer, settings, **more) for runner in runners])
        started.append((pool, runners))
        pool.start()
        return pool

    yield make
    for pool, runners in started:
        for runner in runners:
            if runner.gate is not None:
                runner.gate.set()
        pool.close()
        assert not any(engine._thread.is_alive() for engine in pool.engines)
