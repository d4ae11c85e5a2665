"""Check batch invariance: 10,000 requests of every strategy, singly and in random batches, bit for bit.

In process, with the engine's own scheduler, runner and searches: every request singly, on two threads, then all
together in random order with random arrivals, in `--mixes` mixes. Tokens, log-probabilities and scores must be equal to
the last bit. The requests are divided among the precisions of the bundle, each in a process of its own; one precision
that was asked for gets all.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import multiprocessing
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.measure import Verdict, report
from bench.sentences import sentence_pairs
from bench.simulation.invariants import check_invariants
from export.bundle.directory import load_bundle, load_manifest, load_shortlist
from export.bundle.manifest import TOKENIZER, Manifest
from model.tokenizer import Tokenizer
from service.decoding.search import advance, search_for
from service.engine.scheduler import Scheduler
from service.memory.engine_limits import EngineLimits
from service.options import DecodingOptions
from service.request import Request
from service.runtime.onnx_model import OnnxModel
from service.runtime.runner import OnnxRunner
from service.sequence import Sequence

ROWS = 48
CPU = ("fp32", "int8", "int4")  # precisions
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"token_logprobs": True},
    "greedy, text alone": {},
    "beam 4": {"beam_size": 4, "num_hypotheses": 4},
    "beam 8": {"beam_size": 8},
    "diverse beam": {"beam_size": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "num_hypotheses": 4},
    "sampling": {"temperature": 1.0},
    "nucleus": {"top_p": 0.9, "temperature": 0.8},
    "top-k": {"top_k": 20, "num_sequences": 3},
    "typical": {"typical_p": 0.8},
    "alternatives": {"num_hypotheses": 3, "return_alternatives": True},
    "shortlist": {"use_shortlist": True, "token_logprobs": True},  # where the bundle has one
    "shortlist, beam 4": {"use_shortlist": True, "beam_size": 4},
}


def decode(runner: OnnxRunner, requests: list[Request], rng: random.Random | None) -> dict[str, Any]:
    """What every request is answered, by its id."""
    scheduler = Scheduler(EngineLimits(max_rows=ROWS, prefix_cache_bytes=0), runner.limits, runner.layout)
    todo = [Sequence(request, search_for(request, eos_ids=runner.eos_ids)) for request in requests]
    sequences = list(todo)
    while todo or not scheduler.is_idle:
        for _ in range(min(len(todo), rng.choice([0, 1, 2, 8]) if rng else len(todo))):
            scheduler.submit(todo.pop())
        plan = scheduler.plan(0.0)
        if plan.live:
            outputs = runner.run(plan.step)
            advance(scheduler.commit(plan), outputs)
        broken = check_invariants(scheduler)
        assert not broken, broken
    return {
        sequence.request.request_id: [
            (a.tokens, a.logprobs, a.normalised if a.logprobs else None) for a in sequence.answers
        ]
        for sequence in sequences
    }


class Compared(NamedTuple):
    """Requests of one precision. different: answers in mixes that differ from those of single requests, by strategy."""

    scheme: str
    requests: int
    tokens: int
    different: dict[str, int]


def requests_of(bundle: Path, manifest: Manifest, pairs: list[tuple[str, str]], first: int) -> list[Request]:
    """Requests of all strategies in turn. first: the number of the first one, from which its strategy and its seed
    follow."""
    tokenizer, tokens = Tokenizer.load(bundle / TOKENIZER), manifest.tokens
    shortlist = load_shortlist(bundle / manifest.shortlist) if manifest.shortlist else None
    found = []
    for number, (text, _) in enumerate(pairs, first):
        source = (*tokenizer.encode(text), tokens.eos)
        strategy = list(STRATEGIES)[number % len(STRATEGIES)]
        options = DecodingOptions(**STRATEGIES[strategy])
        allowed: tuple[int, ...] = ()
        if options.use_shortlist and shortlist is not None:
            allowed = tuple(sorted({*shortlist.allowed(source), tokens.eos}))
        found.append(
            Request(
                request_id=f"{number} {strategy}",
                source=source,
                prompt=(tokens.bos,),
                max_tokens=min(manifest.limits.max_target_len, 3 * len(source) + 10),
                options=options,
                shortlist=allowed,
                seed=number,
            )
        )
    return found


def compare(bundle: Path, precision: Any, pairs: list[tuple[str, str]], first: int, mixes: int) -> Compared:
    """Answers every pair's source singly and in mixes."""
    manifest = load_bundle(bundle)
    requests = requests_of(bundle, manifest, pairs, first)
    model = OnnxModel.open(bundle, manifest, device="cpu", precision=precision, single_engine_threads=2)
    runner, alone = model.runner(max_rows=ROWS), dict[str, Any]()
    for request in requests:
        alone |= decode(runner, [request], None)
    different = collections.Counter(dict.fromkeys(STRATEGIES, 0))
    tokens = 0
    for mix in range(mixes):
        rng = random.Random(mix)
        some = rng.sample(requests, len(requests))
        for name, answers in decode(model.runner(max_rows=ROWS), some, rng).items():
            different[name.partition(" ")[2]] += answers != alone[name]
            tokens += sum(len(answer[0]) for answer in answers)
    quantization = model.variant.quantization
    scheme = quantization.scheme if quantization else model.choice.precision
    return Compared(scheme, len(requests), tokens, dict(different))


@case(
    "bundle",
    "data?",
    precision=Flag("all", choices=["all", "auto", *CPU]),
    requests=10_000,
    mixes=1,
)
def invariance(options: argparse.Namespace) -> None:
    there = {variant.precision for variant in load_manifest(options.bundle).variants}
    asked = [each for each in CPU if each in there] if options.precision == "all" else [options.precision]
    pairs, each = sentence_pairs(options.data, options.requests), -(-options.requests // len(asked))
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(asked), mp_context=spawn) as pool:
        parts = [(name, pairs[at * each : (at + 1) * each], at * each) for at, name in enumerate(asked)]
        running = [pool.submit(compare, options.bundle, *part, options.mixes) for part in parts]
        compared = [one.result() for one in running]
    figures: dict[str, Any] = {}
    for one in compared:
        figures[f"{one.scheme}: requests, tokens in mixes"] = f"{one.requests}, {one.tokens}"
        figures |= {f"{one.scheme}, {name}: different": count for name, count in one.different.items() if count}
    total = sum(one.requests for one in compared)
    wrong = sum(sum(one.different.values()) for one in compared)
    schemes = " and ".join(one.scheme for one in compared)
    measure = f"answers of {total} requests, {schemes}, that differ between alone and in a batch"
    verdicts = [Verdict(measure, wrong, 0, "", is_limit=True)]
    report(figures, verdicts, as_json=options.json)
    sys.exit(bool(wrong))
