"""Cost of a constrained row per step outside the graph: applying rules, finding the best tokens, new states.


Medians in microseconds per row and step, over random distributions, for beam search with a beam of 4 (8 candidates).
With a bundle its tokenizer is used, otherwise one with a vocabulary of the same size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from bench.case import case
from export.bundle.manifest import TOKENIZER
from model.tokenizer import Tokenizer
from service.decoding.grammar import Grammar
from service.decoding.lexical_constraints import LexicalConstraints
from service.decoding.logits_processors import LogitsProcessor
from service.decoding.request_processors import processors_of
from service.decoding.token_selection import TokenSelector, log_softmax, top_tokens
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest
from service.options import DecodingOptions, GrammarKind
from service.request import Request

CANDIDATES = 8
SCHEMA = json.dumps(
    {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}, "required": ["name", "n"]}
)
OPTIONS: dict[str, dict[str, Any]] = {
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 3},
    "banned, 2 texts": {"bad_words": ("der", "xy")},
    "allowed_tokens": {"allowed_tokens": tuple(range(4, 300))},
    "min_tokens": {"min_tokens": 99},
    "logit_bias": {"logit_bias": {5: 1.0}},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "presence and frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "prefix_bias": {"prefix_bias": 0.5},
}
GRAMMARS: dict[str, tuple[GrammarKind, str]] = {
    "regex": ("regex", "[a-zäöüß ]+[.]"),
    "json_schema": ("json_schema", SCHEMA),
    "lark": ("lark", 'start: "a" b\nb: /[a-z ]+/'),
}


class Predicted(NamedTuple):
    """The predictions of one row as a step's output has them."""

    logprobs_V: np.ndarray
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]

    def logprobs(self, row: int) -> np.ndarray:
        return self.logprobs_V

    def logsumexp(self, row: int) -> float:
        return 0.0


def cost(rules: Iterable[LogitsProcessor], vocabulary: Vocabulary, steps: int) -> float:
    rng, times = np.random.default_rng(1), list[float]()
    request = Request(request_id="", prompt=(1,), max_tokens=2 * steps)
    selector = TokenSelector(request, eos_ids=vocabulary.eos_ids, stops=None, processors=tuple(rules))
    hypothesis = selector.start()
    hypothesis.row = 0
    for _ in range(steps):
        logprobs_V = log_softmax(rng.normal(size=len(vocabulary)).astype(np.float32))
        ids, logprobs = zip(*top_tokens(logprobs_V, CANDIDATES + selector.spare), strict=True)
        output: Any = Predicted(logprobs_V, [list(ids)], [list(logprobs)])
        began_s = time.perf_counter()
        best = selector.best_tokens(hypothesis, output, CANDIDATES)
        token, score = next(scored for scored in best if scored[0] not in vocabulary.eos_ids)
        selector.append(hypothesis, token, output, score)
        times.append(time.perf_counter() - began_s)
    return 1e6 * statistics.median(times)


@case("bundle?", words=32000, steps=40)
def constraint_cost(args: argparse.Namespace) -> None:
    if args.bundle:
        tokenizer = Tokenizer.load(args.bundle / TOKENIZER)
    else:
        words = " ".join(np.base_repr(number, 36).lower() for number in range(args.words - 4))
        tokenizer = Tokenizer.train([words], kind="words", vocab_size=args.words)
    vocabulary = Vocabulary.of(tokenizer, eos_ids=(2,))
    print(f"{len(vocabulary)} tokens; µs per row and step")
    for name, options in OPTIONS.items():
        request = Request(
            request_id=name,
            prompt=(1,),
            max_tokens=100,
            preferred_prefix=tuple(range(5, 60)),
            options=DecodingOptions(**options),
        )
        rules = processors_of(request, vocabulary, tokenizer)
        print(f"{name:24}{cost(rules, vocabulary, args.steps):8.0f}")
    phrases = LexicalConstraints([((5, 6),), ((7,),)], vocabulary, ordered=False, max_tokens=100)
    print(f"{'phrases':24}{cost([phrases], vocabulary, args.steps):8.0f}")
    for name, (kind, text) in GRAMMARS.items():
        began_s = time.perf_counter()
        try:
            grammar = Grammar(kind, text, vocabulary)
        except InvalidRequest as error:  # a closed vocabulary may lack the characters
            print(f"{name:24}{error.problem}")
            continue
        compiled_ms = 1e3 * (time.perf_counter() - began_s)
        print(f"{name:24}{cost([grammar], vocabulary, args.steps):8.0f}   made in {compiled_ms:.1f} ms")
