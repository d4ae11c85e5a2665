"""All logits processors of a request (`processors_of`): penalties, bans, its grammar, its lexical constraints.

They are built from the request's options and tokens where it is decoded, so that a request itself is plain data. With
`SLOW_OPTIONS` that takes up to seconds: a grammar is compiled, texts are looked up in the vocabulary.
"""

from __future__ import annotations

import functools

import numpy as np

from model.tokenizer import Tokenizer
from service.decoding.lexical_constraints import LexicalConstraints
from service.decoding.logits_processors import (
    AllowedTokens,
    BannedTexts,
    LogitBias,
    LogitsProcessor,
    MinLength,
    NoRepeatNGram,
    PrefixBias,
    PresenceFrequencyPenalty,
    RepetitionPenalty,
)
from service.decoding.prompt_form import PLAIN, PromptForm
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest
from service.phrase_variants import phrase_variants
from service.request import Request

SLOW_OPTIONS = ("bad_words", "phrases", "allowed_tokens", "grammars")


def processors_of(
    request: Request, vocabulary: Vocabulary, tokenizer: Tokenizer, form: PromptForm = PLAIN
) -> tuple[LogitsProcessor, ...]:
    """The logits processors of a request, penalties first, lexical constraints last. tokenizer: of target texts. form:
    see `PromptForm`.

    Penalties run in the order of transformers and vLLM: a bias may change the sign of a logit, on which the repetition
    penalty depends. Nothing is masked unless a request asks for it; only min_tokens and ignore_eos exclude end tokens.
    Raises InvalidRequest for a grammar or a phrase that is invalid for this vocabulary, phrases that need more tokens
    than the answer may have, and a forced prefix that other constraints exclude.
    """
    options, eos_ids = request.options, vocabulary.eos_ids
    presence, frequency = options.presence_penalty, options.frequency_penalty
    processors: list[LogitsProcessor] = []
    if options.logit_bias:
        processors.append(LogitBias(options.logit_bias))
    if options.repetition_penalty != 1.0:
        processors.append(RepetitionPenalty(options.repetition_penalty, request.prompt))
    if presence or frequency:
        processors.append(PresenceFrequencyPenalty(presence=presence, frequency=frequency))
    if options.prefix_bias:
        processors.append(PrefixBias(options.prefix_bias, request.preferred_prefix))
    if options.min_tokens or options.ignore_eos:
        processors.append(MinLength(eos_ids, before=request.max_tokens if options.ignore_eos else options.min_tokens))
    if options.no_repeat_ngram_size:
        processors.append(NoRepeatNGram(options.no_repeat_ngram_size, form.own_prompt(request), eos_ids=eos_ids))
    masks: list[LogitsProcessor] = []
    if options.bad_words:
        masks.append(BannedTexts(options.bad_words, vocabulary))
    if options.allowed_tokens:
        masks.append(AllowedTokens({*options.allowed_tokens, *eos_ids}))
    if options.grammars:
        from service.decoding.grammar import Grammar  # its library takes 60 ms to import: not when a process starts

        masks += [Grammar(kind, text, vocabulary, width=options.width) for kind, text in options.grammars]
    for mask in masks:
        _check_prefix(request, mask, len(vocabulary))
    processors += masks
    if options.phrases:
        processors.append(_lexical_constraints(request, vocabulary, tokenizer))
    return tuple(processors)


def _check_prefix(request: Request, mask: LogitsProcessor, vocab_size: int) -> None:
    """Rejects a forced prefix that a mask excludes."""
    state, prefix = mask.initial_state(), request.prefix
    for index, token in enumerate(prefix):
        scores_V = np.zeros(vocab_size, np.float32)
        if mask.applies(state, prefix[:index]):
            mask.apply(scores_V, state, prefix[:index])
        if scores_V[token] == -np.inf:
            name = "options.prefix" if request.options.prefix else "options.prefix_tokens"
            raise InvalidRequest(name, f"token {index} is excluded by another constraint")
        state = mask.next_state(state, token)


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
