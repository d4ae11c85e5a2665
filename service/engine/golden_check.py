"""Does this machine compute what the bundle was verified with? One decode, repeated before a service is ready: alone,
and beside copies of itself."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from export.bundle import GoldenVector, Manifest
from service.decoding.search import advance, search_for
from service.encoder_request import EncoderOutput, EncoderRequest
from service.engine.scheduler import Scheduler, SchedulerConfig
from service.errors import RequestError, StartupError
from service.options import DecodingOptions
from service.request import Request
from service.sequence import Sequence
from service.step import Runner

COPIES, APART_TOKENS = 3, 2
"""Of the golden decode, side by side, and how much of it. A kernel that computes one row otherwise than several does so
in every step."""


def decode_single(runner: Runner, request: Request) -> list[int]:
    """Greedy tokens of one request without an engine. The runner must have no rows, and has none afterwards."""
    return _answered(runner, request)[0].answers[0].tokens


def encode_alone(runner: Runner, request: Request) -> EncoderOutput:
    """What the encoder says of one request, in the same way."""
    encoded = _answered(runner, request)[0].encoder_output
    assert encoded is not None
    return encoded


def is_batch_invariant(runner: Runner, manifest: Manifest) -> bool:
    """Whether the golden decode comes out the same beside copies of itself as alone, in every bit of its tokens and
    log-probabilities. True of models without a decoder, whose products are exact or float32."""
    if not manifest.golden.output:
        return True
    request = Request(
        request_id="apart",
        source=manifest.golden.source,
        prompt=manifest.golden.prompt,
        max_tokens=APART_TOKENS,
        options=DecodingOptions(token_logprobs=True),
    )
    alone, *together = (
        (answer.tokens, answer.logprobs)
        for count in (1, min(COPIES, runner.max_rows))
        for sequence in _answered(runner, *[request] * count)
        for answer in sequence.answers
    )
    return all(answer == alone for answer in together)


def _answered(runner: Runner, *requests: Request) -> list[Sequence]:
    scheduler = Scheduler(SchedulerConfig(max_rows=len(requests)), runner.limits, runner.layout)
    sequences = [Sequence(request, search_for(request, eos_ids=runner.eos_ids)) for request in requests]
    for sequence in sequences:
        scheduler.check(sequence.request)
        scheduler.submit(sequence)
    while any(sequence.outcome is None for sequence in sequences):
        plan = scheduler.plan(0.0)
        output = runner.run(plan.step)
        advance(scheduler.commit(plan), output)
    runner.reset()
    for sequence in sequences:
        if isinstance(sequence.outcome, RequestError):
            raise StartupError(f"self-check failed: {sequence.outcome}; fix: export the bundle again")
    return sequences


def check_golden_decode(runner: Runner, manifest: Manifest, precision: str = "fp32") -> None:
    """Repeats the manifest's golden decode; of a model without a decoder, its golden vector of this precision. Raises
    StartupError when it comes out differently."""
    golden = manifest.golden
    if golden.vectors:
        _check_vector(runner, golden.source, golden.vectors[precision])
        return
    tokens = decode_single(
        runner,
        Request(request_id="golden", source=golden.source, prompt=golden.prompt, max_tokens=len(golden.output)),
    )
    if tuple(tokens) != golden.output:
        raise StartupError(
            f"self-check failed: this machine decodes {tokens}, the bundle was verified with {list(golden.output)}; "
            "fix: export the bundle again on this kind of machine, or check the installation of onnxruntime"
        )


def _check_vector(runner: Runner, source: Items[int], golden: GoldenVector) -> None:
    request = Request(
        request_id="golden",
        source=tuple(source),
        prompt=(),
        max_tokens=0,
        encoder_request=EncoderRequest(pooling="mean"),
    )
    vector, expected = encode_alone(runner, request).vector, np.array(golden.values)
    assert vector is not None
    off = float(np.abs(vector - expected).max()) / max(float(np.abs(expected).max()), 1e-6)
    if not off <= golden.tolerance:
        raise StartupError(
            f"self-check failed: this machine's vector of a text is {off:.2g} of its largest value off the bundle's, "
            f"more than {golden.tolerance:g}; fix: export the bundle again on this kind of "
            "machine, or check the installation of onnxruntime"
        )
