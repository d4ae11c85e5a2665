import threading
import time

import pytest

from service.fair_executor import FairExecutor

WITHIN_S = 60


@pytest.fixture
def executor():
    found = FairExecutor(2, "test", rest=0.0)
    yield found
    found.close()


class Gates:
    """Tasks that run until they are let go. begun: their names, in order."""

    def __init__(self, executor):
        self.executor, self.begun, self.changed = executor, [], threading.Condition()
        self.gates, self.futures = {}, {}

    def submit(self, tenant, name):
        gate = self.gates[name] = threading.Event()

        def task():
            with self.changed:
                self.begun.append(name)
                self.changed.notify_all()
            assert gate.wait(WITHIN_S)
            return name

        self.futures[name] = self.executor.submit(tenant, task)

    def until_begun(self, *names):
        with self.changed:
            assert self.changed.wait_for(lambda: set(names) <= set(self.begun), WITHIN_S), self.begun

    def end(self, *names):
        for name in names:
            self.gates[name].set()
            assert self.futures[name].result(WITHIN_S) == name


def test_results_and_errors_come_back(executor):
    assert executor.submit("a", lambda: 7).result(WITHIN_S) == 7
    with pytest.raises(ZeroDivisionError):
        executor.submit("a", lambda: 1 / 0).result(WITHIN_S)
    assert executor.submit("a", threading.current_thread).result(WITHIN_S).name.startswith("test-")


def test_a_tenant_that_is_alone_uses_all_threads(executor):
    gates = Gates(executor)
    gates.submit("a", "a1")
    gates.submit("a", "a2")
    gates.until_begun("a1", "a2")
    gates.end("a1", "a2")


def test_a_tenant_among_others_runs_one_task_at_a_time(executor):
    gates = Gates(executor)
    for name in ("a1", "a2", "a3", "a4"):
        gates.submit("a", name)
    gates.until_begun("a1", "a2")
    for name in ("b1", "b2"):
        gates.submit("b", name)
    gates.end("a1")
    gates.until_begun("b1")
    gates.end("b1")
    gates.until_begun("b2")
    assert gates.begun == ["a1", "a2", "b1", "b2"], "one of two threads stays with a"
    gates.end("b2")
    gates.end("a2", "a3", "a4")


def test_tenants_take_turns():
    executor = FairExecutor(1, "test", rest=0.0)
    gates = Gates(executor)
    gates.submit("a", "a1")
    gates.until_begun("a1")
    for name in ("a2", "a3", "b1", "b2", "c1"):
        gates.submit(name[0], name)
    for name in ("a1", "a2", "b1", "c1", "a3", "b2"):
        gates.until_begun(name)
        gates.end(name)
    assert gates.begun == ["a1", "a2", "b1", "c1", "a3", "b2"]
    executor.close()


def test_a_cancelled_task_does_not_begin(executor):
    gates = Gates(executor)
    for name in ("a1", "a2", "a3", "a4"):
        gates.submit("a", name)
    gates.until_begun("a1", "a2")
    assert gates.futures["a3"].cancel()
    assert not gates.futures["a1"].cancel()
    gates.end("a1", "a2", "a4")
    assert "a3" not in gates.begun


def test_close_cancels_what_has_not_begun_and_ends_the_threads(executor):
    gates = Gates(executor)
    for name in ("a1", "a2", "a3"):
        gates.submit("a", name)
    gates.until_begun("a1", "a2")
    executor.close()
    assert gates.futures["a3"].cancelled()
    gates.end("a1", "a2")
    for thread in executor._threads:
        thread.join(WITHIN_S)
        assert not thread.is_alive()


def burn(seconds):
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def test_a_tenant_among_others_rests_after_its_tasks():
    executor = FairExecutor(2, "test", rest=9.0)
    executor.see("victim")
    began_s = time.monotonic()
    ends = [executor.submit("abuser", lambda: burn(0.01)) for _ in range(4)]
    assert executor.submit("victim", time.monotonic).result(WITHIN_S) - began_s < WITHIN_S
    for end in ends:
        end.result(WITHIN_S)
    assert time.monotonic() - began_s > 4 * 0.01 + 3 * 0.09
    executor.close()


def test_a_tenant_that_is_alone_does_not_rest():
    executor = FairExecutor(1, "test", rest=1e6)
    for _ in range(3):
        executor.submit("a", lambda: burn(0.001)).result(WITHIN_S)
    executor.close()


def test_tenants_that_have_rested_are_forgotten():
    executor = FairExecutor(1, "test", rest=0.0)
    for number in range(200):
        executor.submit(f"t{number}", lambda: None).result(WITHIN_S)
    executor.submit("last", lambda: None).result(WITHIN_S)
    executor.close()
    executor._threads[0].join(WITHIN_S)
    assert len(executor._rested) <= 2
    assert not executor._running
    assert not executor._waiting


def test_a_thread_outlives_a_task_whose_end_is_no_exception(executor):
    def panic():
        raise BaseException("panic")

    for _ in range(3):  # more than there are threads
        with pytest.raises(RuntimeError, match="panic"):
            executor.submit("a", panic).result(WITHIN_S)
    assert executor.submit("a", lambda: 1).result(WITHIN_S) == 1
