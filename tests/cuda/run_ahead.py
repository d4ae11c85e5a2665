"""An engine that launches turns before it has read the last one, beside one that waits for each, on the fake CUDA.

Usage: python -m tests.cuda.run_ahead BUNDLE COUNT. COUNT: requests, greedy, sampled, with beams and with processors,
some of them cancelled, that come at random. Prints how many have the same answers from both engines; what became of the
cancelled ones; the turns of each; how many drawn tokens were certain, and how many guesses. Of requests whose tokens
the device chooses alone: the turns, with one step each and with several; those that were read with no other turn on the
stream; the waits for the whole stream; and the answers that are others. At last the captures after the runner was
opened.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from bench.gpu.turns import Waiting
from export.bundle.directory import load_bundle
from export.bundle.manifest import TOKENIZER
from model.tokenizer import Tokenizer
from service.decoding import greedy_and_sampling, sampling
from service.engine import run_ahead
from service.engine.engine import Engine
from service.errors import Cancelled
from service.memory.engine_limits import EngineLimits
from service.options import DecodingOptions
from service.request import Event, Finished, Request, TextDelta
from service.runtime import step_outputs, token_draws
from service.runtime.cuda_runner import CudaRunner
from service.runtime.onnx_model import OnnxModel
from service.runtime.runner import OnnxRunner
from service.step import AheadRunner, Ranked, StepPlan, TurnOutput
from tests.cuda.fake import FakeCuda

MAX_ROWS, KV_CACHE_BYTES = 16, 1 << 24
BEST = 8  # of the tiny vocabulary, so that draws fall beyond them
DRAWN: dict[str, Any] = {"temperature": 0.5, "top_k": 4}
KINDS: tuple[dict[str, Any], ...] = (
    *({}, {}, {}, {"token_logprobs": True}, {"top_logprobs": 3}),
    *({"temperature": 0.9}, {"temperature": 0.7, "top_p": 0.8}, DRAWN, {"temperature": 1.2, "num_sequences": 2}),
    *({"beam_size": 4}, {"beam_size": 2, "repetition_penalty": 1.3}),
    *({"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 2}, {"min_tokens": 5}),
)


def drawn(runner: OnnxRunner, count: int) -> Iterator[Request]:
    rng, limits = random.Random(count), runner.limits
    for number in range(count):
        options = DecodingOptions(**rng.choice(KINDS))
        source: tuple[int, ...] = ()
        length = rng.choice([1, 3, 20])
        if limits.max_source_len:
            source, length = tuple(rng.randrange(4, limits.vocab_size) for _ in range(rng.randrange(1, 20))), 1
        prompt = (1, *(rng.randrange(4, limits.vocab_size) for _ in range(length - 1)))
        max_tokens = rng.randrange(1, min(24, limits.max_target_len - length + 1))
        prefix = (5, 6, 7)[: rng.choice([0, 0, 0, 3])][: max_tokens - 1]
        shortlist: tuple[int, ...] = ()
        if source and not prefix and rng.random() < 0.3:
            shortlist = tuple(sorted({2, *rng.sample(range(4, limits.vocab_size), 12)}))
        yield Request(
            request_id=str(number),
            source=source,
            prompt=prompt,
            max_tokens=max_tokens,
            options=options,
            prefix=prefix,
            shortlist=shortlist,
            seed=number,
            is_streamed=rng.random() < 0.3,
        )


class Asked:
    """An engine with requests that come and go at random. ends: by ticket, the only final event."""

    def __init__(self, runner: Any, path: Path, *, steps: int = 1) -> None:
        limits = EngineLimits(
            max_rows=MAX_ROWS, kv_cache_bytes=1 << 40, prefix_cache_bytes=0, greedy_steps_per_turn=steps
        )
        self.engine = Engine(runner, Tokenizer.load(path / TOKENIZER), limits)
        self.engine.start(self._deliver, is_manual=True)
        self.ends: dict[int, Event] = {}
        self.turns = 0

    def _deliver(self, events: list[tuple[int, Event]]) -> None:
        for ticket, event in events:
            if not isinstance(event, TextDelta):
                assert ticket not in self.ends, "two ends of one request"
                self.ends[ticket] = event

    def turn(self) -> None:
        self.engine.turn()
        self.turns += 1

    def answer(self, requests: Mapping[int, Request], cancelled: Collection[int] = ()) -> None:
        """Sends all of them, some in each turn; the cancelled ones leave a few turns after they came."""
        rng, waiting = random.Random(1), dict(requests)
        leaving: list[tuple[int, int]] = []
        while len(self.ends) < len(requests):
            for ticket in list(waiting)[: rng.choice([0, 0, 1, 4])]:
                self.engine.submit(ticket, waiting.pop(ticket))
                if ticket in cancelled:
                    leaving.append((self.turns + rng.randrange(6), ticket))
            for due, ticket in leaving:
                if due == self.turns:
                    self.engine.inbox.cancel(ticket)
            self.turn()


@contextmanager
def read_last(runner: CudaRunner) -> Iterator[list[StepPlan]]:
    """The plans that are read when no other turn is on the stream."""
    found, collect = list[StepPlan](), runner.collect

    def noted() -> TurnOutput:
        if len(runner._launched) == 1:
            found.append(runner._launched[0].plan)
        return collect()

    with mock.patch.object(runner, "collect", noted):
        yield found


@contextmanager
def draws_of(runner: CudaRunner) -> Iterator[Counter[str]]:
    """What was drawn: tokens that are certain, and guesses."""
    found, collect = Counter[str](), runner.collect

    def noted() -> TurnOutput:
        plan, turn = runner._launched[0].plan, collect()
        if isinstance(turn.predictions, Ranked) and turn.predictions.draws and plan.decode:
            found.update(("guesses", "certain")[turn.predictions.draws[row][1]] for row, _ in plan.decode.draws)
        return turn

    with mock.patch.object(runner, "collect", noted):
        yield found


def text_of(event: Event) -> Any:
    return [answer.tokens for answer in event.hypotheses] if isinstance(event, Finished) else repr(event)


def main(path: Path, count: int) -> dict[str, Any]:
    cuda = FakeCuda()
    for module in (step_outputs, token_draws):
        vars(module)["CAPTURED_TOP_K"] = (2, BEST)
    for module in (sampling, greedy_and_sampling):
        vars(module)["TOP_CANDIDATES"] = BEST
    runner = OnnxModel.open(path, load_bundle(path), device="cuda").runner(
        max_rows=MAX_ROWS, kv_cache_bytes=KV_CACHE_BYTES
    )
    assert isinstance(runner, CudaRunner)
    assert isinstance(runner, AheadRunner)
    captures, requests = cuda.total("captures"), dict(enumerate(drawn(runner, count)))
    cancelled = set(random.Random(2).sample(range(count), count // 10))
    ahead, waiting = Asked(runner, path), Asked(Waiting(runner), path)
    with draws_of(runner) as draws:
        ahead.answer(requests, cancelled)
    runner.reset()
    waiting.answer(requests, cancelled)
    runner.reset()
    kept = requests.keys() - cancelled
    ends = [ahead.ends[ticket] for ticket in cancelled]
    kinds = DecodingOptions(), DecodingOptions(**DRAWN)
    free = {ticket: requests[ticket] for ticket in sorted(kept) if requests[ticket].options in kinds}
    free = {ticket: replace(one, shortlist=()) for ticket, one in free.items()}
    single, several = Asked(runner, path), Asked(runner, path, steps=4)
    synchronised = cuda.total("blocking cudaStreamSynchronize")
    with read_last(runner) as alone, mock.patch.object(run_ahead, "LAUNCHED_S", 1e6):
        single.answer(free)
        several.answer(free)
    return {
        "requests": len(kept),
        "same": sum(text_of(ahead.ends[ticket]) == text_of(waiting.ends[ticket]) for ticket in kept),
        "cancelled": len(ends),
        "with an end": sum(isinstance(end, Cancelled | Finished) for end in ends),
        "turns": {"ahead": ahead.turns, "waiting": waiting.turns},
        "draws": draws,
        "free": {
            "turns": {"single": single.turns, "several": several.turns},
            "read last": len(alone),
            "stream waits": cuda.total("blocking cudaStreamSynchronize") - synchronised,
            "others": sum(
                text_of(asked.ends[ticket]) != text_of(waiting.ends[ticket])
                for ticket in free
                if not requests[ticket].shortlist
                for asked in (single, several)
            ),
        },
        "captures": cuda.total("captures") - captures,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
