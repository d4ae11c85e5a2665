"""What the measurement of replicas concludes from calls and faults."""

import pytest

from bench.promises.replicas import MOST_S, Call, Fault, figures_of, verdicts_of

FAULTS = [Fault("kill -9", 10.0, 20.0, 5.0), Fault("SIGTERM of replica 1", 30.0, 40.0, 6.0)]
CALLS = [Call(False, "OK", "", False, at, at + 0.5) for at in (1.0, 12.0, 25.0, 35.0)]


def call(code, began_s, *, is_stream=False, had_begun=False):
    return Call(is_stream, code, "lost", had_begun, began_s, began_s + 1)


def missed(*more, least=4, faults=FAULTS):
    return [verdict.measure for verdict in verdicts_of("shipped", [*CALLS, *more], faults, least) if not verdict.met]


@pytest.mark.parametrize(
    "fine",
    [
        (),
        (call("OK", 35.0, is_stream=True, had_begun=True),),
        (call("UNAVAILABLE", 12.0, is_stream=True, had_begun=True),),  # a stream that the kill cut
    ],
)
def test_what_nothing_can_repeat_is_no_miss(fine):
    assert missed(*fine) == []


@pytest.mark.parametrize(
    ("more", "options", "measure"),
    [
        ((call("UNAVAILABLE", 2.0),), {}, "shipped: unary calls that failed"),
        ((call("UNAVAILABLE", 35.0, is_stream=True, had_begun=True),), {}, "shipped: streams that a drain cut"),
        ((call("UNAVAILABLE", 12.0, is_stream=True),), {}, "shipped: streams that failed before their first message"),
        ((), {"least": 5}, "shipped: unary calls"),
        ((), {"faults": [FAULTS[0]._replace(balanced_s=MOST_S)]}, "shipped: longest until load is balanced"),
    ],
)
def test_anything_else_is_a_miss(more, options, measure):
    assert missed(*more, **options) == [measure]


def test_each_fault_has_the_calls_that_ran_during_it():
    rows = figures_of("naive", [*CALLS, call("INTERNAL", 13.0)], FAULTS)
    assert rows == {
        "naive, kill -9": "2 calls, 1 failed, 0 streams cut, longest 1.0 s, balanced after 5.0 s",
        "naive, SIGTERM of replica 1": "1 calls, 0 failed, 0 streams cut, longest 0.5 s, balanced after 6.0 s",
        "naive, between faults": "2 calls, 0 failed, 0 streams cut, longest 0.5 s",
        "naive, failed with 'INTERNAL: lost'": 1,
    }
