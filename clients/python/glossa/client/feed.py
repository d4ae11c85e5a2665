"""How items of the caller's iterable become the messages of a call: `Feed`, and `AsyncFeed` for asyncio.

Items are taken as the server answers: the results of at most WINDOW of them have not been passed on. They travel in
messages of many, as many as there are at the moment, so a slow iterable does not hold back what it has given. Items
are kept until their results are passed on: a call that lost its connection is followed by one that begins with them.
Nothing here knows what an item is.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
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
    """The messages of calls, made of items that a thread of its own takes from the caller's iterable. failure: of that
    iterable, or of an item that is none; it ends the call after the results of those before."""

    def __init__(self, texts: Iterable[Any], item: Callable[[Any], Any], message: Message) -> None:
        self._texts, self._item, self._message = texts, item, message
        self._room = threading.Semaphore(WINDOW)
        self._lock = threading.Lock()  # of what follows
        self._items: queue.SimpleQueue[tuple[Any] | None] = queue.SimpleQueue()  # for the call; None: the end
        self._unanswered = deque[tuple[Any] | None]()
        self._is_closed = False
        self.failure: BaseException | None = None
        threading.Thread(target=self._pull, name="glossa-batch", daemon=True).start()

    def answered(self) -> None:
        """The first of the items without a result has one."""
        with self._lock:
            self._unanswered.popleft()
        self._room.release()

    def close(self) -> None:
        """Nothing more is taken."""
        self._is_closed = True
        self._room.release()
        self._items.put(None)

    def _put(self, item: tuple[Any] | None) -> None:
        with self._lock:
            self._unanswered.append(item)
            self._items.put(item)

    def _pull(self) -> None:
        try:
            for text in self._texts:
                self._room.acquire()
                if self._is_closed:
                    return
                self._put((self._item(text),))
        except BaseException as failure:
            self.failure = failure
        finally:
            self._put(None)

    def messages(self) -> Iterator[Any]:
        """Of a new call, from the first item without a result on. For grpc, on its thread; those of an earlier call
        end."""
        with self._lock:
            self._items.put(None)
            self._items = queue.SimpleQueue()
            for item in self._unanswered:
                self._items.put(item)
            return self._messages(self._items)

    def _messages(self, waiting: queue.SimpleQueue[tuple[Any] | None]) -> Iterator[Any]:
        is_first, is_over = True, False
        while not is_over:
            items, is_over = self._next_items(waiting)
            yield self._message(items, is_first=is_first)
            is_first = False

    def _next_items(self, waiting: queue.SimpleQueue[tuple[Any] | None]) -> tuple[list[Any], bool]:
        """The items that have arrived, and whether they are the last."""
        items, size = list[Any](), 0
        with contextlib.suppress(queue.Empty):
            while len(items) < TOGETHER and size < TOGETHER_BYTES:
                item = waiting.get(timeout=GATHER_S if items else ALIVE_S)
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
        self._unanswered = deque[tuple[Any] | None]()
        self.failure: BaseException | None = None
        self._pulling = asyncio.create_task(self._pull())

    def answered(self) -> None:
        """The first of the items without a result has one."""
        self._unanswered.popleft()
        self._room.release()

    def _put(self, item: tuple[Any] | None) -> None:
        self._unanswered.append(item)
        self._items.put_nowait(item)

    async def aclose(self) -> None:
        """Nothing more is taken."""
        self._pulling.cancel()
        await asyncio.gather(self._pulling, return_exceptions=True)

    async def _pull(self) -> None:
        try:
            async with contextlib.aclosing(each(self._texts)) as texts:
                async for text in texts:
                    await self._room.acquire()
                    self._put((self._item(text),))
        except Exception as failure:
            self.failure = failure
        finally:
            self._put(None)

    def messages(self) -> AsyncIterator[Any]:
        """Of a new call, from the first item without a result on. For grpc; those of an earlier call end."""
        self._items.put_nowait(None)
        self._items = asyncio.Queue()
        for item in self._unanswered:
            self._items.put_nowait(item)
        return self._messages(self._items)

    async def _messages(self, waiting: asyncio.Queue[tuple[Any] | None]) -> AsyncIterator[Any]:
        is_first, is_over = True, False
        while not is_over:
            items, is_over = await self._next_items(waiting)
            yield self._message(items, is_first=is_first)
            is_first = False

    async def _next_items(self, waiting: asyncio.Queue[tuple[Any] | None]) -> tuple[list[Any], bool]:
        items, size = list[Any](), 0
        with contextlib.suppress(TimeoutError):
            while len(items) < TOGETHER and size < TOGETHER_BYTES:
                if waiting.empty():
                    async with asyncio.timeout(GATHER_S if items else ALIVE_S):  # wait_for of Python 3.11 may swallow
                        item = await waiting.get()  # a cancellation
                else:
                    item = waiting.get_nowait()
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
