"""The server's own check before it reports ready: does this machine compute what the bundle was verified with?

`check_golden_decode` repeats the decode that the manifest records. `is_batch_invariant` computes it in a batch of
one and among rows of other lengths: whether answers depend on the batch is a property of this machine's kernels. Both
work without an engine, on a runner that has no rows. They do not verify the model; the export does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from export.bundle.manifest import Golden, Limits, Manifest
from service.decoding.search import NotFinite, advance, search_for
from service.encoder_request import EncoderRequest
from service.engine.scheduler import Scheduler
from service.errors import RequestError, StartupError
from service.memory.engine_limits import EngineLimits
from service.options import DecodingOptions
from service.request import Request
from service.sequence import Sequence
from service.step import Runner

MAX_RAGGED_ROWS = 64  # of `is_batch_invariant`, the default of `--max-rows`; bounds time and memory
MAX_RAGGED_S = 2.0  # of its decode, after which no further step begins; what was computed until then is compared
GOLDEN_COPIES = 3  # golden rows among them: the first, the middle and the last request


def decode_single(runner: Runner, request: Request) -> list[int]:
    """Greedy tokens of one request. The runner must have no rows, and has none afterwards."""
    return _run(runner, [request])[0].answers[0].tokens


def is_batch_invariant(
    runner: Runner,
    manifest: Manifest,
    clock: Callable[[], float] = time.monotonic,
    *,
    kv_cache_bytes: int = EngineLimits.kv_cache_bytes,
) -> bool:
    """Whether tokens and log-probabilities of the golden decode are bit-identical in a batch of one and in ragged ones.

    The other rows, up to the runner's row limit and at most MAX_RAGGED_ROWS, have sources (without an encoder: prompts)
    of 1 to twice as many tokens, and answers as different in length, so that rows are padded, leave and move during the
    decode. Rows wait where more of them would exceed `kv_cache_bytes`. True for models without a decoder, whose
    products are exact or float32.

    Cost: a decode of one row and one of all rows, each of len(golden.output) steps. The second one ends after
    MAX_RAGGED_S; it takes about as long for 30 tokens of a float32 model of 6+6 layers, d512, on one core with AVX2.
    """
    golden, rows = manifest.golden, min(runner.max_rows, MAX_RAGGED_ROWS)
    if not golden.output or rows == 1:
        return True
    request = _golden_request(golden, options=DecodingOptions(token_logprobs=True))
    requests = [_ragged(golden, runner.limits, number) for number in range(rows)]
    for copy in range(GOLDEN_COPIES):
        requests[(rows - 1) * copy // (GOLDEN_COPIES - 1)] = request
    expected = _run(runner, [request])[0].answers[0]
    end_s = clock() + MAX_RAGGED_S
    for sequence in _run(runner, requests, kv_cache_bytes, wanted=request, is_late=lambda: clock() > end_s):
        answer = (sequence.answers or sequence.hypotheses)[0]
        count = None if sequence.answers else len(answer.tokens)
        if (answer.tokens, answer.logprobs) != (expected.tokens[:count], expected.logprobs[:count]):
            return False
    return True


def check_golden_decode(runner: Runner, manifest: Manifest, precision: str = "fp32") -> None:
    """Repeats the manifest's golden decode; of a model without a decoder, its golden vector of this precision.

    Raises StartupError when the result differs, or is not finite.
    """
    try:
        _check_golden(runner, manifest, precision)
    except NotFinite:
        raise StartupError(
            f"self-check failed: values in the model are larger than {precision} can hold, so that its outputs are not "
            "numbers; fix: serve it in fp32 or int8 on the CPU"
        ) from None


def _check_golden(runner: Runner, manifest: Manifest, precision: str) -> None:
    golden, problem = manifest.golden, ""
    if golden.vectors:
        expected = golden.vectors[precision]
        request = _golden_request(golden, encoder_request=EncoderRequest(pooling="mean"))
        output, expected_M = _run(runner, [request])[0].encoder_output, np.array(expected.values)
        assert output is not None
        assert output.vector is not None
        if not np.isfinite(output.vector).all():
            raise NotFinite
        difference = float(np.abs(output.vector - expected_M).max()) / max(float(np.abs(expected_M).max()), 1e-6)
        if not difference <= expected.tolerance:
            problem = (
                f"this machine's vector of a text is {difference:.2g} of its largest value off the bundle's, more than "
                f"{expected.tolerance:g}"
            )
    elif (tokens := decode_single(runner, _golden_request(golden))) != list(golden.output):
        problem = f"this machine decodes {tokens}, the bundle was verified with {list(golden.output)}"
    if problem:
        raise StartupError(
            f"self-check failed: {problem}; fix: export the bundle again on this kind of machine, or check the "
            "installation of onnxruntime"
        )


def _golden_request(golden: Golden, **more: Any) -> Request:
    return Request(
        request_id="golden", source=golden.source, prompt=golden.prompt, max_tokens=len(golden.output), **more
    )


def _ragged(golden: Golden, limits: Limits, number: int) -> Request:
    """A request made of golden tokens, whose lengths differ from those of the next ones."""
    source, prompt = golden.source, golden.prompt
    if source:
        count = 1 + number % min(2 * len(source), limits.max_source_len)
        source = (*itertools.islice(itertools.cycle(source[:-1] or source), count - 1), source[-1])
    else:
        count = 1 + number % min(2 * len(prompt), limits.max_target_len)
        prompt = tuple(itertools.islice(itertools.cycle(prompt), count))
    most = min(2 * len(golden.output), limits.max_target_len - len(prompt) + 1)
    return Request(request_id=f"ragged {number}", source=source, prompt=prompt, max_tokens=1 + number % most)


def _run(
    runner: Runner,
    requests: list[Request],
    kv_cache_bytes: int = 0,
    wanted: Request | None = None,
    is_late: Callable[[], bool] = lambda: False,
) -> list[Sequence]:
    """The sequences of `wanted`, or of all requests, decoded together until they end or it is late. Raises StartupError
    when one of them fails. kv_cache_bytes: of the rows together, unless a single one needs more."""
    scheduler = Scheduler(EngineLimits(max_rows=len(requests)), runner.limits, runner.layout)
    capacity = scheduler.capacity
    capacity.max_bytes = max(kv_cache_bytes, *[capacity.bytes_for(capacity.shape_of(request)) for request in requests])
    sequences = [Sequence(request, search_for(request, eos_ids=runner.eos_ids)) for request in requests]
    for sequence in sequences:
        scheduler.submit(sequence)
    sequences = [sequence for sequence in sequences if wanted is None or sequence.request is wanted]
    while any(sequence.outcome is None for sequence in sequences) and not is_late():
        plan = scheduler.plan(0.0)
        output = runner.run(plan.step)
        advance(scheduler.commit(plan), output)
    runner.reset()
    for sequence in sequences:
        if isinstance(sequence.outcome, RequestError):
            raise StartupError(f"self-check failed: {sequence.outcome}; fix: export the bundle again")
    return sequences
