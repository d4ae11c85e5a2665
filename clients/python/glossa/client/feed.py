"""How items of the caller's iterable become the messages of a call: `Feed`, and `AsyncFeed` for asyncio.

Items are taken as the server answers: the results of at most WINDOW of them have not been passed on. They travel in
messages of many, as many as there are at the moment, so a slow iterable does not hold back what it has given. Nothing
here knows what an item is.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

WINDOW = 4096  # items whose result has not been passed on: those after a slow one, too
TOGETHER, TOGETHER_BYTES = 128, 1 << 16  # items of a message, of which servers accept 256 KiB by default
GATHER_S = 0.002  # for further items of a message
ALIVE_S = 4.0  # between messages: the server ends a call that sends none for longer, by default 10 s


class Message(Protocol):
    """Makes a message of items."""

    def __call__(self, items: Sequence[Any], *, is_first: bool) -> Any: ...


class Feed:
    """The messages of a call, made of items that a thread of its own takes from the caller's iterable. failure: of that
    iterable, or of an item that is none; it ends the call after the results of those before."""

    def __init__(self, texts: Iterable[Any], item: Callable[[Any], Any], message: Message) -> None:
        self._texts, self._item, self._message = texts, item, message
        self._room = threading.Semaphore(WINDOW)
        self._items: queue.SimpleQueue[tuple[Any] | None] = queue.SimpleQueue()  # None: the end
        self._is_closed = False
        self.failure: BaseException | None = None
        threading.Thread(target=self._pull, name="glossa-batch", daemon=True).start()

    def answered(self) -> None:
        """An item has a result."""
        self._room.release()

    def close(self) -> None:
        """Nothing more is taken."""
        self._is_closed = True
        self._room.release()
        self._items.put(None)

    def _pull(self) -> None:
        try:
            for text in self._texts:
                self._room.acquire()
                if self._is_closed:
                    return
                self._items.put((self._item(text),))
        except BaseException as failure:
            self.failure = failure
        finally:
            self._items.put(None)

    def messages(self) -> Iterator[Any]:
        """For grpc, on its thread."""
        is_first, is_over = True, False
        while not is_over:
            items, is_over = self._next_items()
            yield self._message(items, is_first=is_first)
            is_first = False

    def _next_items(self) -> tuple[list[Any], bool]:
        """Those that are there, and whether they are the last."""
        items, size = list[Any](), 0
        with contextlib.suppress(queue.Empty):
            while len(items) < TOGETHER and size < TOGETHER_BYTES:
                item = self._items.get(timeout=GATHER_S if items else ALIVE_S)
                if item is None:
                    return items, True
                items += item
                size += item[0].ByteSize()
        return items, False


class AsyncFeed:
    """`Feed` with a task instead of a thread."""

    def __init__(self, texts: Iterable[Any] | AsyncIterable[Any], item: Callable[[Any], Any], message: Message) -> None:
        self._texts, self._item, self._message = texts, item, message
        self._room = asyncio.Semaphore(WINDOW)
        self._items: asyncio.Queue[tuple[Any] | None] = asyncio.Queue()
        self.failure: BaseException | None = None
        self._pulling = asyncio.create_task(self._pull())

    def answered(self) -> None:
        """An item has a result."""
        self._room.release()

    async def aclose(self) -> None:
        """Nothing more is taken."""
        self._pulling.cancel()
        await asyncio.gather(self._pulling, return_exceptions=True)

    async def _pull(self) -> None:
        try:
            async with contextlib.aclosing(each(self._texts)) as texts:
                async for text in texts:
                    await self._room.acquire()
                    self._items.put_nowait((self._item(text),))
        except Exception as failure:
            self.failure = failure
        finally:
            self._items.put_nowait(None)

    async def messages(self) -> AsyncIterator[Any]:
        """For grpc."""
        is_first, is_over = True, False
        while not is_over:
            items, is_over = await self._next_items()
            yield self._message(items, is_first=is_first)
            is_first = False

    async def _next_items(self) -> tuple[list[Any], bool]:
        items, size = list[Any](), 0
        with contextlib.suppress(TimeoutError):
            while len(items) < TOGETHER and size < TOGETHER_BYTES:
                if self._items.empty():
                    async with asyncio.timeout(GATHER_S if items else ALIVE_S):  # wait_for of Python 3.11 may swallow
                        item = await self._items.get()  # a cancellation
                else:
                    item = self._items.get_nowait()
                if item is None:
                    return items, True
                items += item
                size += item[0].ByteSize()
        return items, False


async def each(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    """The items of an iterable of either kind. Other tasks have a turn at least every GATHER_S, as far as the iterable
    lets them."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    loop = asyncio.get_running_loop()
    since_s = loop.time()
    for item in items:
        if loop.time() - since_s >= GATHER_S:
            await asyncio.sleep(0)
            since_s = loop.time()
        yield item
