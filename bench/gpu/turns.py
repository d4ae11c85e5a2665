"""The part `engine` of `python -m bench gpu-check`: an engine alone, in this process and without an edge. Callers send
the next request when they have the answer to the last one. On the fake CUDA its figures only show that they can be
measured."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from bench.gpu.bundles import LARGE, path_of
from bench.gpu.decoding import open_model, runner_for
from bench.gpu.findings import Findings, Setting
from export.bundle.manifest import TOKENIZER
from model.tokenizer import Tokenizer
from service.engine.engine import Engine
from service.memory.engine_limits import EngineLimits
from service.options import DecodingOptions
from service.request import Event, Finished, Request, TextDelta
from service.runtime.runner import OnnxRunner
from service.step import StepPlan, TurnOutput

CALLERS = (1, 16, 64, 256)
PROMPT_TOKENS, TOKENS = 21, 32  # of a source or a prompt, and of an answer
WARM_UP, ANSWERS, LEAST = 2, 8, 40  # answers of each caller; of all together, at least
SMALL_ONE = "translation"  # of smoke runs
GREEDY, SAMPLED = DecodingOptions(ignore_eos=True), DecodingOptions(ignore_eos=True, temperature=0.2, top_p=0.9)
"""Random models are unsure: at a higher temperature most draws would fall beyond the tokens that the device ranks."""


class Waiting:
    """A runner whose turns are read before the next one is launched."""

    def __init__(self, runner: OnnxRunner) -> None:
        self._runner = runner
        self.limits, self.layout, self.eos_ids = runner.limits, runner.layout, runner.eos_ids
        self.max_rows, self.reset, self.mark_idle = runner.max_rows, runner.reset, runner.mark_idle

    def run(self, plan: StepPlan) -> TurnOutput:
        return self._runner.run(plan)


class _Way(NamedTuple):
    """How turns are computed, and of which requests. steps: of a turn, at most."""

    is_waiting: bool
    steps: int
    options: DecodingOptions = GREEDY


WAYS = {
    "each turn waited for": _Way(True, 1),
    "launched ahead": _Way(False, 1),
    "launched ahead, several steps a turn": _Way(False, EngineLimits().greedy_steps_per_turn),
    "sampled, each turn waited for": _Way(True, 1, SAMPLED),
    "sampled, launched ahead, several steps a turn": _Way(False, EngineLimits().greedy_steps_per_turn, SAMPLED),
}


class _Found(NamedTuple):
    """What a loop measured between its first and last requests. parts: seconds inside the calls that `timed` names."""

    seconds: float
    turns: int
    tokens: int
    parts: dict[str, float]


class _Loop:
    """Requests of random tokens, each followed by another one at its end."""

    def __init__(self, runner: OnnxRunner, path: Path, tokens: int, way: _Way) -> None:
        self.runner = runner
        self._manifest, self._most, self._rng = runner.model.manifest, tokens, random.Random(1)
        self._options = way.options
        limits = EngineLimits(
            max_rows=runner.max_rows,
            kv_cache_bytes=1 << 40,
            prefix_cache_bytes=0,
            greedy_steps_per_turn=way.steps,
        )
        self.engine = Engine(Waiting(runner) if way.is_waiting else runner, Tokenizer.load(path / TOKENIZER), limits)
        self.engine.start(self._deliver, is_manual=True)
        self._tokens = self._asked = self._ended = self._left = 0
        self._parts = defaultdict[str, float](float)

    def run(self, callers: int, answers: int) -> _Found:
        """Sends so many requests, so many at a time."""
        self._left = answers
        for place in range(callers):
            self._submit()
            if place % max(1, callers // TOKENS) == 0:  # their ends spread over an answer's turns
                self.engine.turn()
        self._tokens, turns, began_s = 0, 0, time.perf_counter()
        self._parts.clear()
        while self._left > 0:
            self.engine.turn()
            turns += 1
        found = _Found(time.perf_counter() - began_s, turns, self._tokens, dict(self._parts))
        while self._ended < self._asked:
            self.engine.turn()
        return found

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Times the calls of a turn that concern the device."""

        def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*arguments: Any) -> Any:
                began_s = time.perf_counter()
                try:
                    return call(*arguments)
                finally:
                    self._parts[name] += time.perf_counter() - began_s

            return run

        with ExitStack() as stack:
            for owner, name in ((self.runner, "launch"), (self.runner, "_start_rows"), (self.runner, "collect")):
                stack.enter_context(mock.patch.object(owner, name, timed(name, getattr(owner, name))))
            yield

    def _submit(self) -> None:
        limits, ids = self._manifest.limits, self._manifest.tokens
        drawn = tuple(self._rng.randrange(4, limits.vocab_size) for _ in range(PROMPT_TOKENS - 1))
        source, prompt = ((*drawn, ids.eos), (ids.bos,)) if limits.max_source_len else ((), (ids.bos, *drawn))
        self._asked += 1
        request = Request(
            request_id=str(self._asked),
            source=source,
            prompt=prompt,
            max_tokens=self._most,
            options=self._options,
            seed=self._asked,
            is_streamed=False,
        )
        self.engine.submit(self._asked, request)

    def _deliver(self, events: list[tuple[int, Event]]) -> None:
        for _, event in events:
            if isinstance(event, TextDelta):
                continue
            assert isinstance(event, Finished), event
            self._tokens += len(event.tokens)
            self._ended += 1
            self._left -= 1
            if self._left > 0:
                self._submit()


def engine(setting: Setting, found: Findings) -> None:
    """tokens a second of an engine alone by requests at a time, and where its turns' time goes"""
    callers, tokens = setting.pick((2,), CALLERS), setting.pick(4, TOKENS)
    name = setting.pick(SMALL_ONE, LARGE[0])
    path = path_of(setting.models, name)
    runner = runner_for(open_model(path, "cuda"), max(callers))
    loops = {how: _Loop(runner, path, tokens, way) for how, way in WAYS.items()}
    for count in callers:
        for how, loop in loops.items():
            loop.run(count, WARM_UP * count)
            with loop.timed():
                seconds, turns, answered, parts = loop.run(count, max(ANSWERS * count, setting.pick(1, LEAST)))
            place = f"{name}, {count} requests at a time, {how}"
            found.time(f"{place}: tokens/s", f"{answered / seconds:.0f}")
            found.time(f"{place}: µs a turn", f"{1e6 * seconds / turns:.0f}")
            starting, launching, reading = parts["_start_rows"], parts["launch"], parts["collect"]
            spent = (starting, launching - starting, reading, seconds - launching - reading)
            shares = "; ".join(f"{part / seconds:.0%}" for part in spent)
            found.time(f"{place}: of it starting rows; other launches; reading; host", shares)
