import pytest

from service.edge.admission.request_memory import (
    ANSWER_FACTOR,
    CALL_BYTES,
    MESSAGE_FACTOR,
    RequestMemory,
    Reservation,
    SpareMemory,
    answer_bytes,
    message_bytes,
)
from service.errors import MemoryLimit
from service.memory.memory_prediction import ATTENTION_FACTOR
from service.request import Caller

A, B = Caller("a"), Caller("b")


def memory(limit_bytes=1000, now_s=0.0):
    return RequestMemory(limit_bytes, 0.8, lambda: now_s)


def test_costs_by_hand():
    assert message_bytes(100) == CALL_BYTES + 100 * MESSAGE_FACTOR
    assert answer_bytes(24, 1000) == 24 * ANSWER_FACTOR + 1000 * ATTENTION_FACTOR


def test_what_fits_is_reserved_until_it_is_released():
    of_all = memory()
    first, second = Reservation(of_all, A), Reservation(of_all, A)
    first.grow(600)
    second.grow(400)
    assert of_all.reserved_bytes == 1000
    with pytest.raises(MemoryLimit, match=r"may take 1 bytes of memory, more than what is free of the 1000"):
        Reservation(of_all, A).grow(1)
    first.release()
    assert (of_all.reserved_bytes, first.size) == (400, 0)
    first.release()
    assert of_all.reserved_bytes == 400, "nothing is given back twice"
    second.grow(600)
    assert second.size == 1000


def test_a_refused_part_leaves_the_first_part_reserved():
    of_all = memory()
    call, other = Reservation(of_all, A), Reservation(of_all, A)
    other.grow(500)
    call.grow(300)
    with pytest.raises(MemoryLimit):
        call.grow(201)
    assert (call.size, of_all.reserved_bytes) == (300, 800)
    call.release()
    assert of_all.reserved_bytes == 500


def test_a_call_larger_than_the_limit_runs_alone():
    of_all = memory()
    call = Reservation(of_all, A)
    call.grow(100)
    call.grow(5000)
    assert call.size == 1000
    call.release()
    other = Reservation(of_all, A)
    other.grow(1)
    with pytest.raises(MemoryLimit):
        call.grow(5000)


def test_a_tenant_among_others_leaves_room_for_them():
    of_all = memory()
    Reservation(of_all, B).grow(0)  # is present
    greedy = Reservation(of_all, A)
    for _ in range(80):
        greedy.grow(10)
    with pytest.raises(MemoryLimit, match=r"more than a tenant's share of the 1000"):
        greedy.grow(10)
    Reservation(of_all, B).grow(100)


def test_spare_memory_is_half_of_what_others_leave_and_shows_no_tenant():
    of_all = memory()
    spare, other = Reservation(SpareMemory(of_all), A), Reservation(of_all, B)
    other.grow(200)
    with pytest.raises(MemoryLimit, match="301 bytes are more than half of the memory for requests leaves"):
        spare.grow(301)
    spare.grow(300)
    other.grow(500)
    assert of_all.reserved_bytes == 1000, "B is alone: A does not count as present"
    spare.release()
    assert of_all.reserved_bytes == 700
