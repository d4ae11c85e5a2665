import asyncio
import contextlib
import functools
import re

import pytest

from service.answer_pace import MARGIN
from service.edge.admission.admission import RETRY_WITHOUT_ENGINE_S
from service.edge.models.answer_cache import AnswerCache
from service.edge.models.child_process import Progress
from service.edge.models.process_pool import (
    CHECK_S,
    FAILING_DELAY_S,
    FROZEN_S,
    QUIET_S,
    RESTART_DELAYS_S,
    PoolLimits,
    ProcessPool,
)
from service.edge.observability.metrics import Metrics
from service.edge.observability.version_metrics import PROCESS_ENDS
from service.edge.requests.request_limits import TextLimits
from service.edge.rpcs.model_description import describe
from service.edge.versions.open_model import follow_choice, keep_answers
from service.engine.engine import IDLE_TURN_S
from service.engine_process.engine_process import BEAT_S
from service.errors import DeadlineTooSoon, EngineUnavailable, Overloaded, ShuttingDown, StartupError, TenantLimit
from service.machine.execution_choice import ExecutionChoice
from service.progress import Timings
from service.request import Caller, Finished, FinishReason, Priority
from tests.edge import served
from tests.engine_processes import DIGEST, FakeStart, opened, state
from tests.engines import request
from tests.fakes import Sink
from tests.virtual_time import run_virtually, stall

LIMITS = PoolLimits(rows=3, queued=2, start_s=100.0, heartbeat_s=30.0)
END = Finished(FinishReason.LENGTH)


class Pool:
    """A pool of fake processes on the running loop's clock, and what became of it."""

    def __init__(self, *outcomes, processes=2):
        self.cancels = []  # of the requests so far
        self.start, self.metrics = FakeStart(*outcomes), Metrics()
        self.loop = asyncio.get_running_loop()
        self.pool = ProcessPool("m", processes, self.start, LIMITS, self.metrics.model("m").open(""), self.loop.time)

    @property
    def links(self):
        """The links of each place, the last of which is the running one."""
        return self.start.links

    def submit(self, name="r", **more):
        sink = Sink(self.loop)
        self.cancels.append(self.pool.submit(request(name, **more), self.loop, sink))
        return sink

    def count(self, name, reason):
        return self.metrics.registry.get_sample_value(name, {"model": "m", "version": "", "reason": reason})

    @property
    def restarts(self):
        return {
            reason: count
            for reason in PROCESS_ENDS
            if (count := self.count("glossa_engine_process_restarts_total", reason))
        }

    async def beat(self, seconds, *links):
        """Lets time pass while these links speak."""
        for _ in range(round(seconds / 0.1)):
            for link in links:
                link.beats(state(heartbeat_s=self.loop.time()))
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def open_pool(*outcomes, processes=2):
    found = Pool(*outcomes, processes=processes)
    await found.pool.open()
    try:
        yield found
    finally:
        await found.pool.aclose()


def virtually(story):
    """A test whose time passes only while all tasks wait."""

    @functools.wraps(story)
    def test(*arguments, **fixtures):
        run_virtually(story(*arguments, **fixtures))

    return test


def fields_of(caplog, event):
    return [record.fields for record in caplog.records if record.getMessage() == event]


@virtually
async def test_a_request_goes_to_the_process_with_the_fewest_unfinished_ones():
    async with open_pool(processes=3) as one:
        for number in range(7):
            one.submit(str(number))
        assert [[asked.request_id for asked in link.requests] for link in one.links] == [
            ["0", "3", "6"],
            ["1", "4"],
            ["2", "5"],
        ]
        one.links[2].receivers.clear()
        one.submit("next")
        assert one.links[2].requests[-1].request_id == "next"


@virtually
async def test_cancelling_reaches_the_process_of_the_request_by_its_ticket():
    async with open_pool() as one:
        for number in range(4):
            one.submit(str(number))
        one.cancels[1]()
        one.cancels[2]()
        assert [link.cancelled for link in one.links] == [[2], [1]]


@virtually
async def test_a_request_that_would_be_answered_too_late_is_refused():
    async with open_pool(processes=1) as one:
        (link,) = one.links
        one.submit()
        timings = Timings(total_s=4.0)
        link.pace.time.learn(Finished(FinishReason.LENGTH, generated_tokens=8, timings=timings), LIMITS.rows)
        expected_s = 4.0 * 2 / LIMITS.rows
        assert one.pool.predicted_s(Caller()) == pytest.approx(expected_s)
        with pytest.raises(DeadlineTooSoon):
            one.submit(deadline_s=one.loop.time() + expected_s)
        assert len(link.receivers) == 1
        one.submit(deadline_s=one.loop.time() + 1.01 * MARGIN * expected_s)
        one.submit(max_tokens=1, deadline_s=one.loop.time() + expected_s)
        one.submit()  # no deadline
        assert len(link.receivers) == 4


@virtually
async def test_requests_beyond_rows_and_queue_of_every_process_are_refused_with_a_hint():
    async with open_pool() as one:
        for _ in range(2 * (LIMITS.rows + LIMITS.queued)):
            one.submit()
        for after_s in (0.0, 0.8):
            one.links[0].pace.count(1, one.loop.time() + after_s)
        with pytest.raises(Overloaded, match=r"^2 requests are waiting already; try again in 0\.8 s$") as caught:
            one.submit()
        assert caught.value.limit == LIMITS.queued
        assert caught.value.retry_after_s == pytest.approx(0.8)
        one.links[1].answers()
        one.submit()
        assert len(one.links[1].receivers) == LIMITS.rows + LIMITS.queued


@virtually
async def test_a_process_takes_requests_for_the_engines_that_it_has():
    """Fewer than planned on a device, more where the processor had to do."""
    async with open_pool(opened(engines=1), opened(engines=3)) as one:
        for _ in range(5 + 11):
            one.submit()
        assert [len(link.receivers) for link in one.links] == [5, 11]
        with pytest.raises(Overloaded):
            one.submit()


@virtually
async def test_one_tenant_cannot_fill_a_process_while_others_are_present():
    async with open_pool(processes=1) as one:
        one.submit(tenant="victim")
        one.submit(tenant="abuser")
        one.submit(tenant="abuser")
        with pytest.raises(TenantLimit, match="'abuser' already has its share of the 5 requests") as caught:
            one.submit(tenant="abuser")
        assert caught.value.limit == LIMITS.rows + LIMITS.queued
        one.submit(tenant="victim")
        one.submit(tenant="another")
        with pytest.raises(Overloaded):
            one.submit(tenant="victim")


@virtually
async def test_a_tenant_does_not_wait_for_the_whole_queue_of_another():
    async with open_pool(processes=1) as one:
        (link,) = one.links
        for tenant in ("abuser", "victim"):  # their answers take as long
            link.tenant_paces.learn(tenant, Finished(FinishReason.LENGTH, timings=Timings(total_s=0.3)), 3)
        for _ in range(5):
            one.submit(tenant="abuser")
        for after_s in (0.0, 50.0):  # from answer to answer
            link.pace.count(1, one.loop.time() + after_s)
        assert one.pool.predicted_s(Caller("abuser")) == pytest.approx(0.3 + 3 * 50.0)
        assert one.pool.predicted_s(Caller("victim")) == pytest.approx(0.3 * 2 / 3), "a row of the abuser's"
        assert one.pool.predicted_s(Caller("victim", weight=0.25)) == pytest.approx(0.3 + 2 * 50.0)
        assert one.pool.predicted_s(Caller("victim", priority=Priority.HIGH)) == 0.0, "no one goes before it"


@virtually
async def test_without_an_open_process_requests_are_refused_for_a_moment():
    async with open_pool(opened(), "waits", processes=1) as one:
        assert one.pool.is_ready
        one.links[0].dies()
        assert not one.pool.is_ready
        await asyncio.sleep(0.2)
        with pytest.raises(EngineUnavailable, match="no engine of model m runs; try again in 1 s") as caught:
            one.submit()
        assert caught.value.retry_after_s == RETRY_WITHOUT_ENGINE_S
        one.links[1].open(opened())
        await asyncio.sleep(0)
        assert one.pool.is_ready
        assert one.pool.problems() == []
        one.submit()
        assert one.links[1].requests == [request()]


@virtually
async def test_a_closing_pool_refuses_requests_and_ends_unfinished_ones():
    async with open_pool() as one:
        sinks = [one.submit() for _ in range(4)]
        closing = asyncio.create_task(one.pool.aclose())
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            one.submit()
        await closing
        assert [[type(event) for event in sink.events] for sink in sinks] == [[ShuttingDown]] * 4
        assert all(link.is_asked_to_close and link.child.is_waited_for for link in one.links)
        assert one.count("glossa_requests_finished_total", "shutting_down") == 4
        assert one.restarts == {}
        assert len(one.links) == 2, "nothing is started again"


@virtually
async def test_a_request_that_was_lost_gets_no_second_error_when_the_pool_closes():
    async with open_pool(processes=1) as one:
        one.links[0].dies()
        await asyncio.sleep(0.01)
        sink = one.submit()
        one.links[1].dies()
        await asyncio.sleep(0.01)
        await one.pool.aclose()  # in the delay before the next start
        assert [type(event) for event in sink.events] == [EngineUnavailable]
        assert len(one.links) == 2


@virtually
async def test_a_process_that_does_not_end_is_not_waited_for_long():
    async with open_pool(processes=1) as one:
        one.links[0].close = lambda: None
        sink = one.submit()
        began_s = one.loop.time()
        await one.pool.aclose()
        assert one.loop.time() - began_s < 20
        assert one.links[0].end_reason == "closed"
        assert [type(event) for event in sink.events] == [ShuttingDown]


@virtually
async def test_a_death_costs_the_requests_of_its_process_one_error_each(caplog):
    async with open_pool(opened(), opened(), "waits") as one:
        sinks = [one.submit() for _ in range(5)]
        one.links[0].dies()
        await asyncio.sleep(0)
        lost, others = sinks[::2], sinks[1::2]
        assert [[type(event) for event in sink.events] for sink in lost] == [[EngineUnavailable]] * 3
        assert {event.retry_after_s for sink in lost for event in sink.events} == {0.1}
        assert all(sink.events == [] for sink in others)
        await one.beat(1.0, one.links[1])
        assert (one.count("glossa_requests_finished_total", "engine_unavailable"), one.restarts) == (3, {"killed": 1})
        for sink in others:
            sink(END)
        new = one.submit()
        assert (new.events, len(one.links[1].requests)) == ([], 3), "only the one that runs takes requests"
        one.cancels[0]()
        assert fields_of(caplog, "engine_process_ended") == [
            {
                "process": "m-0",
                "reason": "killed",
                "how": "killed by SIGKILL",
                "lost_requests": 3,
                "restart_in_s": 0.0,
            }
        ]


@virtually
async def test_clients_of_the_only_process_wait_until_the_next_one_is_open():
    async with open_pool(processes=1) as one:
        sink = one.submit()
        one.links[0].dies()
        await asyncio.sleep(0)
        assert [event.retry_after_s for event in sink.events] == [RETRY_WITHOUT_ENGINE_S]


@virtually
async def test_a_sink_that_raises_costs_no_other_request_its_error_and_no_restart(caplog):
    async with open_pool(processes=1) as one:

        def broken(event):
            raise RuntimeError("no")

        one.pool.submit(request("a"), one.loop, broken)
        sink = one.submit("b")
        one.links[0].dies()
        await asyncio.sleep(0.2)
        assert [type(event) for event in sink.events] == [EngineUnavailable]
        assert fields_of(caplog, "sink_failed") == [{"process": "m-0"}]
        assert len(one.links) == 2
        assert one.pool.is_ready


@virtually
async def test_restarts_follow_at_once_and_then_after_growing_delays(caplog):
    async with open_pool(processes=1) as one:
        delays = [*RESTART_DELAYS_S, FAILING_DELAY_S]
        assert delays == [0.0, 0.1, 0.2, 0.5, 30.0]
        for number, delay_s in enumerate(delays):
            died_s = one.loop.time()
            one.links[-1].dies()
            await asyncio.sleep(0)
            problem = ["engine process m-0 ended 5 times within 60 s"] if number == 4 else []
            for _ in range(5):
                await asyncio.sleep(0)
            assert one.pool.problems() == problem
            await asyncio.sleep(delay_s + 0.001)
            assert one.start.calls[-1] == (pytest.approx(died_s + delay_s), 0, DIGEST)
            assert len(one.start.calls) == number + 2
            assert one.pool.problems() == [], "it runs"
        assert one.restarts == {"killed": 5}
        assert [fields["restart_in_s"] for fields in fields_of(caplog, "engine_process_ended")] == delays
        (failing,) = fields_of(caplog, "engine_process_failing")
        assert failing["process"] == "m-0"
        assert "glossa doctor BUNDLE" in failing["fix"]


@virtually
async def test_deaths_of_more_than_a_minute_ago_do_not_delay_a_restart(caplog):
    async with open_pool(processes=1) as one:
        for _ in range(6):
            one.links[-1].dies()
            await asyncio.sleep(0.01)
            await one.beat(61, one.links[-1])
        assert {fields["restart_in_s"] for fields in fields_of(caplog, "engine_process_ended")} == {0.0}
        assert fields_of(caplog, "engine_process_failing") == []


@virtually
async def test_each_place_has_delays_of_its_own(caplog):
    async with open_pool() as one:
        one.links[0].dies()
        one.links[1].dies()
        await asyncio.sleep(0.01)
        assert [fields["restart_in_s"] for fields in fields_of(caplog, "engine_process_ended")] == [0.0, 0.0]
        assert sorted(place for _, place, _ in one.start.calls) == [0, 0, 1, 1]


@virtually
async def test_a_changed_bundle_is_not_served_by_a_restart(caplog):
    caplog.set_level("INFO", "glossa")
    problem = "/m has another manifest than when the server started; fix: restart the server"
    async with open_pool(opened(), StartupError(problem), opened(), processes=1) as one:
        one.links[0].dies()
        await asyncio.sleep(0.05)
        assert [digest for _, _, digest in one.start.calls] == ["", DIGEST]
        assert not one.pool.is_ready
        assert fields_of(caplog, "engine_process_not_started") == [
            {"process": "m-0", "problem": problem, "restart_in_s": 0.1}
        ]
        assert one.links[1].end_reason == "not_started"
        await asyncio.sleep(0.1)
        assert one.pool.is_ready, "the bundle is the first one again"
        assert one.restarts == {"killed": 1, "not_started": 1}
        assert [fields["pid"] for fields in fields_of(caplog, "engine_process_started")] == [one.links[2].child.pid]


@virtually
async def test_a_program_that_cannot_be_started_is_started_again_later(caplog):
    async with open_pool(opened(), "no start", "no start", opened(), processes=1) as one:
        one.links[0].dies()
        await asyncio.sleep(1.0)
        assert one.pool.is_ready
        assert [delay["restart_in_s"] for delay in fields_of(caplog, "engine_process_not_started")] == [0.1, 0.2]
        assert one.restarts == {"killed": 1, "not_started": 2}


@virtually
async def test_a_process_that_ends_itself_is_told_from_a_killed_one(caplog):
    async with open_pool(processes=1) as one:
        one.links[0].end("exited")
        await asyncio.sleep(0.01)
        assert one.restarts == {"exited": 1}
        assert fields_of(caplog, "engine_process_ended")[0]["how"] == "exit status 1"


@virtually
async def test_a_process_that_breaks_the_protocol_is_started_again():
    async with open_pool() as one:
        sinks = [one.submit() for _ in range(2)]
        one.links[0].end("bad_message")
        await asyncio.sleep(0.01)
        assert [len(sink.finals) for sink in sinks] == [1, 0]
        assert one.restarts == {"bad_message": 1}


@virtually
async def test_a_start_fails_with_the_reason_of_the_process_that_refuses():
    one = Pool("waits", StartupError("graph broken; fix: export it again"), "waits", processes=3)
    with pytest.raises(StartupError, match=r"^graph broken; fix: export it again$"):
        await one.pool.open()
    assert [link.end_reason for link in one.links] == ["closed"] * 3
    assert all(link.child.is_waited_for for link in one.links), "none is left"
    assert not one.pool.is_ready


@virtually
async def test_a_start_without_the_means_for_all_processes_leaves_none():
    one = Pool("waits", "no start")
    with pytest.raises(StartupError, match="cannot be started"):
        await one.pool.open()
    assert [(link.end_reason, link.child.is_waited_for) for link in one.links] == [("closed", True)]


@virtually
async def test_processes_that_found_different_bundles_do_not_serve():
    one = Pool(opened(), opened(bundle_sha256="0" * 64))
    with pytest.raises(StartupError, match="its bundle changed while it was opened; fix: start again"):
        await one.pool.open()
    assert [link.end_reason for link in one.links] == ["closed"] * 2


@virtually
async def test_a_start_that_is_given_up_leaves_no_process():
    one = Pool("waits", "waits")
    opening = asyncio.create_task(one.pool.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert [link.child.is_waited_for for link in one.links] == [True, True]


@virtually
async def test_all_processes_must_find_answers_independent_of_their_batch():
    for invariant in (True, False):
        async with open_pool(opened(), opened(is_batch_invariant=invariant)) as one:
            assert one.pool.opened.is_batch_invariant == invariant


@virtually
async def test_what_is_reported_is_of_the_processes_that_run():
    async with open_pool(opened(), opened(), "waits") as one:
        for link, rows in zip(one.links, (3, 4), strict=True):
            link.beats(state(rows=rows))
            link.beat.memory.update(weights=10)
        assert [found.rows for found in one.pool.states] == [3, 4]
        assert one.pool.memory_bytes == {"weights": 20}
        one.links[0].dies()
        assert [found.rows for found in one.pool.states] == [4]
        assert one.pool.memory_bytes == {"weights": 10}
        assert {name: found is not None for name, found in one.pool.processes.items()} == {"m-0": False, "m-1": True}
        await asyncio.sleep(0.01)
        assert {name: found is not None for name, found in one.pool.processes.items()} == {"m-0": False, "m-1": True}


async def silent_for(one, link):
    """Seconds until the process of a link that says nothing is ended as hung; None: longer than its heartbeat may be
    old."""
    (other,) = set(one.links) - {link}
    began_s = one.loop.time()
    while link.end_reason is None and one.loop.time() - began_s < LIMITS.heartbeat_s - 1:
        await one.beat(0.1, other)
    assert other.end_reason is None
    assert link.end_reason in (None, "hung")
    return one.loop.time() - began_s if link.end_reason else None


@virtually
async def test_a_stopped_process_is_ended_within_a_second():
    async with open_pool() as one:
        one.links[0].beats(state(heartbeat_s=one.loop.time()))
        one.links[0].child.shown = Progress("T", 50)
        sink = one.submit()
        assert QUIET_S <= await silent_for(one, one.links[0]) <= QUIET_S + CHECK_S + 0.11
        assert [type(event) for event in sink.events] == [EngineUnavailable]
        assert one.links[0].child.was_killed
        assert one.restarts == {"hung": 1}


@pytest.mark.parametrize("shown", ["S", "D"])
@virtually
async def test_a_process_that_sleeps_and_does_nothing_is_ended(shown):
    async with open_pool() as one:
        one.links[0].beats(state(heartbeat_s=one.loop.time()))
        one.links[0].child.shown = Progress(shown, 50)
        least_s = QUIET_S + FROZEN_S[shown]
        assert least_s <= await silent_for(one, one.links[0]) <= least_s + 2 * CHECK_S + 0.11


def test_a_process_that_only_sleeps_is_noticed_within_a_second():
    assert QUIET_S + FROZEN_S["S"] + CHECK_S < 1.0
    assert IDLE_TURN_S + BEAT_S < QUIET_S  # an idle one that is well is never asked about


@pytest.mark.parametrize("has_request", [True, False])
@virtually
async def test_a_process_whose_engine_sleeps_in_a_turn_is_ended_although_it_reports(has_request):
    async with open_pool(processes=1) as one:
        link, began_s = one.links[0], one.loop.time()
        link.beats(state(heartbeat_s=began_s))
        if has_request:
            one.submit()
        link.child.shown = Progress("S", 50)
        while link.end_reason is None and one.loop.time() - began_s < LIMITS.heartbeat_s - 1:
            link.beats(state(heartbeat_s=began_s))
            await asyncio.sleep(0.05)
        assert link.end_reason == ("hung" if has_request else None)
        assert not has_request or one.loop.time() - began_s < 1.0


@virtually
async def test_a_process_that_waits_for_a_processor_is_not_ended():
    async with open_pool() as one:
        one.links[0].beats(state(heartbeat_s=one.loop.time()))
        one.links[0].child.shown = Progress("R", 50)
        assert await silent_for(one, one.links[0]) is None


@virtually
async def test_a_silent_process_that_uses_processor_time_is_not_ended():
    async with open_pool() as one:
        link, ticks = one.links[0], iter(range(10_000))
        link.beats(state(heartbeat_s=one.loop.time()))
        link.child.progress = lambda: Progress("S", next(ticks))
        assert await silent_for(one, link) is None


@virtually
async def test_a_process_that_has_just_ended_is_not_called_hung():
    async with open_pool() as one:
        one.links[0].beats(state(heartbeat_s=one.loop.time()))
        one.links[0].child.shown = None
        assert await silent_for(one, one.links[0]) is None


@virtually
async def test_a_process_that_says_nothing_for_the_heartbeat_timeout_is_ended():
    async with open_pool(processes=1) as one:
        one.links[0].beats(state(heartbeat_s=one.loop.time() + 100))
        one.links[0].child.shown = Progress("R", 50)
        await asyncio.sleep(LIMITS.heartbeat_s - 1)
        assert one.links[0].end_reason is None
        await asyncio.sleep(2)
        assert one.links[0].end_reason == "hung"


@virtually
async def test_a_process_with_one_engine_that_does_not_turn_is_ended():
    async with open_pool(processes=1) as one:
        link, began_s = one.links[0], one.loop.time()
        while link.end_reason is None and one.loop.time() < 100:
            link.beats(state(heartbeat_s=one.loop.time()), state(heartbeat_s=began_s))
            await asyncio.sleep(0.1)
        assert link.end_reason == "hung"
        assert LIMITS.heartbeat_s < one.loop.time() - began_s < LIMITS.heartbeat_s + 2 * CHECK_S


@virtually
async def test_a_process_with_an_engine_that_failed_is_ended():
    async with open_pool(processes=1) as one:
        one.links[0].beats(state(heartbeat_s=one.loop.time()), state(is_healthy=False, heartbeat_s=one.loop.time()))
        await asyncio.sleep(2 * CHECK_S)
        assert one.restarts == {"engine_failed": 1}


@virtually
async def test_a_late_event_loop_is_not_mistaken_for_processes_that_hang():
    async with open_pool() as one:
        await one.beat(1.0, *one.links)
        for link in one.links:
            link.child.shown = Progress("T", 50)
        for _ in range(5):
            stall(LIMITS.heartbeat_s + 5)
            await asyncio.sleep(0)  # the check comes before what the processes have sent meanwhile is read
            for link in one.links:
                link.beats(state(heartbeat_s=one.loop.time()))
            await one.beat(1.0, *one.links)
        assert [link.end_reason for link in one.links] == [None, None]


@virtually
async def test_a_process_that_is_being_started_may_be_silent():
    async with open_pool(opened(), "waits", processes=1) as one:
        one.links[0].dies()
        await asyncio.sleep(LIMITS.heartbeat_s + 5)
        assert one.links[1].end_reason is None


FALLBACK = ExecutionChoice("CPUExecutionProvider", "auto", True, "CUDA error 700; fix: reset it", "fp32")


@virtually
async def test_a_restart_that_a_device_refuses_is_served_elsewhere_and_told(caplog):
    on_cuda = ExecutionChoice("CUDAExecutionProvider", "auto", False, "", "fp16")
    async with open_pool(opened(choice=on_cuda), opened(choice=FALLBACK), processes=1) as one:
        one.links[0].dies()
        await asyncio.sleep(0.1)
        assert one.pool.is_ready
        (told,) = fields_of(caplog, "provider_fallback")
        assert (told["provider"], told["reason"]) == ("CPUExecutionProvider", "CUDA error 700; fix: reset it")


@virtually
async def test_a_model_shows_where_it_runs_after_each_restart():
    on_cuda = ExecutionChoice("CUDAExecutionProvider", "auto", False, "", "fp16", captures=True)
    moves = [opened(choice=on_cuda), opened(choice=FALLBACK, engines=6), opened(choice=on_cuda)]
    async with open_pool(*moves, processes=1) as one:
        model = served("m", one.pool)
        follow_choice(model, one.pool, one.metrics.model("m").open(""))
        for choice, engines in ((on_cuda, 1), (FALLBACK, 6), (on_cuda, 1)):
            shown = describe(model, TextLimits())
            assert (shown.execution_provider.provider, shown.precision) == (choice.provider, choice.precision)
            assert (shown.execution_provider.reason, shown.engines) == (choice.reason, engines)
            text = one.metrics.render().decode()
            (gauge,) = re.findall(r"^glossa_execution_provider_info\{(.*)\} 1\.0$", text, re.MULTILINE)
            assert f'fallback="{int(choice.fallback)}"' in gauge
            assert f'provider="{choice.provider}"' in gauge
            assert len(re.findall(r"^glossa_model_info\{", text, re.MULTILINE)) == 1
            one.links[-1].dies()
            await asyncio.sleep(0.3)


@virtually
async def test_answers_are_not_kept_beyond_a_move_or_where_processes_differ(caplog):
    on_cuda = ExecutionChoice("CUDAExecutionProvider", "auto", False, "", "fp16")
    async with open_pool(opened(choice=on_cuda), opened(choice=FALLBACK), processes=1) as one:
        model, metrics = served("m", one.pool), one.metrics.model("m").open("")
        follow_choice(model, one.pool, metrics)
        cache = AnswerCache(1 << 22, one.metrics.answer_cache)
        keep_answers(model, one.pool, cache, metrics)
        assert model.kept_answers is not None
        one.links[0].dies()
        await asyncio.sleep(0.1)
        assert model.kept_answers is None
        for changes in ({"is_batch_invariant": False}, {"draft_tokens": 4}):
            other = served("m", one.pool, **changes)
            keep_answers(other, one.pool, cache, metrics)
            assert (other.kept_answers, describe(other, TextLimits()).answers_not_kept) == (None, other.unrepeatable)
    async with open_pool(opened(choice=on_cuda), opened(choice=FALLBACK)) as one:
        model = served("m", one.pool)
        keep_answers(model, one.pool, cache, metrics)
        assert model.kept_answers is None
    reasons = [told["reason"] for told in fields_of(caplog, "answers_not_cached")]
    assert [reason.split()[0] for reason in reasons] == ["its", "on", "with", "its"]


@virtually
@pytest.mark.parametrize("place", [0, 1])
async def test_one_process_that_its_device_failed_shows_in_the_choice_of_the_model(place):
    choices = [opened(), opened()]
    choices[place] = opened(choice=FALLBACK)
    async with open_pool(*choices) as one:
        assert one.pool.choice == FALLBACK
