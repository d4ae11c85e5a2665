import asyncio
from typing import Any

import pytest

from service.edge.models.event_stream import EventStream
from service.errors import DeadlineExceeded
from service.request import Finished, FinishReason, TextDelta

END = Finished(FinishReason.LENGTH, "!", (3,))


async def test_events_that_arrive_together_are_one_piece():
    arrivals = EventStream()
    for event in (TextDelta("a", (1,)), TextDelta("b", (2,)), END):
        arrivals(event)
    assert await arrivals.piece() == ("ab!", (1, 2, 3), END)


async def test_later_events_are_another_piece():
    arrivals = EventStream()
    arrivals(TextDelta("a", (1,)))
    assert await arrivals.piece() == ("a", (1,), None)
    waiting = asyncio.ensure_future(arrivals.piece())
    asyncio.get_running_loop().call_soon(arrivals, END)
    assert await waiting == ("!", (3,), END)


@pytest.mark.parametrize("end", [END, DeadlineExceeded("late")])
async def test_the_end_is_reported_when_it_arrives_read_or_not(end):
    arrivals, ends = EventStream(), list[Any]()
    arrivals.on_end = ends.append
    arrivals(TextDelta("a", (1,)))
    assert ends == []
    arrivals(end)
    assert ends == [end]


async def test_text_is_returned_before_the_error_that_arrived_with_it():
    arrivals = EventStream()
    arrivals(TextDelta("a", (1,)))
    arrivals(DeadlineExceeded("late"))
    assert await arrivals.piece() == ("a", (1,), None)
    with pytest.raises(DeadlineExceeded):
        await arrivals.piece()


async def test_an_error_alone_is_raised():
    arrivals = EventStream()
    arrivals(DeadlineExceeded("late"))
    with pytest.raises(DeadlineExceeded):
        await arrivals.piece()


async def test_an_end_that_was_not_read_is_known():
    arrivals = EventStream()
    arrivals(TextDelta("a", (1,)))
    assert arrivals.unread is None
    arrivals(END)
    assert arrivals.unread is END
    await arrivals.piece()
    assert arrivals.unread is None
