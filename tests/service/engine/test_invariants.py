from bench.simulation.invariants import check_invariants
from tests.fakes import ScriptedRunner
from tests.scheduling import Bench, never_ends, request


def test_invariants_notice_broken_state():
    def broken(change):
        bench = Bench(ScriptedRunner(rule=never_ends))
        bench.submit(request("a"), request("b"))
        bench.turn()
        change(bench.scheduler)
        return check_invariants(bench.scheduler)

    assert broken(lambda scheduler: None) == []
    assert broken(lambda scheduler: scheduler.waiting.put(scheduler.live[0]))
    assert broken(lambda scheduler: setattr(scheduler.live[0], "slot", 3))
    assert broken(lambda scheduler: scheduler.parking.park(scheduler.live[0]))
    assert broken(lambda scheduler: scheduler.live.append(scheduler.live[0]))
    assert broken(lambda scheduler: scheduler.live[0].hypotheses[0].tokens.append(3))
    assert broken(lambda scheduler: scheduler.live.pop())
    assert broken(lambda scheduler: setattr(scheduler.live[0], "num_computed", 99))
    assert broken(lambda scheduler: setattr(scheduler.live[0], "rows", (1,)))
    assert broken(lambda scheduler: setattr(scheduler.live[0].hypotheses[0], "row", 1))
    assert broken(lambda scheduler: setattr(scheduler.live[0], "committed_tokens", [99]))
    assert broken(lambda scheduler: setattr(scheduler.live[0], "width", 0))
    assert broken(lambda scheduler: scheduler.live[0].hypotheses.clear())


def test_invariants_notice_drafts_beyond_the_configuration():
    bench = Bench(ScriptedRunner(rule=never_ends))
    (row,) = bench.submit(request())
    bench.turn()
    row.draft_tokens = (5,)
    assert check_invariants(bench.scheduler) == ["r: drafts 1 tokens in rows (0,)"]
