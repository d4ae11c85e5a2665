"""The exact analysis of grammar rules: what they derive, with which probabilities, and their entropy.

Totals are cached by rule, so that a grammar of 10^20 sentences is counted in a second.
"""

import math
from bisect import bisect_right
from functools import cache
from itertools import pairwise

from model.corpus.grammar import Choice, Join, Value


def logprobs(choice):
    """The log-probability of each option, in nats."""
    return [math.log((limit - before) / choice.limits[-1]) for before, limit in pairwise([0, *choice.limits])]


def outcomes(rule):
    """Every derivation and its log-probability. Only for small rules: there are `count` of them."""
    if isinstance(rule, Value):
        yield rule.value, 0.0
    elif isinstance(rule, Choice):
        for option, own in zip(rule.options, logprobs(rule), strict=True):
            yield from ((value, own + logprob) for value, logprob in outcomes(option))
    else:
        yield from ((rule.function(*values), logprob) for values, logprob in _combined(rule.parts))


def _combined(parts):
    if not parts:
        yield (), 0.0
        return
    for value, own in outcomes(parts[0]):
        yield from (((value, *values), own + logprob) for values, logprob in _combined(parts[1:]))


def drawn(rule, uniform):
    """What `rule.draw(uniform)` returns, and the log-probability of all choices that it makes."""
    if isinstance(rule, Choice):
        index = bisect_right(rule.limits, int(uniform() * rule.limits[-1]))
        value, logprob = drawn(rule.options[index], uniform)
        return value, logprobs(rule)[index] + logprob
    if isinstance(rule, Join):
        parts = [drawn(part, uniform) for part in rule.parts]
        return rule.function(*(value for value, _ in parts)), sum(logprob for _, logprob in parts)
    return rule.value, 0.0


@cache
def count(rule):
    """The number of derivations; that of distinct values when the rule is unambiguous."""
    if isinstance(rule, Choice):
        return sum(map(count, rule.options))
    return math.prod(map(count, rule.parts)) if isinstance(rule, Join) else 1


@cache
def entropy(rule):
    """In nats per derivation."""
    if isinstance(rule, Choice):
        options = zip(rule.options, logprobs(rule), strict=True)
        return sum(math.exp(own) * (entropy(option) - own) for option, own in options)
    return sum(map(entropy, rule.parts)) if isinstance(rule, Join) else 0.0
