"""Engines as a server has them, in this process and without gRPC: what measurements of decoding alone run on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from bench.engine_pool import EnginePool
from model.tokenizer import Tokenizer
from service.engine.engine import Engine
from service.measurements import Measure, not_measured
from service.memory.engine_limits import EngineLimits
from service.request import Finished, Request, TextDelta
from service.runtime.runner import OnnxRunner

TIMEOUT_S = 600.0
ALONE = {"prefix_cache_bytes": 0, "stream_messages_per_s": 0}  # limits where decoding alone is measured


class Engines:
    """One engine for each runner. `seconds`: how long the last `answer` took."""

    def __init__(
        self,
        runners: Sequence[OnnxRunner],
        tokenizer: Tokenizer,
        *,
        measure: Measure = not_measured,
        **limits: Any,
    ) -> None:
        """limits: fields of EngineLimits; its max_rows are the runners'."""
        own = EngineLimits(**{**ALONE, "max_rows": runners[0].max_rows, **limits})
        self._pool = EnginePool([Engine(runner, tokenizer, own, measure) for runner in runners])
        self._pool.start()
        self.seconds = 0.0

    def answer(self, requests: Sequence[Request], *, singly: bool = False) -> list[Finished]:
        """The answers in the order of the requests. singly: each request after the answer of the one before."""
        return asyncio.run(self._answer(requests, singly))

    async def _answer(self, requests: Sequence[Request], singly: bool) -> list[Finished]:
        began_s, found = time.perf_counter(), list[Any]()
        for part in [[request] for request in requests] if singly else [requests]:
            found += await asyncio.wait_for(asyncio.gather(*map(self._submit, part)), TIMEOUT_S)
        self.seconds = time.perf_counter() - began_s
        for end in found:
            if not isinstance(end, Finished):
                raise end
        return found

    def _submit(self, request: Request) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def sink(event: object) -> None:
            if not isinstance(event, TextDelta):
                ended.set_result(event)

        self._pool.submit(request, loop, sink)
        return ended

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
