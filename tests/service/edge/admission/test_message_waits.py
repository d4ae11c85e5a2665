import asyncio

import pytest

from service.edge.admission.message_waits import ENDED_TOGETHER, PAUSE_S, MessageWaits
from service.errors import DeadlineExceeded, MessagesMissing

MOST, SHARE = 64, 8  # of a small server


class Context:
    """Of a call whose message a test sends."""

    def __init__(self):
        self.message = asyncio.get_running_loop().create_future()

    async def read(self):
        return await self.message


class Readers:
    """Calls that wait. left: their names, in the order in which they were ended, with the times."""

    def __init__(self, *, limit_s=60.0):
        self.waits = MessageWaits(4, limit_s)
        self.left = []

    async def add(self, peer, count=1):
        contexts = [Context() for _ in range(count)]
        tasks = [asyncio.create_task(self._read(context, peer, number)) for number, context in enumerate(contexts)]
        await asyncio.sleep(0)
        return contexts, tasks

    async def _read(self, context, peer, number):
        clock = asyncio.get_running_loop().time
        return await self.waits.read(context, peer, lambda: self.left.append((peer, number, clock())))


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr("service.edge.admission.message_waits.UNREAD_S", 0.0)


async def test_a_message_that_comes_ends_its_wait():
    readers = Readers()
    (context,), (task,) = await readers.add("a")
    context.message.set_result("text")
    assert await task == "text"
    readers.waits.make_room()
    assert not readers.left


async def test_the_error_of_a_read_is_that_of_its_call():
    readers = Readers()
    (context,), (task,) = await readers.add("a")
    context.message.set_exception(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await task


async def test_a_peer_has_its_share_only_while_many_wait():
    readers = Readers()
    await readers.add("a", MOST - 1)
    assert not readers.waits.are_many
    assert readers.waits.refusal("a") is None
    (context,), (task,) = await readers.add("b")
    assert readers.waits.are_many
    assert isinstance(readers.waits.refusal("a"), MessagesMissing)
    assert readers.waits.refusal("b") is None
    assert readers.waits.refusal("c") is None
    await readers.add("b", SHARE - 1)
    assert isinstance(readers.waits.refusal("b"), MessagesMissing)
    context.message.set_result("text")
    await task
    assert readers.waits.refusal("b") is None


async def test_room_is_made_by_the_peer_that_has_most():
    readers = Readers()
    await readers.add("a", 2)
    _, tasks = await readers.add("b", 3)
    readers.waits.make_room()
    assert [left[:2] for left in readers.left] == [("b", 0)], "before its task has run"
    with pytest.raises(MessagesMissing, match="the message of this call had not come"):
        await tasks[0]
    readers.waits.make_room()
    assert readers.left[-1][:2] == ("a", 0), "as many: the one that came first"


async def test_a_call_that_has_just_come_makes_no_room(monkeypatch):
    monkeypatch.setattr("service.edge.admission.message_waits.UNREAD_S", 60.0)
    readers = Readers()
    readers.waits.make_room()  # nobody waits
    await readers.add("a", 2)
    readers.waits.make_room()
    assert not readers.left


async def test_the_oldest_makes_room_while_the_peer_with_most_has_just_come():
    readers = Readers()
    await readers.add("a")
    await readers.add("b", 2)
    for wait in [wait for wait in readers.waits._waits if wait.groups == ("b",)]:
        wait.since_s += 60.0
    readers.waits.make_room()
    assert [left[:2] for left in readers.left] == [("a", 0)]


async def test_late_messages_are_given_up_a_few_at_a_time():
    readers = Readers(limit_s=0.01)
    _, tasks = await readers.add("a", 3 * ENDED_TOGETHER)
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, DeadlineExceeded)
        assert str(error) == "no message came within 0.01 s"
    times = [at_s for *_, at_s in readers.left]
    gaps = [later - earlier for earlier, later in zip(times, times[ENDED_TOGETHER:], strict=False)]
    assert min(gaps) >= 0.9 * PAUSE_S
    (context,), (task,) = await readers.add("a")  # the timer runs again for those that follow
    with pytest.raises(DeadlineExceeded):
        await task
    assert not context.message.cancelled()


async def test_a_message_after_the_end_of_its_wait_is_dropped():
    readers = Readers()
    (context,), (task,) = await readers.add("a")
    readers.waits.make_room()
    context.message.set_exception(RuntimeError("the call has ended"))
    with pytest.raises(MessagesMissing):
        await task
    assert readers.waits.refusal("a") is None
