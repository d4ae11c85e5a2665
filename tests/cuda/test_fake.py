"""The fake CUDA does the worst that CUDA permits: it executes late, and refuses what captures prohibit."""

import json

import pytest

NO_DEVICE, INSUFFICIENT_DRIVER, OUT_OF_MEMORY, INVALID_VALUE = 100, 35, 2, 1
INVALID_HANDLE, NOT_READY, ILLEGAL_ADDRESS = 400, 600, 700
UNSUPPORTED_IN_CAPTURE, INVALIDATED, IMPLICIT = 900, 901, 906
BROKEN = {"call": UNSUPPORTED_IN_CAPTURE, "recorded": INVALIDATED, "ended": INVALIDATED, "illegal": 1}
WHOLE = {"call": 0, "recorded": 0, "ended": 0, "illegal": 0}


@pytest.fixture
def outcome(run_fake):
    """What a program of `semantics` returns under settings of the fake."""

    def run(program, **settings):
        return json.loads(run_fake("-m", "tests.cuda.semantics", program, **settings))

    return run


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("read_pinned_too_early", [1, 7]),
        ("overwrite_pinned_too_early", 9),
        ("overwrite_staged", 1),
        ("copy_to_pageable", 7),
        ("queries", [NOT_READY, NOT_READY, NOT_READY, 0]),
        ("events", [0, 5]),
        ("destroyed_stream", [INVALID_HANDLE, 5]),
    ],
)
def test_streams_execute_only_when_something_waits(outcome, program, expected):
    assert outcome(program) == expected


def test_an_eager_stream_hides_a_missing_synchronization(outcome):
    assert outcome("read_pinned_too_early", EAGER=1) == [7, 7]


def test_streams_that_do_not_block_run_past_the_null_stream(outcome):
    assert outcome("null_stream") == {"not blocking": 0, "not blocking, settled": 5, "blocking": 5}


def test_the_null_stream_waits_for_blocking_streams_alone(outcome):
    assert outcome("null_stream_waits") == [5, 0]


def test_a_graph_is_executed_when_it_is_launched(outcome):
    assert outcome("replay") == [0, 3, 4]


def test_a_graph_that_writes_freed_memory_fails_the_device(outcome):
    assert outcome("replay_after_free") == ILLEGAL_ADDRESS


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("capture_and_malloc", BROKEN),
        ("capture_and_wait", BROKEN),
        ("relaxed_capture_and_malloc", WHOLE),
        ("capture_and_launch", WHOLE),
    ],
)
def test_a_capture_prohibits_unsafe_calls_of_every_thread(outcome, program, expected):
    assert outcome(program) == expected


def test_a_captured_stream_cannot_be_waited_for(outcome):
    assert outcome("capture_waits_for_itself") == INVALIDATED


def test_the_null_stream_cannot_be_used_while_a_blocking_stream_is_captured(outcome):
    assert outcome("capture_of_blocking_stream") == [IMPLICIT, INVALIDATED]


def test_memory_is_limited(outcome):
    assert outcome("out_of_memory", MEMORY_BYTES=1000) == [OUT_OF_MEMORY, 0]


def test_copies_outside_of_allocations_are_refused(outcome):
    assert outcome("impossible_copies") == [INVALID_VALUE] * 3


def test_a_failure_lasts(outcome):
    assert outcome("failed_call") == [0, ILLEGAL_ADDRESS, ILLEGAL_ADDRESS, 0]
    assert outcome("failed_launch") == [0, 0, ILLEGAL_ADDRESS, ILLEGAL_ADDRESS]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"DEVICES": 3}, [0, 3]), ({"DEVICES": 0}, [NO_DEVICE, 0]), ({"DRIVER": 12080}, [INSUFFICIENT_DRIVER, 0])],
)
def test_devices_and_driver_are_settings(outcome, settings, expected):
    assert outcome("num_devices", **settings) == expected


@pytest.mark.parametrize(
    ("names", "count"), [("0,1,2", 3), ("2", 1), ("1,0", 2), ("0,7,1", 1), ("7", 0), ("", 0), ("-1", 0), ("GPU-1", 0)]
)
def test_a_process_sees_the_devices_that_it_may_see(outcome, monkeypatch, names, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert outcome("num_devices", DEVICES=3) == [0 if count else NO_DEVICE, count]


def test_a_broken_device_fails_in_every_process_that_sees_it_until_it_is_sound(outcome, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert outcome("launch", DEVICES=2, BROKEN=tmp_path) == [0, 0]
    (tmp_path / "1").touch()
    assert outcome("launch", DEVICES=2, BROKEN=tmp_path) == [0, ILLEGAL_ADDRESS]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert outcome("launch", DEVICES=2, BROKEN=tmp_path) == [0, 0]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert outcome("launch", DEVICES=2, BROKEN=tmp_path) == [0, 0]
    (tmp_path / "1").unlink()
    (tmp_path / "0").touch()
    assert outcome("launch", DEVICES=2, BROKEN=tmp_path) == [0, ILLEGAL_ADDRESS]


def test_the_log_tells_calls_in_order(outcome, tmp_path):
    outcome("replay", LOG=tmp_path / "log")
    lines = [line.split("\t")[2] for line in (tmp_path / "log").read_text().splitlines()]
    assert lines.index("capture begins") < lines.index("capture ends") < lines.index("graph")
