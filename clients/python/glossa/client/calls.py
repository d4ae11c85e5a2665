"""Keyword arguments to requests: one `Call` for each method of the service, as both clients make it.

What the decoding options mean is documented in `options` and in docs/decoding.md; the server checks their values.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar, cast

from glossa.client.options import DecodingOptions, ScoringOptions
from glossa.client.types import (
    Answer,
    Attended,
    Classification,
    Score,
    TokenCandidate,
    attended_of,
    mask_candidates_of,
    read,
)
from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as stubs

CANDIDATES = 5  # for a mask
CONCURRENCY = 32
AttentionKind = Literal["encoder", "decoder", "cross"]
Pooling = Literal["mean", "cls", "pooler"]
Reply = TypeVar("Reply")
_LANGUAGES = ("source_language", "target_language")
_OWN = ("model", "include_tokens", "timeout_s", *_LANGUAGES)  # options of a call, not of decoding
_FIELDS = pb.DecodingOptions.DESCRIPTOR.fields_by_name


class CallOptions(TypedDict, total=False):
    """Keyword arguments of every call. Each may be omitted."""

    model: str
    """Name on the server; may be omitted when the server has one model that fits."""

    source_language: str
    """Code of the text's language, for models that have languages."""

    target_language: str
    """Code of the answer's language, for models that have languages."""

    timeout_s: float
    """Deadline of this call, instead of the client's."""


class Options(CallOptions, DecodingOptions, total=False):
    """Keyword arguments of calls that produce text. Each may be omitted."""

    include_tokens: bool
    """Return the token ids of the answer. Default: false."""


class ScoreOptions(CallOptions, ScoringOptions, total=False):
    """Keyword arguments of `score`. Each may be omitted."""


class AttendOptions(CallOptions, total=False):
    """Keyword arguments of `attend`. Layers and heads count from 1. Each may be omitted."""

    target: str
    """The answer to analyse; without one the model generates it."""

    target_tokens: Sequence[int]
    """The same as token ids."""

    text_only: bool
    """Analyse the text alone, without an answer."""

    max_tokens: int
    """Most tokens of an answer that the model generates."""

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


class Stubs:
    """The generated stubs of all services on one channel."""

    def __init__(self, channel: Any) -> None:
        untyped: Any = stubs  # the generator writes no types for these
        self.translation = untyped.TranslationServiceStub(channel)
        self.generation = untyped.GenerationServiceStub(channel)
        self.scoring = untyped.ScoringServiceStub(channel)
        self.encoding = untyped.EncodingServiceStub(channel)
        self.attention = untyped.AttentionServiceStub(channel)
        self.models = untyped.ModelServiceStub(channel)


class Call(NamedTuple, Generic[Reply]):
    """One call of the service."""

    method: Callable[[Stubs], Any]
    request: Any
    reply: Callable[[Any], Reply]
    timeout_s: float | None


def whole(service: Literal["translation", "generation"], text: str, options: Options) -> Call[Answer]:
    """A call that returns its answer at the end."""
    if service == "translation":
        return _text_call(lambda on: on.translation.Translate, pb.TranslateRequest, text, _answer, options)
    return _text_call(lambda on: on.generation.Generate, pb.GenerateRequest, text, _answer, options)


def streamed(service: Literal["translation", "generation"], text: str, options: Options) -> Call[Any]:
    """A call that streams its answer."""
    if service == "translation":
        return _text_call(lambda on: on.translation.StreamTranslate, pb.StreamTranslateRequest, text, _same, options)
    return _text_call(lambda on: on.generation.StreamGenerate, pb.StreamGenerateRequest, text, _same, options)


def score(text: str, target: str, target_tokens: Sequence[int], omit_eos: bool, options: ScoreOptions) -> Call[Score]:
    """A call that scores a given target."""
    request = pb.ScoreRequest(
        text=text,
        target=target,
        target_tokens=target_tokens,
        omit_eos=omit_eos,
        options=_decoding(options),
        **_model_fields(options),
    )
    return _call(lambda on: on.scoring.Score, request, functools.partial(read, Score), options)


def embed(text: str, normalize: bool, pooling: Pooling, options: CallOptions) -> Call[list[float]]:
    """A call that embeds a text. Raises ValueError for an unknown pooling."""
    number = cast(Any, _enum_value("pooling", pb.Pooling.DESCRIPTOR, pooling))
    request = pb.EmbedRequest(text=text, normalize=normalize, pooling=number, **_model_fields(options))
    return _call(lambda on: on.encoding.Embed, request, lambda response: list(response.values), options)


def fill_mask(text: str, top_k: int, options: CallOptions) -> Call[list[tuple[TokenCandidate, ...]]]:
    """A call that predicts the masked tokens of a text."""
    request = pb.FillMaskRequest(text=text, top_k=top_k, **_model_fields(options))
    return _call(lambda on: on.encoding.FillMask, request, mask_candidates_of, options)


def classify(text: str, token_weights: bool, options: CallOptions) -> Call[Classification]:
    """A call that classifies a text."""
    request = pb.ClassifyRequest(text=text, include_token_weights=token_weights, **_model_fields(options))
    return _call(lambda on: on.encoding.Classify, request, functools.partial(read, Classification), options)


def attend(text: str, options: AttendOptions) -> Call[Attended]:
    """A call that returns attention weights. Raises ValueError for an unknown kind."""
    fields: dict[str, Any] = {name: value for name, value in options.items() if name not in ("timeout_s", "kinds")}
    choices = pb.AttendRequest.DESCRIPTOR.fields_by_name["kinds"].enum_type
    kinds = cast(Any, [_enum_value("kinds", choices, kind) for kind in options.get("kinds", ())])
    return _call(
        lambda on: on.attention.Attend, pb.AttendRequest(text=text, kinds=kinds, **fields), attended_of, options
    )


def list_models() -> Call[list[pb.Model]]:
    """A call that lists the models of the server."""
    return _call(lambda on: on.models.ListModels, pb.ListModelsRequest(), lambda response: list(response.models), {})


def get_model(model: str) -> Call[pb.Model]:
    """A call that describes one model."""
    return _call(lambda on: on.models.GetModel, pb.GetModelRequest(model=model), lambda response: response.model, {})


def closest(name: str, known: Collection[str]) -> str:
    """A hint for an unknown name: the most similar known one, or all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"


def _same(response: Any) -> Any:
    return response


def _answer(response: Any) -> Answer:
    return read(Answer, response)


def _call(
    method: Callable[[Stubs], Any], request: Any, reply: Callable[[Any], Reply], options: CallOptions
) -> Call[Reply]:
    return Call(method, request, reply, options.get("timeout_s"))


def _text_call(
    method: Callable[[Stubs], Any], kind: Any, text: str, reply: Callable[[Any], Reply], options: Options
) -> Call[Reply]:
    tokens = options.get("include_tokens", False)
    request = kind(text=text, options=_decoding(options), include_tokens=tokens, **_model_fields(options))
    return _call(method, request, reply, options)


def _model_fields(options: CallOptions) -> dict[str, Any]:
    """The fields of a request that name its model and its languages; of the latter those that are not empty."""
    return {name: value for name, value in options.items() if name == "model" or (name in _LANGUAGES and value)}


def _decoding(options: Options | ScoreOptions) -> pb.DecodingOptions:
    """The message of the decoding options. Raises TypeError for an unknown name, ValueError for an unknown choice."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name in _FIELDS:
            choices = _FIELDS[name].enum_type
            given[name] = _enum_value(name, choices, cast(str, value)) if choices else value
        elif name not in _OWN:
            raise TypeError(f"unknown option {name!r}; {closest(name, (*_FIELDS, *_OWN))}")
    return pb.DecodingOptions(**given)


def _enum_value(name: str, choices: Any, value: str) -> int:
    """The number of a choice by its short name: "never" of EARLY_STOPPING_NEVER."""
    prefix = choices.values_by_number[0].name.removesuffix("UNSPECIFIED")
    if prefix + value.upper() not in choices.values_by_name:
        known = ", ".join(item.removeprefix(prefix).lower() for item in list(choices.values_by_name)[1:])
        raise ValueError(f"{name} must be one of {known}, got {value!r}")
    number: int = choices.values_by_name[prefix + value.upper()].number
    return number
