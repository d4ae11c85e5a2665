"""Do several checkouts of this repository give bit-identical answers? Tokens, log-probabilities and scores.

Each serves a bundle with its own code and receives all sentences concurrently: greedy, with beams of 4 and by sampling
with a seed for each sentence. Exits with 1 when any answer differs from the first checkout's.

CHECKOUT: a directory with its stubs generated, such as one that `git worktree add` made. --bundle: one for all, or
one for each.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.load.calls import Calls, calls_of
from bench.measure import report
from bench.sentences import sentence_pairs
from bench.speed.compare_checkouts import Served, serve
from glossa.v1 import glossa_pb2 as pb

SHOWN = 3  # differing answers of a strategy that are printed
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam 4": {"beam_size": 4, "num_hypotheses": 4},
    "sampling": {"temperature": 1.0},
    "nucleus sampling": {"temperature": 0.8, "top_p": 0.9},
}


def answers(one: Served, calls: Calls, texts: list[str], max_tokens: int, strategy: str) -> list[Any]:
    """For each text its finish reason and, of every hypothesis, text, tokens, log-probabilities and scores."""
    asked = []
    for number, text in enumerate(texts):
        options = {**STRATEGIES[strategy], **({"seed": number} if "sampling" in strategy else {})}
        decoding = pb.DecodingOptions(max_tokens=max_tokens, token_logprobs=True, **options)
        asked.append(calls.request(text=text, options=decoding, include_tokens=True).SerializeToString())
    found = []
    for message in one.connection.call(calls.path, asked):
        response = calls.response.FromString(message)
        hypotheses = [
            (
                hypothesis.text,
                tuple(hypothesis.tokens),
                tuple((token.token, token.logprob) for token in hypothesis.token_logprobs),
                hypothesis.score,
                hypothesis.cumulative_logprob,
            )
            for hypothesis in response.hypotheses
        ]
        assert all(tokens and len(tokens) == len(logprobs) for _, tokens, logprobs, *_ in hypotheses), response
        found.append((response.text, tuple(response.tokens), response.finish_reason, hypotheses))
    return found


@case(
    checkouts=Flag([], "the first one is what the others are compared with", type=Path, positional=True),
    bundle=Flag([], type=Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    sentences=1000,
    precision="auto",
    max_tokens=60,
)
def compare_answers(options: argparse.Namespace) -> None:
    texts = [source for source, _ in sentence_pairs(options.data, options.sentences)]
    calls, result, differing = calls_of(options.bundle[0]), dict[str, Any](), 0
    with ExitStack() as stack:
        first, *others = serve(stack, options.checkouts, options.bundle, options.precision)
        for strategy in STRATEGIES:
            expected = answers(first, calls, texts, options.max_tokens, strategy)
            distinct = len({answer[1] for answer in expected})
            result[f"{strategy}: answers of {first.checkout}"] = f"{len(expected)}, {distinct} different ones"
            for other in others:
                found = answers(other, calls, texts, options.max_tokens, strategy)
                wrong = [
                    (*pair, text) for *pair, text in zip(expected, found, texts, strict=True) if pair[0] != pair[1]
                ]
                result[f"{strategy}: bit-identical, {other.checkout}"] = f"{len(texts) - len(wrong)} of {len(texts)}"
                differing += len(wrong)
                for mine, theirs, text in wrong[:SHOWN]:
                    print(f"{strategy}: {text}\n  {mine}\n  {theirs}", file=sys.stderr)
    report(result, [], as_json=options.json)
    sys.exit(differing > 0)
