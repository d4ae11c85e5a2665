"""Requests of every kind against a server, as one client sends them: some cancelled, some with short deadlines, some
invalid. It measures nothing; `bench.promises.soak` and `bench.promises.leaks` look at the server meanwhile.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from bench.load.calls import OWN_CHANNEL, calls_of
from glossa.v1 import glossa_pb2 as pb

ORDINARY: list[dict[str, Any]] = [
    {"beam_size": 4},
    {"beam_size": 8, "length_penalty": 0.6},
    {"temperature": 0.9, "top_p": 0.9, "seed": 5},
    {"top_k": 20, "seed": 6, "token_logprobs": True},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    {"bad_words": ["der", "x"]},
]
KINDS: list[dict[str, Any]] = [
    *([{}] * 12),
    *ORDINARY,
    {"stop": ["e", "."]},
    {"num_sequences": 3, "temperature": 0.7, "seed": 7},
]
INVALID = {"beam_size": 4000}
LONGEST_STAY_S = 0.05  # of a client that leaves, or of a short deadline


class Shares(NamedTuple):
    """Of requests: what part is cancelled, has a short deadline, is invalid. The others are answered."""

    cancelled: float = 0.2
    late: float = 0.05
    invalid: float = 0.05


class MixedLoad:
    """Callers in a closed loop on one connection. ends: by status code."""

    def __init__(self, address: str, bundle: Path, texts: list[str], shares: Shares, *, max_tokens: int, seed: int):
        self._channel = grpc.aio.insecure_channel(address, options=OWN_CHANNEL)
        self._types = calls_of(bundle)
        self._unary: Any = self._channel.unary_unary(self._types.path)
        self._stream: Any = self._channel.unary_stream(self._types.stream_path)
        self._texts, self._shares, self._max_tokens = texts, shares, max_tokens
        self._rng = random.Random(seed)
        self.ends: collections.Counter[str] = collections.Counter()

    async def run(self, requests: int, callers: int, every: int = 0, look: Callable[[int], None] | None = None) -> None:
        """Sends so many requests. look: called with the number of ended ones, whenever `every` more have ended."""
        left = requests

        async def call_again() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self._call()
                if look is not None and self.ends.total() % every == 0:
                    look(self.ends.total())

        await asyncio.gather(*[call_again() for _ in range(callers)])

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self) -> None:
        rng, shares = self._rng, self._shares
        fate = rng.random()
        is_cancelled = fate < shares.cancelled
        is_late = not is_cancelled and fate < shares.cancelled + shares.late
        is_invalid = fate > 1 - shares.invalid
        kind = INVALID if is_invalid else rng.choice(KINDS)
        is_streamed = rng.random() < 0.5 and "num_sequences" not in kind
        make = self._types.stream_request if is_streamed else self._types.request
        options = pb.DecodingOptions(max_tokens=rng.randrange(1, self._max_tokens + 1), **kind)
        message = make(text=rng.choice(self._texts), options=options).SerializeToString()
        stay_s = LONGEST_STAY_S * rng.random() ** 3
        call = (self._stream if is_streamed else self._unary)(message, timeout=stay_s if is_late else 60.0)
        timer = asyncio.get_running_loop().call_later(stay_s, call.cancel) if is_cancelled else None
        try:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                if is_streamed:
                    async for _ in call:
                        pass
                else:
                    await call
            self.ends[(await call.code()).name] += 1
        finally:
            if timer is not None:
                timer.cancel()
            call.cancel()
