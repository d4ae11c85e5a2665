"""Turns that are launched before the last one was read, with a scripted runner that computes them at once.

`bench simulate` runs every second of its seeds so; `tests/cuda/test_run_ahead.py` shows the same of a device."""

import random
from typing import Any

import pytest

from service.engine import run_ahead
from service.engine.run_ahead import can_run_ahead, inputs, place
from service.errors import Cancelled, InternalFailure
from service.memory.cache_layout import CacheLayout
from service.options import DecodingOptions
from service.request import Finished
from service.step import Burst, Moves, Plain, Prompts, Ranked, TurnOutput
from tests.engines import engine_limits, never_ends, request
from tests.fakes import ScriptedOutputs, ScriptedRunner, Sink, scripted_answer
from tests.scheduling import Bench

BEAM = DecodingOptions(beam_size=2)
SAMPLED = DecodingOptions(temperature=1.0)


class ScriptedAheadRunner(ScriptedRunner):
    """See `service.step.AheadRunner`. fail_late: numbers of runs that fail when they are collected. behind: of each
    turn that was collected, how many had been launched behind it. steps: of each turn."""

    def __init__(self, **more):
        super().__init__(**more)
        self.fail_late: set[int] = set()
        self.behind: list[int] = []
        self.steps: list[int] = []
        self._launched: list[Any] = []
        self._best: list[int] = []

    def reset(self):
        super().reset()
        self._launched.clear()

    def launch(self, plan):
        step, tokens = plan.decode, list(plan.decode.tokens)
        self.steps.append(1 + step.more)
        for row, line in step.fed:
            tokens[row] = self._best[line]
        output = self._step(plan, tokens, step.starts)
        ids, scores, rows = list(output.predictions.top_ids), list(output.predictions.top_logprobs), plan.shape.rows
        later = plan._replace(rows_before=rows, moves=Moves(), new_rows=(), prompts=Prompts())
        for number in range(1, 1 + step.more):
            starts = [start + number * (row not in step.still) for row, start in enumerate(step.starts)]
            following = self._step(later, self._best, starts).predictions
            ids += following.top_ids
            scores += following.top_logprobs
        best = [line[0] for line in ids]
        if step.more:
            output.bursts = {row: Burst(best[row:-rows:rows], range(row, len(ids), rows)) for row in range(rows)}
        output.predictions = Ranked(ids, scores, range(rows), output.predictions.deferred)
        self._launched.append((output, self.runs))

    def _step(self, plan, tokens, starts):
        self.guessed = set(range(len(self.rows)))  # any row may repeat its input
        step = plan.decode._replace(tokens=tuple(tokens), starts=tuple(starts))
        output = self.run(plan._replace(decode=step, top_k=max(1, plan.top_k)))  # a device ranks always
        self._best = [output.predictions.best(row) for row in range(plan.step_rows)]
        return output

    def collect(self):
        output, number = self._launched.pop(0)
        self.behind.append(len(self._launched))
        if number in self.fail_late:
            self.is_broken = True
            raise RuntimeError(f"scripted failure of run {number}")
        return output


def asked(manual, *requests, runner=None, **limits):
    """The engine, its loop and a sink for each request; nothing has been computed."""
    engine, loop = manual(runner or ScriptedAheadRunner(), engine_limits(**limits))
    sinks = [Sink() for _ in requests]
    for one, sink in zip(requests, sinks, strict=True):
        engine.submit(one, loop, sink)
    return engine, loop, sinks


def turned(engine, loop, turns):
    for _ in range(turns):
        engine.turn()
    loop.run()


def test_a_row_that_follows_the_best_token_goes_on_before_it_is_read(manual):
    runner = ScriptedAheadRunner(rule=never_ends)
    engine, loop, (sink,) = asked(manual, request(max_tokens=6), runner=runner)
    turned(engine, loop, 9)
    assert list(sink.finals[0].hypotheses[0].tokens) == scripted(request(max_tokens=6))
    assert [plan.decode.fed for plan in runner.plans] == [(), *[((0, 0),)] * 5]
    assert [plan.decode.starts for plan in runner.plans] == [(place,) for place in range(6)]
    assert runner.behind == [1] * 5 + [0], "the last token is known to be the last"


def scripted(asked, rule=never_ends):
    """A greedy answer under a rule."""
    tokens: list[int] = []
    while len(tokens) < asked.max_tokens:
        tokens.append(rule(asked.source, (*asked.prompt, *tokens), 24))
    return tokens


def test_an_end_is_noticed_one_turn_late_and_what_was_computed_is_dropped(manual):
    runner = ScriptedAheadRunner()
    one = next(made for seed in range(99) if 2 < len(scripted_answer(made := request(source=(seed, 2)))) < 8)
    engine, loop, (sink,) = asked(manual, one, runner=runner)
    turned(engine, loop, 12)
    assert list(sink.finals[0].hypotheses[0].tokens) == scripted_answer(one)
    assert runner.runs == len(scripted_answer(one)) + 1
    assert engine.snapshot.rows == 0


@pytest.mark.parametrize("options", [BEAM, SAMPLED], ids=["beam", "sampled"])
def test_rows_that_need_their_last_turn_repeat_their_input(manual, options):
    """Beside one that goes on they take every second turn; alone they wait for none."""
    runner = ScriptedAheadRunner(rule=never_ends)
    free, other = request("free", max_tokens=9), request("other", source=(9, 8, 7, 2), max_tokens=3, options=options)
    engine, loop, sinks = asked(manual, free, other, runner=runner)
    turned(engine, loop, 14)
    assert [len(sink.finals) for sink in sinks] == [1, 1]
    assert [plan.decode.starts[-1] for plan in runner.plans[:6]] == [0, 0, 1, 1, 2, 2]
    alone = ScriptedAheadRunner(rule=never_ends)
    engine, loop, (sink,) = asked(manual, other, runner=alone)
    turned(engine, loop, 4)
    assert alone.runs == 3
    assert alone.behind == [0] * 3
    assert sink.finals[0].hypotheses[0].tokens == sinks[1].finals[0].hypotheses[0].tokens


def test_a_state_without_positions_never_reads_an_input_twice(manual):
    runner = ScriptedAheadRunner(rule=never_ends, layout=CacheLayout(target_bytes=0, source_bytes=10, row_bytes=8))
    engine, loop, sinks = asked(manual, request("free"), request("other", options=SAMPLED), runner=runner)
    turned(engine, loop, 10)
    assert [type(sink.finals[0]) for sink in sinks] == [Finished, Finished]
    assert runner.behind == [0] * 8


def test_a_turn_that_fails_late_ends_every_request_once(manual):
    """One that has its answer already, of a turn that was read meanwhile, keeps it."""
    runner = ScriptedAheadRunner(rule=never_ends)
    runner.fail_late = {3}
    engine, loop, sinks = asked(manual, request("short", max_tokens=2), request("long"), request("next"), runner=runner)
    turned(engine, loop, 4)
    assert [[type(end) for end in sink.finals] for sink in sinks] == [[Finished], [InternalFailure], [InternalFailure]]
    engine.submit(request("again"), loop, again := Sink())
    turned(engine, loop, 12)
    assert list(again.finals[0].hypotheses[0].tokens) == scripted(request("again"))


def test_numbers_that_are_not_finite_of_an_ended_row_harm_nobody(manual):
    class Poisoned(ScriptedAheadRunner):
        def collect(self):
            output = super().collect()
            output.non_finite = [0] if len(self.behind) == 2 else []
            return output

    engine, loop, sinks = asked(
        manual, request("short", max_tokens=1), request("long"), runner=Poisoned(rule=never_ends)
    )
    turned(engine, loop, 12)
    assert [type(sink.finals[0]) for sink in sinks] == [Finished, Finished]


def test_a_cancelled_request_ends_once_with_a_turn_on_the_device(manual):
    engine, loop, (other,) = asked(manual, request("b"), runner=ScriptedAheadRunner(rule=never_ends))
    cancel = engine.submit(request("a", max_tokens=40), loop, sink := Sink())
    turned(engine, loop, 3)
    cancel()
    turned(engine, loop, 12)
    assert [type(end) for end in sink.finals] == [Cancelled]
    assert list(other.finals[0].hypotheses[0].tokens) == scripted(request("b"))


def test_rows_that_all_follow_the_best_token_make_several_steps_in_a_turn(manual, monkeypatch):
    """As many as fit into the time, or as the shortest answer has left."""
    monkeypatch.setattr(run_ahead, "LAUNCHED_S", 0.0085)
    runner = ScriptedAheadRunner(rule=never_ends)
    made = request("a", max_tokens=9), request("b", source=(9, 8, 7, 2), max_tokens=16)
    engine, loop, sinks = asked(manual, *made, runner=runner)
    turned(engine, loop, 9)
    for one, sink in zip(made, sinks, strict=True):
        assert list(sink.finals[0].hypotheses[0].tokens) == scripted(one)
    assert runner.steps == [1, 1, 4, 3, 4, 3]
    assert runner.behind == [1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_requests_that_come_at_random_get_the_answers_of_turns_that_are_waited_for(manual, monkeypatch, seed, several):
    if several:
        monkeypatch.setattr(run_ahead, "LAUNCHED_S", 0.0085)
    rng, others = random.Random(seed), [] if several else [BEAM, SAMPLED]
    made = [
        request(
            str(number),
            source=(*[rng.randrange(3, 24) for _ in range(rng.randrange(1, 6))], 2),
            max_tokens=rng.randrange(2, 12),
            prefix=rng.choice([(), (), (5, 6)]),
            options=rng.choice([DecodingOptions(), DecodingOptions(top_logprobs=2), *others]),
            seed=number,
        )
        for number in range(30)
    ]
    found = []
    for runner in (ScriptedAheadRunner(), ScriptedRunner()):
        runner.keeps_plans = False
        engine, loop = manual(runner, engine_limits(max_rows=6))
        sinks, waiting, arrivals = [Sink() for _ in made], list(range(len(made))), random.Random(seed)
        while not all(sink.finals for sink in sinks):
            for number in waiting[: arrivals.choice([0, 1, 3])]:
                waiting.remove(number)
                engine.submit(made[number], loop, sinks[number])
            turned(engine, loop, 1)
        found.append([[answer.tokens for answer in sink.finals[0].hypotheses] for sink in sinks])
    assert found[0] == found[1]


def test_tokens_come_from_the_prompt_the_prefix_the_answer_or_the_device():
    bench = Bench()
    (sequence,) = bench.submit(request(max_tokens=9, prefix=(7,)))
    bench.scheduler.plan(0.0)
    rows = bench.scheduler.rows
    assert inputs(rows, [0], rows) == ((1,), ())
    sequence.unread = 1
    assert inputs(rows, [1], rows) == ((7,), ())
    assert inputs(rows, [2], rows) == ((0,), ((0, 0),))
    sequence.unread = 0
    assert not can_run_ahead([sequence], can_repeat=True), "nothing is unread"


def test_a_turn_is_found_by_the_rows_of_those_that_have_one():
    """A parked sequence names lines of its slot."""
    bench = Bench()
    kept, parked = bench.submit(request("a"), request("b"))
    bench.scheduler.plan(0.0)
    rows = bench.scheduler.rows
    parked.hypotheses[0].row = kept.hypotheses[0].row
    turn = TurnOutput(predictions=Plain([7, 9], ScriptedOutputs(None, [])), drafts={}, step_s=0.0)
    place(turn, rows, [kept])
    assert turn.predictions.best(0) == 7
