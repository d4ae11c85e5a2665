"""The simulated fleet: its queues are those of theory, its balancers know what they should, nothing is lost."""

import statistics

import pytest

from bench.simulation import fleet as simulation
from bench.simulation.fleet import FAILED, OK, POLICIES, REFUSED, SPEEDS, Autoscaler, Fleet, capacity, lose_zone, reload

PACE_S = 0.02, 0.02


def run(policy, count=20, load=0.7, seconds=25.0, prepare=lambda _: None, pace_s=PACE_S):
    fleet = Fleet(policy, count, pace_s)
    prepare(fleet)
    rate = load * capacity(count, pace_s)
    fleet.run(lambda _: rate, seconds)
    return fleet


def p99(fleet):
    return sorted(fleet.answered)[int(0.99 * len(fleet.answered))]


def test_one_queue_is_that_of_processor_sharing():
    """Kleinrock: the mean of a queue that shares one processor is 1 / (mu - lambda), whatever the lengths are."""
    fleet = run("round robin", count=1, load=0.5, seconds=1500.0, pace_s=(0.0, 0.05))
    assert statistics.fmean(fleet.answered) == pytest.approx(1 / (20 - 10), rel=0.06)


def test_more_than_the_rows_wait_and_more_than_the_queue_are_refused(monkeypatch):
    monkeypatch.setattr(simulation, "QUEUE", 8)
    fleet = run("round robin", count=1, load=2.0, seconds=60.0)
    answered = fleet.ends[OK] / (60 - simulation.SETTLE_S)
    assert answered == pytest.approx(capacity(1, PACE_S), rel=0.1)
    assert fleet.ends[REFUSED] == pytest.approx(fleet.ends[OK], rel=0.15)
    assert len(fleet.replicas[0].waiting) <= 8


def test_round_robin_is_even_and_weights_follow_speeds():
    even, weighted = run("round robin"), run("weighted")
    for fleet, by_speed in ((even, False), (weighted, True)):
        calls: dict[float, list[int]] = {speed: [] for speed in SPEEDS}
        for replica in fleet.replicas:
            calls[replica.speed0].append(replica.meter.load.calls)
        ratio = statistics.fmean(calls[1.0]) / statistics.fmean(calls[0.5])
        assert (1.5 < ratio < 2.7) if by_speed else ratio < 1.25
    assert p99(weighted) < 0.6 * p99(even)


def test_least_request_is_better_than_turns():
    assert p99(run("least request")) < 0.7 * p99(run("round robin"))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_lost_zone_costs_what_it_has_and_what_it_gets_until_it_is_noticed(policy):
    fleet = run(policy, load=0.4, prepare=lose_zone)
    lost = fleet.ends[FAILED] / fleet.ends.total()
    assert 0.3 * simulation.UNNOTICED_S / (25 - simulation.SETTLE_S) * 0.5 < lost < 0.12
    assert not any(replica.rows for replica in fleet.replicas[::3])
    assert len(fleet.listed) == 20 - len(fleet.replicas[::3])


def test_a_reload_slows_each_replica_once():
    fleet = Fleet("weighted", 20, PACE_S)
    seconds, slow = reload(fleet), []
    for at in range(int(seconds)):
        fleet.at(at + 0.5, lambda: slow.append(sum(one.speed < one.speed0 for one in fleet.replicas)))
    fleet.run(lambda _: 10.0, seconds)
    assert max(slow) == 4
    assert sum(slow) == pytest.approx(20 * simulation.RELOAD_S, abs=8)
    assert all(replica.speed == replica.speed0 for replica in fleet.replicas)


def test_the_autoscaler_follows_the_chart():
    fleet = Fleet("least request", 4, (0.0, 0.5))
    scaler = Autoscaler(fleet)
    fleet.run(lambda now_s: 12.0 if now_s < 200 else 0.1, 1200.0)
    assert scaler.counts[0] == 4
    assert max(scaler.counts) > 4
    assert scaler.counts[-1] == len(fleet.listed) == 2
