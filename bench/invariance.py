"""Check batch invariance: 1,000 requests of every strategy, singly and in random mixes, bit for bit.

In process, with the engine's own scheduler, runner and searches: every request singly, on two threads, then all
together in random order with random arrivals, in `--mixes` mixes. Tokens, log-probabilities and scores must be equal to
the last bit.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from typing import Any

from bench.case import Flag, case
from bench.sentences import sentence_pairs
from export.bundle import load_bundle, load_shortlist
from export.manifest import TOKENIZER
from model.tokenizer import Tokenizer
from service.decoding.search import advance, search_for
from service.engine.invariants import check_invariants
from service.engine.scheduler import Scheduler, SchedulerConfig
from service.options import DecodingOptions
from service.request import Request
from service.runtime.runner import OnnxModel, OnnxRunner
from service.sequence import Sequence

ROWS = 48
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
    scheduler = Scheduler(SchedulerConfig(max_rows=ROWS), runner.limits, runner.layout)
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


@case(
    "bundle",
    "data?",
    precision=Flag("auto", choices=["auto", "fp32", "int8", "int4"]),
    requests=1000,
    mixes=3,
)
def invariance(args: argparse.Namespace) -> None:
    tokenizer, manifest = Tokenizer.load(args.bundle / TOKENIZER), load_bundle(args.bundle)
    bos, eos = manifest.tokens.bos, manifest.tokens.eos
    shortlist = load_shortlist(args.bundle / manifest.shortlist) if manifest.shortlist else None
    requests = []
    for number, (text, _) in enumerate(sentence_pairs(args.data, args.requests)):
        source = (*tokenizer.encode(text), eos)
        options = DecodingOptions(**list(STRATEGIES.values())[number % len(STRATEGIES)])
        allowed: tuple[int, ...] = ()
        if options.use_shortlist and shortlist is not None:
            allowed = tuple(sorted({*shortlist.allowed(source), eos}))
        name = f"{number} {list(STRATEGIES)[number % len(STRATEGIES)]}"
        requests.append(
            Request(
                request_id=name,
                source=source,
                prompt=(bos,),
                max_tokens=min(manifest.limits.max_target_len, 3 * len(source) + 10),
                options=options,
                shortlist=allowed,
                seed=number,
            )
        )
    model = OnnxModel.open(args.bundle, manifest, device="cpu", precision=args.precision, single_engine_threads=2)
    alone: dict[str, Any] = {}
    runner = model.runner(max_rows=ROWS)
    for request in requests:
        alone |= decode(runner, [request], None)
    different: dict[str, int] = dict.fromkeys(STRATEGIES, 0)
    tokens = 0
    for mix in range(args.mixes):
        rng = random.Random(mix)
        some = rng.sample(requests, len(requests))
        for name, answers in decode(model.runner(max_rows=ROWS), some, rng).items():
            different[name.partition(" ")[2]] += answers != alone[name]
            tokens += sum(len(answer[0]) for answer in answers)
    quantization = model.variant.quantization
    scheme = quantization.scheme if quantization else model.choice.precision
    figures = {
        "scheme": scheme,
        "requests": len(requests),
        "mixes": args.mixes,
        "tokens": tokens,
        "different": different,
    }
    print(json.dumps(figures) if args.json else "\n".join(f"{name:12}{value}" for name, value in figures.items()))
    sys.exit(any(different.values()))
