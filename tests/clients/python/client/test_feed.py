"""How items become messages: cancellations of `AsyncFeed`."""

import asyncio

import pytest

from glossa.client.feed import AsyncFeed
from glossa.v1 import glossa_pb2 as pb


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_ends_the_wait_for_an_item_that_comes_in_the_same_turn(turns):
    async def none():
        await asyncio.Event().wait()
        yield

    feed = AsyncFeed(none(), item=str, message=lambda items, *, is_first: items)
    waiting = asyncio.create_task(feed._next_items(feed._items))
    for _ in range(5):
        await asyncio.sleep(0)
    feed._items.put_nowait((pb.TranslateRequest(text="a cat"),))
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await feed.aclose()
