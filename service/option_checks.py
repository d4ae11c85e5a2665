"""Checks of decoding options that need no model (`check`, `check_scoring`), each once and before any work is done.

Ranges and sizes come from the list of options (`service.options`); this module adds the rules between options.
What depends on a model (its limits, tokenizer and bundle) is checked at the edge.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Set
from typing import Any, Literal, get_args, get_origin, get_type_hints

from service.errors import InvalidRequest
from service.options import DEFAULTS, OPTIONS, SAMPLING, DecodingOptions, Option

CHOICES: Mapping[str, tuple[str, ...]] = {
    name: get_args(kind) for name, kind in get_type_hints(DecodingOptions).items() if get_origin(kind) is Literal
}

_FOUND_RIGHT = weakref.WeakValueDictionary[int, DecodingOptions]()
"""Options that have passed `check`, by their identity: small ones are the same object for many requests."""


def check(options: DecodingOptions) -> None:
    """Raises InvalidRequest for values out of range and for options that contradict each other, whatever the model."""
    if options is DEFAULTS or _FOUND_RIGHT.get(id(options)) is options:  # most requests
        return
    changed = _changed(options)
    check_values(options, changed)
    if 0 < options.max_tokens < options.min_tokens:
        raise _refused("min_tokens", f"must be 0..{options.max_tokens}, as max_tokens is, got {options.min_tokens}")
    _check_needs(options, changed, set(changed))
    if options.beam_size > 1:
        _check_beam(options, changed)
    elif options.num_hypotheses > 1 and not options.return_alternatives:
        several = "num_sequences samples several answers"
        fix = several if options.is_sampling else "set beam_size, or return_alternatives"
        raise _refused("num_hypotheses", f"must be at most beam_size 1, got {options.num_hypotheses}; {fix}")
    _check_sampling(options, changed)
    _check_alternatives(options)
    _check_constraints(options)
    _FOUND_RIGHT[id(options)] = options


def check_single(options: DecodingOptions) -> None:
    """Rejects options for more than the text of the best answer. Raises InvalidRequest."""
    problem = "must be left out here: only the text of the best answer is returned"
    for name in ("num_hypotheses", "num_sequences"):
        if getattr(options, name) > 1:
            raise _refused(name, problem)
    for name in ("return_alternatives", "token_logprobs", "top_logprobs"):
        if getattr(options, name):
            raise _refused(name, problem)
    if options.alignment != "none":
        raise _refused("alignment", problem)


def check_scoring(options: DecodingOptions) -> None:
    """The same for a request that scores a given target. Raises InvalidRequest for options of a search, too."""
    changed = _changed(options)
    for name in changed:
        if not OPTIONS[name].scores:
            raise _refused(name, "must be left out: a target that is given is not searched for")
    check_values(options, changed)
    _check_needs(options, changed, {*changed, "beam_size"})  # a score is that of a beam


def _refused(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"options.{name}", problem)


def _changed(options: DecodingOptions) -> list[str]:
    """Names of the options that are not at their defaults."""
    defaults = vars(DEFAULTS)
    return [name for name, value in vars(options).items() if value != defaults[name]]


def check_values(options: DecodingOptions, names: Iterable[str]) -> None:
    """Some options, each by itself: its choices, its range, its size. Raises InvalidRequest."""
    for name in names:
        value = getattr(options, name)
        if name in CHOICES and value not in CHOICES[name]:
            raise _refused(name, f"must be one of {', '.join(CHOICES[name])}, got {value}")
        if isinstance(value, tuple | Mapping):
            _check_items(name, value)
        elif isinstance(value, str):
            most = OPTIONS[name].max_bytes
            if most and (size := len(value.encode())) > most:
                raise _refused(name, f"must be at most {most} bytes, got {size}")
        elif value is not None:
            _check_number(name, value, OPTIONS[name])


def _check_items(name: str, items: tuple[Any, ...] | Mapping[int, float]) -> None:
    known = OPTIONS[name]
    kind = "tokens" if isinstance(items, Mapping) else "texts" if known.max_bytes else "numbers"
    if known.max_items and len(items) > known.max_items:
        raise _refused(name, f"must be at most {known.max_items} {kind}, got {len(items)}")
    if isinstance(items, Mapping):
        for token, value in items.items():
            _check_number(f"{name}[{token}]", value, known)
    elif known.max_bytes:
        for place, text in enumerate(items):
            if not text.strip():
                raise _refused(f"{name}[{place}]", "must not be empty or blank")
            if (size := len(text.encode())) > known.max_bytes:
                raise _refused(f"{name}[{place}]", f"must be 1..{known.max_bytes} bytes, got {size}")


def _check_number(name: str, value: float, known: Option) -> None:
    if known.range is not None and value not in known.range:
        raise _refused(name, f"must be {known.range}, got {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_needs(options: DecodingOptions, changed: Iterable[str], given: Set[str]) -> None:
    """Rejects an option that changes nothing without one of others."""
    for name in changed:
        needs = OPTIONS[name].needs
        if needs and given.isdisjoint(needs):
            shown = _shown(getattr(options, name))
            raise _refused(name, f"must be left out without {' or '.join(needs)}, got {shown}; set {needs[0]}")


def _check_beam(options: DecodingOptions, changed: Iterable[str]) -> None:
    size, groups, answers = options.beam_size, options.num_beam_groups, options.num_hypotheses
    for name in changed:
        value = getattr(options, name)
        if name in SAMPLING and not (name == "temperature" and value == 0):
            shown = _shown(value)
            raise _refused(name, f"must be left out with beam_size {size}: a beam draws no tokens, got {shown}")
    if answers > size:
        raise _refused("num_hypotheses", f"must be at most beam_size {size}, got {answers}; raise beam_size")
    if size % groups:
        raise _refused("num_beam_groups", f"must divide beam_size {size}, got {groups}")
    if answers > options.max_finished:
        kept = f"{options.max_finished}, which patience {options.patience:g} keeps of a beam"
        raise _refused("num_hypotheses", f"must be at most {kept}, got {answers}; raise patience")
    penalty = options.diversity_penalty
    if penalty and groups == 1:
        raise _refused("diversity_penalty", f"must be 0 with one group, got {penalty:g}; set num_beam_groups")
    if groups > 1 and not penalty:
        problem = f"must be 1 without diversity_penalty, got {groups}: all groups would be the same"
        raise _refused("num_beam_groups", problem)


def _check_sampling(options: DecodingOptions, changed: Iterable[str]) -> None:
    if options.temperature == 0:
        for name in (SAMPLING.keys() & set(changed)) - {"temperature"}:
            shown = _shown(getattr(options, name))
            raise _refused(name, f"must be left out with temperature 0: nothing is sampled then, got {shown}")


def _check_alternatives(options: DecodingOptions) -> None:
    if not options.return_alternatives:
        return
    if options.beam_size > 1:
        problem = f"must be false with a beam, got true with beam_size {options.beam_size}"
        raise _refused("return_alternatives", problem)
    if options.is_sampling:
        raise _refused("return_alternatives", "must be false when sampling, got true: each continues greedily")
    if options.num_hypotheses == 1:
        raise _refused("num_hypotheses", "must be at least 2 with return_alternatives, got 1: so many are returned")
    if options.prefix_bias:
        problem = "must be false with prefix_bias, got true: alternatives follow a forced prefix"
        raise _refused("return_alternatives", problem)


def _check_constraints(options: DecodingOptions) -> None:
    if options.prefix and options.prefix_tokens:
        raise _refused("prefix_tokens", "must be empty with prefix: both give the beginning of the answer; omit one")
    if len(options.grammars) > 1:
        (first, _), (second, _), *_ = options.grammars
        raise _refused(second, f"must be empty with {first}: an answer has one grammar; omit one")
    if options.phrases and (options.is_sampling or options.return_alternatives):
        other = "return_alternatives" if options.return_alternatives else "sampling"
        raise _refused("phrases", f"must be empty with {other}: only a beam makes room for them; set beam_size")
    required = {f"phrases[{place}]": phrase for place, phrase in enumerate(options.phrases)}
    if not options.prefix_bias:
        required["prefix"] = options.prefix
    for field, text in required.items():
        for name in ("bad_words", "stop"):
            for excluded in getattr(options, name):
                if excluded in text:
                    raise _refused(field, f"must not contain {excluded!r}, which {name} excludes")
