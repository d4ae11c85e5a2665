"""Many requests inside one call: the window, the order, the memory, and every way in which an item or the call ends."""

import asyncio
import contextlib
import logging

import pytest

from glossa.v1 import glossa_pb2 as pb
from service.edge.admission.idle_calls import IdleCalls
from service.edge.admission.request_memory import RequestMemory
from service.edge.calls.budget import Slots
from service.edge.calls.items import (
    BEGUN_TOGETHER,
    DONE_BYTES,
    GATHER_S,
    HELD,
    ITEM_BYTES,
    MAX_RESULT_BYTES,
    MAX_RESULTS,
    Item,
    ItemLimits,
    ItemRunner,
)
from service.edge.calls.record import report
from service.edge.observability.metrics import Method, Metrics
from service.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    InvalidRequest,
    MemoryLimit,
    Overloaded,
    ShuttingDown,
)
from service.request import Caller, Finished, FinishReason
from tests.edge import FakePool, a_call, served
from tests.virtual_time import run_virtually

RPC = Method("bidi_stream", "glossa.v1.TranslationService", "TranslateBatch")
FULL = Overloaded("the queue is full", retry_after_s=0.01, limit=1)


class Batch:
    """A call with items, whose answers a test gives: `answer` waits for `release`, unless `is_quick`."""

    def __init__(self, *, window=4, in_order=False, deadline_s=1e9, is_quick=False, limits=(600.0, 10.0)):
        self.now_s, self.is_quick = 0.0, is_quick
        self.memory = RequestMemory(1 << 24, 0.8)
        self.metrics = Metrics([RPC])
        self.metrics.rpc_started(RPC)
        self.call = a_call(RPC, deadline_s, caller=Caller("t"), memory=self.memory)
        self.model = served("en-de", FakePool())
        self.call.use(self.model)
        self.idle = IdleCalls(4, lambda: self.now_s)
        self.runner = ItemRunner(self.metrics, ItemLimits(*limits), lambda: self.now_s, self.waiting)
        self.window, self.in_order = window, in_order
        self.begun, self.calls = [], {}
        self.gates, self.errors = {}, {}
        self.source_error, self.holds_source = None, False

    def waiting(self, call):
        return self.idle.waiting("peer", "t", call.ending.end)

    async def answer(self, request, call):
        self.begun.append(request.text)
        self.calls[request.text] = call
        call.use(call.budget.pinned)
        if not self.is_quick:
            await self.gates.setdefault(request.text, asyncio.Event()).wait()
        if error := self.errors.get(request.text):
            raise error
        call.record.finish(Finished(FinishReason.LENGTH, prompt_tokens=3, generated_tokens=2))
        return pb.TranslateResponse(text=request.text.upper())

    async def source(self, ids):
        for identifier in ids:
            yield [Item(identifier, pb.TranslateRequest(text=identifier), self.call.budget.memory.another())]
        if self.holds_source:
            await asyncio.Event().wait()
        if self.source_error:
            raise self.source_error

    def release(self, *ids):
        for identifier in ids:
            self.gates.setdefault(identifier, asyncio.Event()).set()

    @contextlib.asynccontextmanager
    async def run(self, ids):
        outcomes = self.runner.run(self.call, self.source(ids), self.answer, window=self.window, in_order=self.in_order)
        async with contextlib.aclosing(outcomes):
            yield outcomes

    async def all(self, ids):
        async with self.run(ids) as outcomes:
            return [outcome async for some in outcomes for outcome in some]


async def settle():
    for _ in range(100):
        await asyncio.sleep(0)


def names(count):
    return [f"i{number}" for number in range(count)]


def ended(batch, code):
    return batch.metrics.registry.get_sample_value(
        "glossa_batch_items_total", {"method": "TranslateBatch", "code": code}
    )


@pytest.mark.parametrize("in_order", [False, True])
async def test_every_item_has_one_outcome(in_order):
    batch = Batch(in_order=in_order, is_quick=True)
    outcomes = await batch.all(names(1000))
    found = [outcome.id for outcome in outcomes]
    assert (found if in_order else sorted(found)) == (names(1000) if in_order else sorted(names(1000)))
    assert all(outcome.response.text == outcome.id.upper() for outcome in outcomes)
    assert batch.memory.reserved_bytes == 0
    assert batch.model.users.count == 1, "the call's own"
    assert ended(batch, "OK") == 1000


async def test_no_more_items_than_the_window_are_in_flight():
    batch = Batch(window=4)
    async with batch.run(names(20)) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        assert batch.begun == names(4)
        batch.release("i1", "i2")
        await reading
        await settle()
        assert batch.begun == names(6)


async def test_a_client_that_reads_nothing_holds_a_bounded_number_of_items_and_constant_memory():
    batch = Batch(window=4, is_quick=True)
    async with batch.run(names(1000)) as outcomes:
        await anext(outcomes)
        await settle()
        begun, reserved = len(batch.begun), batch.memory.reserved_bytes
        assert begun <= HELD * 4
        assert DONE_BYTES * begun <= reserved < 2 * DONE_BYTES * begun
        await settle()
        assert (len(batch.begun), batch.memory.reserved_bytes) == (begun, reserved)
    assert batch.memory.reserved_bytes == 0


async def test_results_in_order_wait_for_earlier_ones():
    batch = Batch(in_order=True)
    async with batch.run(names(3)) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        batch.release("i2", "i1")
        await asyncio.sleep(3 * GATHER_S)
        assert not reading.done()
        batch.release("i0")
        assert [outcome.id for outcome in await reading] == names(3)


async def test_results_that_are_ready_together_share_a_message_of_bounded_size():
    batch = Batch(window=1000)
    async with batch.run(names(600)) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        batch.release(*names(600))
        await settle()
        sizes = [len(await reading), *[len(some) async for some in outcomes]]
    assert sum(sizes) == 600
    assert max(sizes) == MAX_RESULTS


async def test_large_results_are_spread_over_messages():
    batch = Batch(is_quick=True)

    async def large(request, call):
        return pb.TranslateResponse(text="x" * (MAX_RESULT_BYTES // 2))

    vars(batch)["answer"] = large
    async with batch.run(names(4)) as outcomes:
        assert [len(some) async for some in outcomes] == [1] * 4


async def test_an_items_error_is_its_own():
    batch = Batch(is_quick=True)
    batch.errors = {
        "i1": InvalidRequest("text", "must not be empty"),
        "i2": EngineUnavailable("the engine's process ended", retry_after_s=1.0),
        "i3": RuntimeError("a secret"),
    }
    outcomes = {outcome.id: outcome for outcome in await batch.all(names(5))}
    assert [outcomes[name].error is None for name in names(5)] == [True, False, False, False, True]
    assert outcomes["i1"].error is batch.errors["i1"]
    assert "secret" not in str(outcomes["i3"].error)
    assert "r/3" in str(outcomes["i3"].error)
    assert [ended(batch, code) for code in ("OK", "InvalidArgument", "Unavailable", "Internal")] == [2, 1, 1, 1]


async def test_an_id_in_flight_ends_the_call_and_the_items_before_are_answered():
    batch = Batch()
    async with batch.run(["a", "b", "a", "c"]) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        batch.release("a", "b")
        assert {outcome.id for outcome in await reading} == {"a", "b"}
        with pytest.raises(InvalidRequest, match=r"items\.id: must be that of no item without a result yet, got 'a'"):
            await anext(outcomes)
    assert batch.memory.reserved_bytes == 0
    assert batch.begun == ["a", "b"]


async def test_an_id_is_free_again_once_its_result_is_written():
    batch, written = Batch(is_quick=True), asyncio.Event()

    async def source(ids):
        yield [Item("a", pb.TranslateRequest(text="a"))]
        await written.wait()
        yield [Item("a", pb.TranslateRequest(text="a"))]

    vars(batch)["source"] = source
    async with batch.run([]) as outcomes:
        await anext(outcomes)
        second = asyncio.create_task(anext(outcomes))  # the first one is written
        await settle()
        written.set()
        assert [outcome.id for outcome in await second] == ["a"]


async def test_the_end_of_the_source_comes_after_the_answers():
    batch = Batch(is_quick=True)
    batch.source_error = InvalidRequest("defaults", "must be set once")
    async with batch.run(names(3)) as outcomes:
        assert [outcome.id for outcome in await anext(outcomes)] == names(3)
        with pytest.raises(InvalidRequest, match="must be set once"):
            await anext(outcomes)


async def test_an_item_waits_while_a_queue_is_full_and_no_later_one_begins():
    batch, tried, is_full = Batch(window=100), [], True

    async def answer(request, call):
        tried.append(request.text)
        while is_full:
            await call.wait_for_room(FULL)
        return pb.TranslateResponse()

    vars(batch)["answer"] = answer
    async with batch.run(names(50)) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        await asyncio.sleep(0.05)  # they try again, and find no room
        assert 1 <= len(tried) <= BEGUN_TOGETHER
        is_full = False
        found = [*await reading, *[outcome async for some in outcomes for outcome in some]]
    assert [outcome.error for outcome in found] == [None] * 50


async def test_an_item_that_waits_until_its_deadline_has_the_error_of_the_queue():
    batch = Batch(limits=(5.0, 10.0))

    async def answer(request, call):
        batch.now_s += 3.0
        while True:
            await call.wait_for_room(FULL)
            batch.now_s += 3.0

    vars(batch)["answer"] = answer
    (outcome,) = await batch.all(["a"])
    assert outcome.error is FULL


async def test_an_item_waits_for_memory_that_the_results_before_it_hold():
    batch = Batch(window=100, is_quick=True)
    batch.memory.limit_bytes = 4 * ITEM_BYTES
    outcomes = await batch.all(names(50))
    assert [outcome.error for outcome in outcomes] == [None] * 50
    assert batch.memory.reserved_bytes == 0


async def test_a_message_for_which_there_is_no_memory_and_nothing_in_flight_ends_the_call():
    batch, full = Batch(), MemoryLimit("no room", retry_after_s=0.1, limit=1)

    async def source(ids):
        yield []
        assert batch.call.budget.wait
        await batch.call.budget.wait(full, 100.0)

    vars(batch)["source"] = source
    with pytest.raises(MemoryLimit):
        await batch.all([])


@pytest.mark.parametrize(("call_deadline_s", "deadline_s"), [(1e9, 600.0), (100.0, 100.0), (float("inf"), 600.0)])
async def test_an_item_has_a_deadline_within_that_of_its_call(call_deadline_s, deadline_s):
    batch = Batch(deadline_s=call_deadline_s, is_quick=True)
    await batch.all(["a"])
    assert batch.calls["a"].rpc.deadline_s == deadline_s


async def test_an_item_has_the_id_and_the_model_of_its_call():
    batch = Batch(is_quick=True)
    await batch.all(["a", "b"])
    call = batch.calls["b"]
    assert (call.rpc.request_id, call.rpc.caller, call.budget.pinned) == ("r/1", Caller("t"), batch.model)


async def test_a_call_that_drains_answers_what_has_begun():
    batch = Batch(window=2)
    async with batch.run(names(9)) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        batch.call.ending.drain()
        batch.release(*names(9))
        assert [outcome.id for outcome in await reading] == ["i0", "i1"]
        with pytest.raises(ShuttingDown):
            await anext(outcomes)
    assert batch.begun == ["i0", "i1"]


async def test_a_call_that_drains_before_its_items_begin_answers_none():
    batch = Batch(is_quick=True)
    batch.call.ending.drain()
    with pytest.raises(ShuttingDown):
        await batch.all(["a", "b"])
    assert batch.begun == []
    assert batch.memory.reserved_bytes == 0


async def test_a_call_whose_items_have_all_begun_drains_to_its_end():
    batch = Batch()
    async with batch.run(["a"]) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        batch.call.ending.drain()
        batch.release("a")
        await reading
        with pytest.raises(StopAsyncIteration):
            await anext(outcomes)


async def test_a_client_that_sends_nothing_more_is_not_waited_for():
    batch = Batch(is_quick=True, limits=(600.0, 0.01))
    batch.holds_source = True
    with pytest.raises(DeadlineExceeded, match=r"no message came within 0\.01 s"):
        await batch.all(["a"])


def test_messages_without_items_keep_a_call_open_for_so_long():
    async def kept():
        batch, sent = Batch(limits=(60.0, 10.0)), 0

        async def source(ids):
            nonlocal sent
            while True:
                await asyncio.sleep(4)
                sent += 1
                yield []

        vars(batch)["source"] = source
        with pytest.raises(DeadlineExceeded, match=r"no item came within 60 s"):
            await batch.all([])
        return sent

    assert run_virtually(kept()) == 14


async def test_a_call_is_idle_only_while_it_has_nothing_in_flight():
    batch = Batch()
    batch.holds_source = True
    async with batch.run(["a"]) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        assert (batch.begun, len(batch.idle)) == (["a"], 0)
        batch.release("a")
        assert [one.id for one in await reading] == ["a"]
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        assert len(batch.idle) == 1
        reading.cancel()
        await asyncio.wait([reading])
    assert len(batch.idle) == 0


async def test_a_version_that_is_left_by_all_gets_no_more_items():
    batch = Batch()
    async with batch.run(names(20)) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        batch.model.users.closes_at_s = 50.0
        batch.release("i0")
        await reading
        await settle()
        assert batch.calls["i4"].rpc.deadline_s == 50.0
        batch.model.users.end_items()
        batch.release(*names(20))
        with pytest.raises(EngineUnavailable, match="the version of the model was replaced"):
            async for _ in outcomes:
                pass
    assert batch.begun == names(5)


async def test_a_call_that_is_cancelled_as_items_come_ends():
    for turns in range(8):
        batch, came = Batch(), asyncio.Event()

        async def source(ids, came=came):
            await came.wait()
            yield []
            await asyncio.Event().wait()

        vars(batch)["source"] = source
        task = asyncio.create_task(batch.all([]))
        await settle()
        came.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled(), turns


async def test_a_source_that_needs_no_client_may_take_its_time():
    batch = Batch(is_quick=True, limits=(600.0, 0.01))
    batch.holds_source = True
    outcomes = batch.runner.run(batch.call, batch.source(["a"]), batch.answer, window=1, has_client=False)
    async with contextlib.aclosing(outcomes):
        await anext(outcomes)
        reading = asyncio.ensure_future(anext(outcomes))
        done, _ = await asyncio.wait([reading], timeout=0.1)
        assert not done
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_client_may_wait_for_its_answers():
    batch = Batch(limits=(600.0, 0.01))
    batch.holds_source = True
    async with batch.run(["a"]) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await asyncio.sleep(0.1)
        assert not reading.done()
        batch.release("a")
        assert [outcome.id for outcome in await reading] == ["a"]


async def test_a_client_may_wait_for_an_item_that_began_after_a_pause():
    batch, more = Batch(window=100, limits=(600.0, 0.01)), asyncio.Event()
    first, last = names(BEGUN_TOGETHER - 1), "late"  # before the last one, the event loop has a turn

    async def source(ids):
        yield [Item(name, pb.TranslateRequest(text=name)) for name in first]
        await more.wait()
        yield [Item(last, pb.TranslateRequest(text=last))]
        await asyncio.Event().wait()

    vars(batch)["source"] = source
    batch.release(*first)
    async with batch.run([]) as outcomes:
        assert len(await anext(outcomes)) == len(first)
        more.set()
        reading = asyncio.create_task(anext(outcomes))
        await asyncio.sleep(0.1)
        assert not reading.done()
        batch.release(last)
        assert [outcome.id for outcome in await reading] == [last]


async def test_a_call_that_is_left_ends_its_items(caplog):
    caplog.set_level(logging.INFO, logger="glossa")
    batch = Batch(window=4)
    async with batch.run(names(9)) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        batch.release("i0")
        await reading
    assert batch.memory.reserved_bytes == 0
    assert batch.model.users.count == 1
    assert ended(batch, "Canceled") == len(batch.begun) - 1 == 4
    report(batch.call.rpc, batch.call.record, None, batch.metrics, 1.0)
    (line,) = [record.fields for record in caplog.records if record.getMessage() == "request"]
    assert line["items"] == 5
    assert line["answered"] == 1
    assert line["failures"] == {"CANCELLED": 4}
    assert (line["prompt_tokens"], line["generated_tokens"]) == (3, 2)


async def test_memory_of_items_that_never_begin_is_given_back():
    batch = Batch(window=1)

    async def source(ids):
        batch.call.budget.memory.grow(1000)
        parts = batch.call.budget.memory.split(len(ids))
        yield [Item(name, pb.TranslateRequest(text=name), part) for name, part in zip(ids, parts, strict=True)]

    vars(batch)["source"] = source
    async with batch.run(names(9)) as outcomes:
        reading = asyncio.create_task(anext(outcomes))
        await settle()
        assert batch.memory.reserved_bytes == 1000 + ITEM_BYTES
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    assert batch.memory.reserved_bytes == 0


async def test_parts_of_one_request_end_as_one():
    batch = Batch(is_quick=True)
    parts = [Item(str(number), pb.TranslateRequest(text="abc"[number])) for number in range(3)]

    async def source():
        yield parts

    batch.call.ending.drain()  # a request that has begun is answered
    outcomes = batch.runner.run(batch.call, source(), batch.answer, window=2, in_order=True, is_one=True)
    found = [outcome.response async for some in outcomes for outcome in some]
    assert found == [pb.TranslateResponse(text=text) for text in "ABC"]
    record = batch.call.record
    assert record.items is None
    assert record.finished is not None
    assert (record.finished.prompt_tokens, record.finished.generated_tokens) == (9, 6)
    assert batch.memory.reserved_bytes == 0


async def test_the_first_part_of_a_request_is_refused_where_the_request_would_be():
    batch, waited = Batch(), list[str]()

    async def answer(request, call):
        if not waited or request.text == "first":
            waited.append(request.text)
            await call.wait_for_room(FULL)
        return pb.TranslateResponse(text=request.text)

    async def source(*texts):
        yield [Item(str(number), pb.TranslateRequest(text=text)) for number, text in enumerate(texts)]

    outcomes = batch.runner.run(batch.call, source("first"), answer, window=2, in_order=True, is_one=True)
    ((outcome,),) = [some async for some in outcomes]
    assert outcome.error is FULL
    waited.clear()

    async def later(request, call):
        if request.text == "b" and not waited:
            waited.append(request.text)
            await call.wait_for_room(FULL)
        return pb.TranslateResponse(text=request.text)

    outcomes = batch.runner.run(batch.call, source("a", "b"), later, window=2, in_order=True, is_one=True)
    assert [outcome.error async for some in outcomes for outcome in some] == [None, None]
    assert waited == ["b"]


async def test_requests_of_an_item_take_room_of_its_call():
    slots = Slots(4)
    assert [slots.take(3), slots.take(3), slots.take(1)] == [3, 1, 0]
    waiting = asyncio.create_task(slots.freed.wait())
    await asyncio.sleep(0)
    slots.give(2)
    await waiting
    assert (slots.free, slots.size) == (2, 4)
