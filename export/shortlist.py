"""Learns from parallel text which target tokens can translate a source: the content of `shortlist.json`.

The method is IBM Model 1 (Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.1) over
token ids: every target token comes from one source token or from none, with equal prior probability; expectation
maximization estimates the probability of each target token given the source token. A decoder restricted to a few
hundred probable tokens computes no other logits (`export.passes.shortlist`) and cannot choose unrelated tokens.
`export.bundle.directory` reads shortlists.

Work and memory are bounded for any size of the text: see the limits below.

E links: a source position and a target position of one pair; U distinct (source token, target token) of all links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from export.bundle.target_shortlist import Shortlist
from model.tokenizer import Tokenizer

MAX_PAIRS = 50_000  # more pairs only sharpen known probabilities and add rare words
MAX_TOKENS = 100  # of one side; longer pairs align badly and cost the product of their lengths
MAX_LINKS = 10_000_000  # 0.7 GB while learning from text, 1.3 GB if no two words ever co-occur twice; 20 s
HELD_OUT = 500  # pairs for measurement only, at most a tenth
ITERATIONS = 5  # Model 1 improves little afterwards
BEST = 50  # target tokens of one source token
LEAST_PROBABILITY = 1e-3
ALWAYS = 100  # most frequent target tokens, allowed for every source; at most an eighth of the vocabulary

Pair = tuple[Sequence[int], Sequence[int]]


def learn_shortlist(
    texts: Sequence[tuple[str, str]], tokenizer: Tokenizer, *, eos_id: int
) -> tuple[Shortlist, dict[str, float]]:
    """Learn from pairs of source and target text; large inputs are reduced to a deterministic sample across all pairs.

    Returns the shortlist and its figures: the numbers of pairs used for learning ("pairs") and held out ("held_out")
    and, if any were, the share of the tokens of held-out targets that their sources allow ("coverage") and the mean
    number of tokens that a held-out source allows ("mean_allowed"). Raises ValueError when no pair can be used.
    """
    order = np.random.default_rng(1).permutation(len(texts))[: MAX_PAIRS + HELD_OUT].tolist()
    sides = enumerate((tokenizer, tokenizer.target))
    sources, targets = (one.encode_batch([texts[i][side] for i in order]) for side, one in sides)
    pairs = [pair for pair in zip(sources, targets, strict=True) if all(0 < len(side) <= MAX_TOKENS for side in pair)]
    if not pairs:
        raise ValueError(f"no pair has 1..{MAX_TOKENS} tokens on either side")
    held_out = pairs[: min(HELD_OUT, len(pairs) // 10)]
    rest = pairs[len(held_out) :][:MAX_PAIRS]
    used = rest[: _within_budget(rest)]
    textless = [token for token, piece in enumerate(tokenizer.target.pieces) if not piece]
    shortlist = shortlist_of(used, tokenizer.target.vocab_size, always=(eos_id,), textless=textless)
    shortlist = replace(shortlist, copies=not tokenizer.has_two_vocabularies)
    return shortlist, {"pairs": len(used), "held_out": len(held_out), **_measured(shortlist, held_out)}


def _within_budget(pairs: Sequence[Pair]) -> int:
    """Return how many of the first pairs have at most MAX_LINKS links together; at least one."""
    links = np.cumsum([(len(source) + 1) * len(target) for source, target in pairs])
    return max(1, int(np.searchsorted(links, MAX_LINKS, side="right")))


def _measured(shortlist: Shortlist, held_out: Sequence[Pair]) -> dict[str, float]:
    if not held_out:
        return {}
    allowed = [shortlist.allowed(source) for source, _ in held_out]
    found = [token in ids for ids, (_, target) in zip(allowed, held_out, strict=True) for token in target]
    mean_allowed = sum(map(len, allowed)) / len(allowed)
    return {"coverage": round(sum(found) / len(found), 4), "mean_allowed": round(mean_allowed, 4)}


def shortlist_of(
    pairs: Sequence[Pair], vocab_size: int, *, always: Sequence[int] = (), textless: Sequence[int] = ()
) -> Shortlist:
    """Return the BEST target tokens of every source token, best first, and, for every source, `always` and the most
    frequent target tokens.

    pairs: token ids, without start and end tokens. textless: ids without text, never counted as frequent.
    """
    counts = np.bincount(np.concatenate([target for _, target in pairs]), minlength=vocab_size)
    counts[list(textless)] = 0
    limit = min(ALWAYS, vocab_size // 8)
    frequent = [int(token) for token in np.argsort(-counts, kind="stable")[:limit] if counts[token]]
    sources_U, targets_U, probabilities_U = translation_probabilities(pairs, vocab_size)
    order = np.lexsort((targets_U, -probabilities_U, sources_U))
    order = order[probabilities_U[order] >= LEAST_PROBABILITY]
    by_source: dict[int, list[int]] = {}
    for source, target in zip(sources_U[order].tolist(), targets_U[order].tolist(), strict=True):
        best = by_source.setdefault(source, [])
        if len(best) < BEST:
            best.append(target)
    return Shortlist(
        always=tuple(dict.fromkeys([*always, *frequent])),
        by_source={source: tuple(best) for source, best in by_source.items()},
    )


def translation_probabilities(
    pairs: Sequence[Pair], vocab_size: int, iterations: int = ITERATIONS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run Model 1 and return source tokens (U,), target tokens (U,) and P(target | source) float64 (U,).

    Only pairs of tokens that co-occur in some sentence have a probability. The "no word" that begins every source takes
    its share in learning and is excluded from the result.
    """
    nothing = 1 + max(max(source) for source, _ in pairs)  # the id of "no word"; sources may have ids of their own
    keys, owners, first = list[np.ndarray](), list[np.ndarray](), 0
    for source, target in pairs:
        lines = np.array([nothing, *source], np.int64) * vocab_size
        keys.append((lines[None, :] + np.array(target, np.int64)[:, None]).ravel())
        owners.append(np.repeat(np.arange(first, first + len(target), dtype=np.int32), len(lines)))
        first += len(target)
    owner_E = np.concatenate(owners)
    key_U, index_E = np.unique(np.concatenate(keys), return_inverse=True)
    index_E = index_E.astype(np.int32)
    source_U, target_U = key_U // vocab_size, key_U % vocab_size
    probability_U = np.ones(len(key_U))  # uniform: the first step is the same for any constant
    for _ in range(iterations):
        share_E = probability_U[index_E]
        share_E /= np.bincount(owner_E, share_E)[owner_E]
        expected_U = np.bincount(index_E, share_E)
        probability_U = expected_U / np.bincount(source_U, expected_U)[source_U]
    real = source_U != nothing
    return source_U[real], target_U[real], probability_U[real]
