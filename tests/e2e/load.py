"""Calls of a server under load, and what must happen on a loaded machine."""

import asyncio
import collections
import os
import time
from typing import Any

import grpc

from tests.edge import failure, method
from tests.tiny import TEXTS

WITHIN_S = 120  # for what must happen, on a loaded machine
LONG: Any = {"max_tokens": 50, "ignore_eos": True}


def until(condition):
    """Returns once `condition()` holds."""
    end_s = time.monotonic() + WITHIN_S
    while not (found := condition()):
        assert time.monotonic() < end_s
        os.sched_yield()
    return found


async def load(server, act, count=600, concurrency=64, *, deadline_s=WITHIN_S):
    """The answers to that many requests by text; the error and its details of those that failed. `act` is called in
    the middle."""
    answered, failed = collections.Counter[str](), []
    gate = asyncio.Semaphore(concurrency)
    async with grpc.aio.insecure_channel(server.address, options=[("grpc.enable_retries", 0)]) as channel:
        translate = method(channel, "Translate")

        async def ask(text):
            async with gate:
                call = translate(text=text, options=LONG, timeout=deadline_s)
                if await call.code() == grpc.StatusCode.OK:
                    answered[(await call).text] += 1
                else:
                    failed.append(await failure(call))
                if answered.total() + len(failed) == concurrency:
                    act()

        await asyncio.gather(*[ask(TEXTS[number % 2]) for number in range(count)])
    return answered, failed
