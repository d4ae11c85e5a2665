import asyncio
import threading

import pytest

from service.edge.admission.preparation import Preparation
from service.errors import Overloaded, TenantLimit
from service.request import Caller

A, B = Caller("a"), Caller("b")


@pytest.fixture
def gate():
    found = threading.Event()
    yield found
    found.set()


@pytest.fixture
def preparation(gate):
    found = Preparation(0.5, capacity=6)
    yield found
    found.close()


async def started(*coroutines):
    """Their tasks, which have begun."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    await asyncio.sleep(0)
    return tasks


async def test_work_runs_in_a_thread(preparation):
    assert await preparation.prepare(A, threading.get_ident) != threading.get_ident()
    assert await preparation.convert(A, lambda: 7) == 7


async def test_one_tenant_alone_may_fill_it(preparation, gate):
    tasks = await started(*(preparation.prepare(A, gate.wait) for _ in range(6)))
    with pytest.raises(Overloaded, match="6 long requests are being prepared already") as caught:
        await preparation.prepare(A, gate.wait)
    assert caught.value.limit == 6
    gate.set()
    assert await asyncio.gather(*tasks) == [True] * 6
    assert await preparation.prepare(A, lambda: 1) == 1


async def test_one_among_others_leaves_room(preparation, gate):
    tasks = await started(preparation.prepare(B, gate.wait), *(preparation.prepare(A, gate.wait) for _ in range(2)))
    tasks += await started(preparation.prepare(A, gate.wait))
    with pytest.raises(TenantLimit, match="tenant 'a' already has its share of the 6"):
        await preparation.prepare(A, gate.wait)
    converted = await started(preparation.convert(A, lambda: "never refused"))
    tasks += await started(preparation.prepare(B, gate.wait))
    gate.set()
    assert await asyncio.gather(*tasks) == [True] * 5
    assert await converted[0] == "never refused"


async def test_a_call_that_is_cancelled_leaves_its_place(preparation, gate):
    tasks = await started(*(preparation.prepare(A, gate.wait) for _ in range(6)))
    tasks[5].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[5]
    tasks[5:] = await started(preparation.prepare(A, gate.wait))
    gate.set()
    assert await asyncio.gather(*tasks) == [True] * 6
