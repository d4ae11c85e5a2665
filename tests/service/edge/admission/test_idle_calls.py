"""Calls with nothing in flight: which of them makes room for others."""

import contextlib

import pytest

from service.edge.admission.idle_calls import IDLE_S, MIN_IDLE, IdleCalls


class Waiting:
    """Calls that wait until they are ended, by their names."""

    def __init__(self):
        self.now_s, self.ended = 0.0, []
        self.idle = IdleCalls(4, lambda: self.now_s)
        self.stack = contextlib.ExitStack()

    def enter(self, name, peer, tenant=""):
        def end(error):
            assert error.reason == "MESSAGES_MISSING"
            self.ended.append(name)

        return self.stack.enter_context(self.idle.waiting(peer, tenant, end))


@pytest.fixture
def waiting():
    one = Waiting()
    with one.stack:
        yield one
    assert len(one.idle) == 0


def test_the_call_that_has_waited_longest_of_the_largest_connection_makes_room(waiting):
    waiting.enter("honest", "a")
    for number in range(MIN_IDLE - 1):
        waiting.enter(number, "b", tenant=str(number))
    waiting.now_s = 2 * IDLE_S
    for number in range(3):
        waiting.enter(f"further {number}", "b")
    assert waiting.ended == [0, 1, 2]
    assert len(waiting.idle) == MIN_IDLE


def test_a_tenant_with_many_connections_has_one_share(waiting):
    waiting.enter("honest", "a", "other")
    for number in range(MIN_IDLE - 1):
        waiting.enter(number, f"connection {number % 8}", "many")
    waiting.now_s = 2 * IDLE_S
    waiting.enter("further", "z", "third")
    assert waiting.ended == [0]


def test_a_busy_client_keeps_its_calls(waiting):
    for number in range(MIN_IDLE):
        waiting.enter(number, "a")
    waiting.now_s = IDLE_S / 2
    waiting.enter("further", "b")
    assert waiting.ended == []


def test_a_call_that_waits_no_longer_is_not_ended(waiting):
    with waiting.idle.waiting("a", "", lambda error: waiting.ended.append("left")):
        pass
    waiting.now_s = 2 * IDLE_S
    waiting.idle.make_room()
    assert waiting.ended == []
