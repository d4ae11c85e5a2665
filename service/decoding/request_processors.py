"""All logits processors of a request (`processors_of`): penalties, bans, its grammar, its lexical constraints.

They are built from the request's options and tokens where it is decoded, so that a request itself is plain data. With
`SLOW_OPTIONS` that takes up to seconds: a grammar is compiled, texts are looked up in the vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from model.tokenizer import Tokenizer
from service.decoding.grammar import Grammar
from service.decoding.lexical_constraints import LexicalConstraints, phrase_variants
from service.decoding.logits_processors import AllowedTokens, BannedTexts, LogitsProcessor, build_logits_processors
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest
from service.request import Request

SLOW_OPTIONS = ("bad_words", "phrases", "allowed_tokens", "grammars")


def processors_of(request: Request, vocabulary: Vocabulary, tokenizer: Tokenizer) -> tuple[LogitsProcessor, ...]:
    """The logits processors of a request, lexical constraints last. tokenizer: of target texts.

    Raises InvalidRequest for a grammar or a phrase that is invalid for this vocabulary, phrases that need more tokens
    than the answer may have, and a forced prefix that other constraints exclude.
    """
    options = request.options
    processors: list[LogitsProcessor] = [
        *build_logits_processors(
            options,
            vocabulary=vocabulary,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            prefix=request.preferred_prefix,
        ),
        *(Grammar(kind, grammar, vocabulary, width=options.width) for kind, grammar in options.grammars),
    ]
    _check_prefix(request, processors, len(vocabulary))
    if options.phrases:
        processors.append(_lexical_constraints(request, vocabulary, tokenizer))
    return tuple(processors)


def _check_prefix(request: Request, processors: Sequence[LogitsProcessor], vocab_size: int) -> None:
    """Rejects a forced prefix that the other constraints exclude."""
    name = "options.prefix" if request.options.prefix else "options.prefix_tokens"
    prefix = request.prefix
    strict: list[LogitsProcessor] = [
        processor for processor in processors if isinstance(processor, BannedTexts | AllowedTokens | Grammar)
    ]
    for processor in strict:
        state = processor.initial_state()
        for index, token in enumerate(prefix):
            scores_V = np.zeros(vocab_size, np.float32)
            if processor.applies(state, prefix[:index]):
                processor.apply(scores_V, state, prefix[:index])
            if scores_V[token] == -np.inf:
                raise InvalidRequest(name, f"token {index} is excluded by another constraint")
            state = processor.next_state(state, token)


def _lexical_constraints(request: Request, vocabulary: Vocabulary, tokenizer: Tokenizer) -> LexicalConstraints:
    """The required phrases, of which the forced prefix may contain some."""
    options, max_tokens = request.options, request.max_tokens
    constraints = LexicalConstraints(
        [
            phrase_variants(tokenizer, text, field=f"options.phrases[{index}]")
            for index, text in enumerate(options.phrases)
        ],
        vocabulary,
        ordered=options.ordered_phrases,
        max_tokens=max_tokens,
        before=request.continued_text,
    )
    state = functools.reduce(constraints.next_state, request.prefix, constraints.initial_state())
    needed = len(request.prefix) + constraints.remaining(state) + 1
    if needed > max_tokens:
        raise InvalidRequest(
            "options.phrases",
            f"must need at most {max_tokens} tokens, the limit by {options.length_limit(max_tokens)}, end token "
            f"included, got {needed}",
        )
    return constraints
