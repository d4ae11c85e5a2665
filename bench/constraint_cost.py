"""Cost of a constrained row per step outside the graph: applying rules, finding the best tokens, new states.


Medians in microseconds per row and step, over random distributions, for beam search with a beam of 4 (8 candidates).
With a bundle its tokenizer is used, otherwise one with a vocabulary of the same size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from bench.case import case
from export.manifest import TOKENIZER
from model.tokenizer import Tokenizer
from service.decoding.grammar import Grammar
from service.decoding.lexical_constraints import LexicalConstraints
from service.decoding.logits_processors import LogitsProcessor
from service.decoding.request_processors import processors_of
from service.decoding.token_selection import log_softmax, top_tokens
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest
from service.options import DecodingOptions, GrammarKind
from service.request import Request

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


def cost(rules: list[LogitsProcessor], vocabulary: Vocabulary, steps: int) -> float:
    rng = np.random.default_rng(1)
    states, tokens, times = [rule.initial_state() for rule in rules], list[int](), list[float]()
    for _ in range(steps):
        logprobs_V = log_softmax(rng.normal(size=len(vocabulary)).astype(np.float32))
        began_s = time.perf_counter()
        scores_V = logprobs_V.copy()
        active = [(rule, s) for rule, s in zip(rules, states, strict=True) if rule.applies(s, tokens)]
        for rule, state in active:
            if not rule.is_mask:
                rule.apply(scores_V, state, tokens)
        if any(not rule.is_mask for rule, _ in active):
            scores_V = log_softmax(scores_V)
        for rule, state in active:
            if rule.is_mask:
                rule.apply(scores_V, state, tokens)
        token = next(
            token for token, _ in top_tokens(scores_V, 8) if token not in vocabulary.eos_ids or len(active) == 0
        )
        states = [rule.next_state(state, token) for rule, state in zip(rules, states, strict=True)]
        times.append(time.perf_counter() - began_s)
        tokens.append(token)
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
        print(f"{name:24}{cost(list(rules), vocabulary, args.steps):8.0f}")
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
