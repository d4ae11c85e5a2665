"""Turns that are launched before the last one was read, with a scripted runner that computes them at once.

`bench simulate` runs every second of its seeds so; `tests/cuda/test_run_ahead.py` shows the same of a device."""

import random
from typing import Any

import pytest

from service.decoding import greedy_and_sampling
from service.decoding.sampling import Sampler
from service.draws import NotKept
from service.engine import run_ahead
from service.engine.run_ahead import can_run_ahead, inputs, place
from service.errors import Cancelled, InternalFailure
from service.memory.cache_layout import CacheLayout
from service.options import DecodingOptions
from service.request import Finished
from service.step import Burst, Moves, Plain, Prompts, Ranked, TurnOutput
from tests.engines import engine_limits, never_ends, request
from tests.fakes import ScriptedOutputs, ScriptedRunner, Sink, doubtful, scripted_answer
from tests.scheduling import Bench

BEAM = DecodingOptions(beam_size=2)
SAMPLED = DecodingOptions(temperature=1.0)
SAMPLES = DecodingOptions(temperature=1.0, num_sequences=2)


class Kept(ScriptedOutputs):
    """Of these distributions the last ones only, unless the plan names their rows."""

    def __init__(self, runner, plan, logprobs_LV, sources):
        super().__init__(logprobs_LV, sources)
        self._runner, self._plan = runner, plan

    def logprobs(self, row, line):
        is_last = self._runner._newest is self._plan and not self._plan.decode.more
        if not is_last and line not in self._plan.read_rows:
            raise NotKept
        return super().logprobs(row, line)


class ScriptedAheadRunner(ScriptedRunner):
    """See `service.step.AheadRunner`. fail_late: numbers of runs that fail when they are collected. behind: of each
    turn that was collected, how many had been launched behind it. steps: of each turn. guesses: how it draws tokens:
    share of those that are certain, and of the others those that are right."""

    def __init__(self, *, guesses=(0.0, 0.0), **more):
        super().__init__(**more)
        self.guesses, self._rng = guesses, random.Random(1)
        self.fail_late: set[int] = set()
        self.behind: list[int] = []
        self.steps: list[int] = []
        self._launched: list[Any] = []
        self._taken: list[int] = []
        self._own: list[tuple[int, bool]] = []  # tokens that the rows go on with, and whether they are certain
        self._newest: Any = None

    def reset(self):
        super().reset()
        self._launched.clear()

    def launch(self, plan):
        step, tokens = plan.decode, list(plan.decode.tokens)
        self.steps.append(1 + step.more)
        for row, line in step.fed:
            tokens[row] = self._taken[line]
        output = self._step(plan, tokens, step.starts, 0)
        ids, scores, rows = list(output.predictions.top_ids), list(output.predictions.top_logprobs), plan.shape.rows
        own, logprobs = [*self._own], list(output.predictions.deferred.logprobs_LV)
        later = plan._replace(rows_before=rows, moves=Moves(), new_rows=(), prompts=Prompts())
        for number in range(1, 1 + step.more):
            starts = [start + number * (row not in step.still) for row, start in enumerate(step.starts)]
            following = self._step(later, self._taken, starts, number).predictions
            ids += following.top_ids
            scores += following.top_logprobs
            own += self._own
            logprobs += list(following.deferred.logprobs_LV)
        taken = [token for token, _ in own]
        if step.more:
            output.bursts = {row: Burst(taken[row:-rows:rows], range(row, len(ids), rows)) for row in range(rows)}
        kept = Kept(self, plan, logprobs, output.predictions.deferred.sources)
        output.predictions = Ranked(ids, scores, range(rows), kept, own if step.draws else ())
        self._newest = plan
        self._launched.append((output, self.runs))

    def _step(self, plan, tokens, starts, number):
        self.guessed = set(range(len(self.rows)))  # any row may repeat its input
        step = plan.decode._replace(tokens=tuple(tokens), starts=tuple(starts))
        output = self.run(plan._replace(decode=step, top_k=max(1, plan.top_k)))  # a device ranks always
        self._own = [(output.predictions.best(row), False) for row in range(plan.step_rows)]
        for row, draw in step.draws:
            self._own[row] = self._drawn(output.predictions, row, draw, draw.uniforms[number])
        self._taken = [token for token, _ in self._own]
        return output

    def _drawn(self, predictions, row, draw, uniform):
        certain, right = self.guesses
        is_certain = self._rng.random() < certain
        if not is_certain and self._rng.random() >= right:
            return self._rng.randrange(3, self.limits.vocab_size), False
        sampler = Sampler(DecodingOptions(temperature=1 / draw.sharpness, top_k=draw.top_k), 0, 0)
        return sampler._draw_from_row(uniform, predictions.logprobs(row)), is_certain

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


@pytest.mark.parametrize("options", [BEAM, SAMPLES], ids=["beam", "samples"])
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


GUESSES = {"all wrong": (0.0, 0.0), "some right": (0.4, 0.5), "certain": (1.0, 0.0)}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("guesses", GUESSES)
def test_sampled_answers_are_the_same_whatever_a_device_guesses(manual, monkeypatch, guesses, several):
    if several:
        monkeypatch.setattr(run_ahead, "LAUNCHED_S", 0.0085)
        monkeypatch.setattr(greedy_and_sampling, "DOUBTS", 1)
    rng, found, runs = random.Random(5), [], []
    kinds = [SAMPLED, DecodingOptions(temperature=0.7, top_logprobs=2), DecodingOptions(), DecodingOptions(top_k=4)]
    made = [
        request(
            str(number),
            source=(*[rng.randrange(3, 24) for _ in range(rng.randrange(1, 6))], 2),
            max_tokens=rng.randrange(2, 14),
            prefix=() if several else rng.choice([(), (), (5, 6)]),
            options=rng.choice(kinds),
            seed=number,
        )
        for number in range(30)
    ]
    ahead = ScriptedAheadRunner(rule=doubtful, guesses=GUESSES[guesses])
    for runner in (ahead, ScriptedRunner(rule=doubtful)):
        engine, loop, sinks = asked(manual, *made, runner=runner, max_rows=6)
        while not all(sink.finals for sink in sinks):
            turned(engine, loop, 1)
        found.append([repr(sink.finals[0].hypotheses) for sink in sinks])
        runs.append(runner.runs)
    assert found[0] == found[1]
    if several:
        assert max(ahead.steps) > 1
    else:
        assert runs[0] < {"all wrong": 2.3, "some right": 1.8, "certain": 1.3}[guesses] * runs[1]


def test_a_row_whose_guess_was_wrong_is_computed_again_from_the_right_token(manual):
    """The turn that was launched with it is lost, and so is one whose distribution was not kept."""
    runner = ScriptedAheadRunner(rule=never_ends)
    engine, loop, (sink,) = asked(manual, request(max_tokens=3, options=SAMPLED), runner=runner)
    turned(engine, loop, 9)
    assert list(sink.finals[0].hypotheses[0].tokens) == scripted(request(max_tokens=3))
    steps = [(plan.decode.starts[0], plan.read_rows) for plan in runner.plans]
    assert steps == [(0, ()), (1, ()), (0, (0,)), (1, (0,)), (1, (0,)), (2, (0,)), (2, (0,))]


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
