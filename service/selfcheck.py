"""Does this machine compute what the bundle was verified with? One decode, repeated before a service is ready."""

from __future__ import annotations

from export.bundle import Manifest
from service.decoding.search import advance, search_for
from service.errors import StartupError
from service.request import Request
from service.scheduler import Scheduler, SchedulerConfig
from service.sequence import Sequence
from service.step import Runner


def decode_alone(runner: Runner, request: Request) -> list[int]:
    """Greedy tokens of one request without an engine. The runner must have no rows, and has none afterwards."""
    scheduler = Scheduler(SchedulerConfig(max_rows=1), runner.limits, runner.layout)
    sequence = Sequence(request, search_for(request, eos_id=runner.eos_id))
    scheduler.check(request)
    scheduler.submit(sequence)
    while sequence.end is None:
        plan = scheduler.plan(0.0)
        model = runner.run(plan.step)
        advance(scheduler.commit(plan), model)
    runner.reset()
    return sequence.answers[0].tokens


def golden_decode(runner: Runner, manifest: Manifest) -> None:
    """Repeats the manifest's golden decode. Raises StartupError when it comes out differently."""
    golden = manifest.golden
    tokens = decode_alone(
        runner,
        Request(request_id="golden", source=golden.source, prompt=golden.prompt, max_tokens=len(golden.output)),
    )
    if tuple(tokens) != golden.output:
        raise StartupError(
            f"self-check failed: this machine decodes {tokens}, the bundle was verified with {list(golden.output)}; "
            "fix: export the bundle again on this kind of machine, or check the installation of onnxruntime"
        )
