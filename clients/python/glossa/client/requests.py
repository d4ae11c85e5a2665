"""Keyword arguments of calls, and the fields of requests that they become.

The decoding options are documented in `options` and in docs/decoding.md; the server checks their values.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from glossa.client.fields import check_list, check_seconds, new_message
from glossa.client.options import PEER_NAMES, DecodingOptions, ScoringOptions
from glossa.client.types import Span, enum_names
from glossa.v1 import glossa_pb2 as pb

AttentionKind = Literal["encoder", "decoder", "cross"]
Pooling = Literal["mean", "cls", "max", "last", "pooler", "mean_sqrt_len", "weighted_mean"]
Measure = Literal["cosine", "dot", "euclidean"]
MarkKind = Literal["tags", "placeholders", "urls", "numbers"]
_LANGUAGES = ("source_language", "target_language")
_OWN = ("model", "include_tokens", "timeout_s", *_LANGUAGES)  # options of a call, not of decoding
_TEXT = {  # fields by their options
    **{name: name for name in ("uncertain_below", "split_sentences", "splitter_language", "pivot_language")},
    "confidence": "include_confidence",
}
_TRANSLATION = (*_TEXT, "markup", "glossary")  # options of `translate` alone
_FIELDS = pb.DecodingOptions.DESCRIPTOR.fields_by_name
_PEERS = {
    **PEER_NAMES,
    "do_sample": "temperature, top_k or top_p",  # any of which samples
    "max_length": "max_tokens",
    "min_length": "min_tokens",
    "stop_sequences": "stop",
    "src_lang": "source_language",
    "tgt_lang": "target_language",
}  # what other libraries call an option


class CallOptions(TypedDict, total=False):
    """Keyword arguments of every call. Each may be omitted."""

    model: str
    """Name on the server; may be omitted when one model fits, by its task or by the languages."""
    source_language: str
    """Code of the text's language, for models that have languages, and to choose one; auto: detect it."""
    target_language: str
    """Code of the answer's language, likewise."""
    timeout_s: float
    """Deadline of this call, instead of the client's."""


class Options(CallOptions, DecodingOptions, total=False):
    """Keyword arguments of calls that produce text. Each may be omitted."""

    include_tokens: bool
    """Return the token ids of the answer. Default: false."""


class TranslateOptions(Options, total=False):
    """Keyword arguments of calls that translate. Each may be omitted."""

    markup: Sequence[MarkKind]
    """Kinds of marks that are not translated, but put back into the answer. Default: none."""
    glossary: str | Mapping[str, str | Sequence[str]] | Sequence[pb.GlossaryTerm]
    """The name of a glossary of the server, or terms and their translations, preferred form first. Default: none."""
    confidence: bool
    """Return how sure the model is of its answer and of each word. Default: false."""
    uncertain_below: float
    """A word is uncertain if its confidence is below this, 0 .. 1. Default: 0.5."""
    split_sentences: bool
    """Translate a text sentence by sentence. Default: as the model was trained. Documents are always split."""
    splitter_language: str
    """Code of the language whose rules split it; und: into paragraphs alone. Default: source_language, else en."""
    pivot_language: str
    """Translate by way of this language, with two models. Default: only where no model translates directly."""


class ScoreOptions(CallOptions, ScoringOptions, total=False):
    """Keyword arguments of `score`. Each may be omitted."""


class AttendOptions(CallOptions, total=False):
    """Keyword arguments of `attend`. Layers and heads count from 1. Each may be omitted."""

    target: str
    """The answer to analyse; without one the model generates it."""
    target_tokens: Sequence[int]
    """The same as token ids."""
    text_only: bool
    """Analyse the text without an answer."""
    max_tokens: int
    """Maximum number of tokens of a generated answer."""
    kinds: Sequence[AttentionKind]
    """Default: all that the model has."""
    layers: Sequence[int]
    """Default: all."""
    heads: Sequence[int]
    """Default: all."""
    mean_layers: bool
    """Return the mean over the layers."""
    mean_heads: bool
    """Return the mean over the heads."""


def closest(name: str, known: Collection[str]) -> str:
    """A hint for an unknown name: the known one that other libraries call so, the most similar one, or all of them."""
    if (own := _PEERS.get(name)) and own.split()[0].strip(",") in known:
        return f"{name} is {own} here"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"


def model_fields(options: CallOptions) -> dict[str, Any]:
    """The fields of a request that name its model and its languages; of the latter those that are not empty."""
    check_seconds("timeout_s", options.get("timeout_s"))
    given = {name: value for name, value in options.items() if value is not None}
    return {name: value for name, value in given.items() if name == "model" or (name in _LANGUAGES and value)}


def call_fields(options: CallOptions, kind: Any = CallOptions) -> dict[str, Any]:
    """The same of a call without options of its own. Raises TypeError for an option that is not of this kind."""
    for name in options:
        if name not in kind.__annotations__:
            raise TypeError(f"unknown option {name!r}; {closest(name, kind.__annotations__)}")
    return model_fields(options)


def attend_fields(options: AttendOptions) -> dict[str, Any]:
    """All fields of a request for attention but its text. Raises TypeError as `call_fields`, ValueError for an unknown
    kind of attention."""
    fields = call_fields(options, AttendOptions)
    own = AttendOptions.__annotations__.keys() - CallOptions.__annotations__.keys()
    fields |= {name: value for name, value in options.items() if name in own and value is not None}
    check_list("kinds", kinds := fields.get("kinds", ()), "kinds of attention")
    fields["kinds"] = [enum_number("kinds", pb.AttentionKind.DESCRIPTOR, kind) for kind in kinds]
    return fields


def span_messages(name: str, spans: Iterable[Span]) -> list[pb.Span]:
    """Pairs [start, end) as messages. Raises TypeError with the place, from 0, of what is none."""
    check_list(name, spans, "pairs (start, end)")
    pairs = list(spans)
    for place, pair in enumerate(pairs):
        if not (isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(end, int) for end in pair)):
            raise TypeError(f"{name}[{place}] must be a pair (start, end), got {pair!r:.80}")
    return [pb.Span(start=start, end=end) for start, end in pairs]


def translation_fields(text: str, options: TranslateOptions) -> dict[str, Any]:
    """The fields of a request to translate. Raises what `text_fields` does, ValueError for an unknown mark, TypeError
    for marks that are no list, and for a glossary of other types."""
    own = {field: value for name, field in _TEXT.items() if (value := options.get(name)) is not None}
    others = {name: value for name, value in options.items() if name not in _TRANSLATION}
    fields = {**text_fields(text, cast(Options, others), _TRANSLATION), **own}
    if kinds := options.get("markup"):
        known = pb.Markup.DESCRIPTOR.fields_by_name
        check_list("markup", kinds, "kinds of marks")
        for kind in kinds:
            if kind not in known:
                raise ValueError(f"markup must be some of {', '.join(known)}, got {kind!r}")
        fields["markup"] = pb.Markup(**dict.fromkeys(kinds, True))
    if glossary := options.get("glossary"):
        fields["glossary"] = _glossary(glossary)
    return fields


def text_fields(text: str, options: Options | ScoreOptions, others: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a request with decoding options. others: names of further options that the call takes.

    An option that is None is not given. Raises TypeError for an unknown option or a value of another type, ValueError
    for an unknown choice.
    """
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _FIELDS:
            if name not in _OWN:
                raise TypeError(f"unknown option {name!r}; {closest(name, (*_FIELDS, *_OWN, *others))}")
        elif value is not None:
            choices = _FIELDS[name].enum_type
            given[name] = enum_number(name, choices, value) if choices else value
    return {"text": text, "options": new_message(pb.DecodingOptions, **given), **model_fields(options)}


def _glossary(glossary: str | Mapping[str, str | Sequence[str]] | Sequence[pb.GlossaryTerm]) -> pb.Glossary:
    if isinstance(glossary, str):
        return pb.Glossary(name=glossary)
    if isinstance(glossary, Mapping):
        return pb.Glossary(terms=[_term(source, targets) for source, targets in glossary.items()])
    if not isinstance(glossary, Iterable):
        got = f"got {type(glossary).__name__}"
        raise TypeError(f"glossary must be a name, terms with their translations, or a list of GlossaryTerm, {got}")
    terms = list(glossary)
    if wrong := [term for term in terms if not isinstance(term, pb.GlossaryTerm)]:
        problem = f"glossary must have items of GlossaryTerm, got {type(wrong[0]).__name__}"
        raise TypeError(f"{problem}; or give a dictionary of terms and their translations")
    return pb.Glossary(terms=terms)


def _term(source: str, targets: str | Sequence[str]) -> pb.GlossaryTerm:
    forms: Any = [targets] if isinstance(targets, str) else targets
    is_list = isinstance(forms, Iterable) and not isinstance(forms, bytes)
    if not isinstance(source, str) or not is_list or not all(isinstance(form, str) for form in forms):
        raise TypeError(f"glossary must map a term to a translation or a list of them, got {source!r}: {targets!r:.80}")
    return pb.GlossaryTerm(source=source, targets=forms)


def similarity_items(name: str, items: Sequence[str | Sequence[float]]) -> list[pb.SimilarityItem]:
    """Texts and vectors to compare. name: of the argument. Raises TypeError with the place, from 0, of what is neither,
    and ValueError with that of a number that is too large."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        problem = f"{name} must be a list of texts or vectors, got {items!r:.80}"
        raise TypeError(f"{problem}; put it in a list")
    return [_similarity_item(f"{name}[{place}]", item) for place, item in enumerate(items)]


def _similarity_item(name: str, item: str | Sequence[float]) -> pb.SimilarityItem:
    if isinstance(item, str):
        return pb.SimilarityItem(text=item)
    if isinstance(item, bytes) or not isinstance(item, Iterable):
        problem = f"{name} must be a text or a vector, got {type(item).__name__}"
        raise TypeError(f"{problem}; a vector is a list of numbers, also a single one: [[0.5, 1.0], …]")
    values = list(item)
    try:
        return pb.SimilarityItem(vector=pb.Vector(values=values))
    except TypeError as error:
        raise TypeError(f"{name} must be a text or a list of numbers: {error}") from None
    except OverflowError:
        raise ValueError(f"{name} must have numbers of at most 3.4e38, got a larger one; scale the vector") from None


def pooling_number(value: Pooling | None) -> Any:
    """The number of a pooling; None: that of the model. Raises ValueError."""
    return pb.POOLING_UNSPECIFIED if value is None else enum_number("pooling", pb.Pooling.DESCRIPTOR, value)


def enum_number(name: str, choices: Any, value: object) -> Any:
    """The number of a choice by its short name: "never" of EARLY_STOPPING_NEVER. Raises ValueError."""
    numbers = {short: number for number, short in enum_names(choices).items() if short}
    if (short := str(value).lower()) not in numbers:  # True is "true" of early_stopping
        raise ValueError(f"{name} must be one of {', '.join(numbers)}, got {value!r}")
    return numbers[short]
