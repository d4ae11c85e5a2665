"""A scheduler turned by hand over a scripted runner, for the tests of the scheduler and of its parts."""

from bench.simulation.invariants import check_invariants
from service.decoding.search import advance, search_for
from service.engine.scheduler import Scheduler
from service.request import Request
from service.sequence import Sequence
from tests.engines import engine_limits
from tests.fakes import EOS, ScriptedRunner


def request(name="r", source=(5, 6, 2), prompt=(1,), max_tokens=5, **more):
    return Request(request_id=name, source=source, prompt=prompt, max_tokens=max_tokens, **more)


def generation(name="r", prompt=(1, 5), max_tokens=5, **more):
    return request(name, source=(), prompt=prompt, max_tokens=max_tokens, **more)


class Bench:
    """A scheduler with a scripted runner, turned by hand; invariants are checked after every turn."""

    def __init__(self, runner=None, **config):
        self.runner = runner or ScriptedRunner()
        self.scheduler = Scheduler(engine_limits(**config), self.runner.limits, self.runner.layout)

    def submit(self, *requests):
        sequences = [Sequence(request, search_for(request, eos_ids=(EOS,))) for request in requests]
        for sequence in sequences:
            self.scheduler.capacity.check(sequence.request)
            self.scheduler.submit(sequence)
        return sequences

    def turn(self, now_s=0.0):
        plan = self.scheduler.plan(now_s)
        if plan.live:
            model = self.runner.run(plan.step)
            advance(self.scheduler.commit(plan), model)
            self.scheduler.record_drafts(plan, model)
            self.scheduler.shares.record(model.step_s, plan.live, {})
        assert check_invariants(self.scheduler) == []
        return plan

    def drain(self):
        while not self.scheduler.is_idle:
            self.turn()


def tokens_of(sequence):
    """The tokens that a sequence of one hypothesis has generated."""
    return sequence.committed_tokens


def never_ends(source, fed, vocab_size):
    return 3 + (len(fed) + sum(source)) % (vocab_size - 3)


def prefill_bench(runner=None, **config):
    """A bench for a decoder that takes chunks."""
    return Bench(runner or ScriptedRunner(has_source=False, max_block=0, rule=never_ends, max_len=400), **config)


def chunks_of(plan):
    """(row, start, length) of the prefill chunks of a turn."""
    return [(block.row, block.start, len(block.tokens)) for block in plan.step.prompts.chunks]
