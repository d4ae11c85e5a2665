"""A small client of the service: `Client` (blocking) and `AsyncClient`. Needs only grpcio and the stubs.

Retries, deadlines and keepalive are set as the server expects them. Retrying is gRPC's own (service config): calls
that no server has begun to answer, after UNAVAILABLE, or after RESOURCE_EXHAUSTED with the pause the server names.
Every call is cancelled when its caller leaves it: grpc never collects an abandoned asyncio call, and the server would
go on.
"""

from __future__ import annotations

import asyncio
import difflib
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, cast

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from export.bundle import AttentionKind
from glossa.client.types import (
    Answer,
    Attended,
    Classification,
    Piece,
    Score,
    Stream,
    TokenCandidate,
    answer_of,
    attended_of,
    classification_of,
    mask_candidates_of,
    score_of,
)
from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as stubs
from service.options import AlignmentKind, EarlyStopping, LengthNormalization

TIMEOUT_S = 60.0
FILLINGS = 5  # of a mask
Pooling = Literal["mean", "cls", "pooler"]
CONCURRENCY = 32
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        }
    ],
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
}
OPTIONS = [
    ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    ("grpc.keepalive_time_ms", 20_000),  # above the 5 s that the server takes as too often
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", 4 << 20),
]
NO_RETRIES = ("grpc.enable_retries", 0)
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)  # or channels to one address share one


class ClientError(Exception):
    """A call failed. `code` is the gRPC status by name, `reason` the server's UPPER_SNAKE_CASE reason or ""."""

    def __init__(self, error: grpc.RpcError) -> None:
        call = cast(Any, error)
        self.code: str = call.code().name
        self.message: str = call.details() or ""
        self.reason = ""
        self.field_violations: dict[str, str] = {}  # field → what is wrong with it
        self.retry_after_s: float | None = None
        super().__init__(f"{self.code}: {self.message}")
        status = rpc_status.from_call(call)
        for detail in status.details if status else ():
            self._take(detail)

    def _take(self, detail: Any) -> None:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            self.reason = info.reason
        elif detail.Unpack(bad):
            self.field_violations |= {violation.field: violation.description for violation in bad.field_violations}
        elif detail.Unpack(retry):
            self.retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()


class Options(TypedDict, total=False):
    """Keyword arguments of every call that produces text; each may be left out. What the options of decoding mean, and
    what they are called elsewhere, stands beside them in glossa.proto and in docs/decoding.md."""

    model: str  # may be empty when the server has one that fits
    source_language: str  # of a translation by a model that has languages: a code
    target_language: str
    include_tokens: bool
    timeout_s: float  # of this call, instead of the client's

    max_tokens: int  # 0: the model's own limit
    min_tokens: int
    max_length_ratio: float
    stop: Sequence[str]
    ignore_eos: bool
    echo: bool

    beam_size: int
    num_hypotheses: int
    length_penalty: float
    length_normalization: LengthNormalization
    coverage_penalty: float
    patience: float
    early_stopping: EarlyStopping
    num_beam_groups: int
    diversity_penalty: float

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    seed: int
    num_sequences: int

    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    logit_bias: Mapping[int, float]
    bad_words: Sequence[str]

    prefix: str
    prefix_tokens: Sequence[int]
    prefix_bias: float
    return_alternatives: bool
    min_alternative_probability: float
    allowed_tokens: Sequence[int]
    use_shortlist: bool
    phrases: Sequence[str]
    ordered_phrases: bool
    regex: str
    json_schema: str
    lark: str

    token_logprobs: bool
    top_logprobs: int
    alignment: AlignmentKind
    alignment_layer: int
    alignment_heads: Sequence[int]


class CallOptions(TypedDict, total=False):
    """Keyword arguments of every other call; each may be left out."""

    model: str  # may be empty when the server has one that fits
    source_language: str
    target_language: str
    timeout_s: float  # of this call, instead of the client's


class ScoreOptions(TypedDict, total=False):
    """Keyword arguments of `score`; each may be left out."""

    model: str  # may be empty when the server has one
    source_language: str
    target_language: str
    timeout_s: float  # of this call, instead of the client's

    length_penalty: float
    length_normalization: LengthNormalization
    coverage_penalty: float
    top_logprobs: int
    alignment: AlignmentKind
    alignment_layer: int
    alignment_heads: Sequence[int]


class AttendOptions(TypedDict, total=False):
    """Keyword arguments of `attend`; each may be left out. Layers and heads count from 1."""

    model: str  # may be empty when the server has one
    source_language: str
    target_language: str
    timeout_s: float  # of this call, instead of the client's

    target: str  # the answer to look at
    target_tokens: Sequence[int]  # the same as token ids
    text_only: bool  # no answer at all
    max_tokens: int  # of an answer that the model makes
    kinds: Sequence[AttentionKind]  # all that the model has
    layers: Sequence[int]  # all
    heads: Sequence[int]  # all
    mean_layers: bool
    mean_heads: bool


_Message = TypeVar("_Message")

_LANGUAGES = ("source_language", "target_language")
_OWN = ("model", "include_tokens", "timeout_s", *_LANGUAGES)  # options of a call, not of decoding
_FIELDS = pb.DecodingOptions.DESCRIPTOR.fields_by_name


def _request(kind: Callable[..., _Message], text: str, options: Options) -> _Message:
    tokens = options.get("include_tokens", False)
    return kind(text=text, options=_decoding(options), include_tokens=tokens, **_chosen(options))


def _chosen(options: Options | ScoreOptions | CallOptions) -> dict[str, Any]:
    """The fields of a request that say which model it is for, and between which languages."""
    return {name: value for name, value in options.items() if name == "model" or (name in _LANGUAGES and value)}


def _score_request(
    text: str, target: str, target_tokens: Sequence[int], omit_eos: bool, options: ScoreOptions
) -> pb.ScoreRequest:
    return pb.ScoreRequest(
        text=text,
        target=target,
        target_tokens=target_tokens,
        omit_eos=omit_eos,
        options=_decoding(options),
        **_chosen(options),
    )


def _attend_request(text: str, options: AttendOptions) -> pb.AttendRequest:
    fields: dict[str, Any] = {name: value for name, value in options.items() if name not in ("timeout_s", "kinds")}
    choices = pb.AttendRequest.DESCRIPTOR.fields_by_name["kinds"].enum_type
    kinds = [_number_of("kinds", choices, kind) for kind in options.get("kinds", ())]
    return pb.AttendRequest(text=text, kinds=cast(Any, kinds), **fields)


def _decoding(options: Options | ScoreOptions) -> pb.DecodingOptions:
    """The message of all options of decoding. Raises TypeError for a name that is none, ValueError for a bad choice."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name in _FIELDS:
            choices = _FIELDS[name].enum_type
            given[name] = _number_of(name, choices, cast(str, value)) if choices else value
        elif name not in _OWN:
            raise TypeError(f"unknown option {name!r}; {closest(name, (*_FIELDS, *_OWN))}")
    return pb.DecodingOptions(**given)


def _embed_request(text: str, normalize: bool, pooling: Pooling, options: CallOptions) -> pb.EmbedRequest:
    known = [name.removeprefix("POOLING_").lower() for name in pb.Pooling.keys()[1:]]
    if pooling not in known:
        raise ValueError(f"pooling must be one of {', '.join(known)}, got {pooling!r}")
    name = f"POOLING_{pooling.upper()}"
    return pb.EmbedRequest(text=text, normalize=normalize, pooling=name, **_chosen(options))


def _classify_request(text: str, token_weights: bool, options: CallOptions) -> pb.ClassifyRequest:
    return pb.ClassifyRequest(model=options.get("model", ""), text=text, include_token_weights=token_weights)


def _number_of(name: str, choices: Any, value: str) -> int:
    """EARLY_STOPPING_NEVER of "never"."""
    prefix = choices.values_by_number[0].name.removesuffix("UNSPECIFIED")
    if prefix + value.upper() not in choices.values_by_name:
        known = ", ".join(item.removeprefix(prefix).lower() for item in list(choices.values_by_name)[1:])
        raise ValueError(f"{name} must be one of {known}, got {value!r}")
    number: int = choices.values_by_name[prefix + value.upper()].number
    return number


def closest(name: str, known: Collection[str]) -> str:
    """What was probably meant by a name that is none of the known ones."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"


class _Stubs:
    def __init__(self, channel: Any) -> None:
        untyped: Any = stubs  # the generator writes no types for these
        self.translation = untyped.TranslationServiceStub(channel)
        self.generation = untyped.GenerationServiceStub(channel)
        self.scoring = untyped.ScoringServiceStub(channel)
        self.encoding = untyped.EncodingServiceStub(channel)
        self.attention = untyped.AttentionServiceStub(channel)
        self.models = untyped.ModelServiceStub(channel)


class Client:
    """Blocking calls; may be shared by threads. Close it, or use it in a `with`. All calls raise ClientError."""

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._stubs, self._timeout_s = _Stubs(self._channel), timeout_s

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def translate(self, text: str, **options: Unpack[Options]) -> Answer:
        return self._whole(self._stubs.translation.Translate, _request(pb.TranslateRequest, text, options), options)

    def stream_translate(self, text: str, **options: Unpack[Options]) -> Generator[Piece, None, None]:
        request = _request(pb.StreamTranslateRequest, text, options)
        return self._pieces(self._stubs.translation.StreamTranslate, request, options)

    def generate(self, text: str, **options: Unpack[Options]) -> Answer:
        return self._whole(self._stubs.generation.Generate, _request(pb.GenerateRequest, text, options), options)

    def stream_generate(self, text: str, **options: Unpack[Options]) -> Generator[Piece, None, None]:
        request = _request(pb.StreamGenerateRequest, text, options)
        return self._pieces(self._stubs.generation.StreamGenerate, request, options)

    def translate_batch(
        self, texts: Iterable[str], *, concurrency: int = CONCURRENCY, **options: Unpack[Options]
    ) -> Generator[Answer, None, None]:
        """Answers in the order of the texts, at most `concurrency` calls at once. The first failure ends it."""
        with ThreadPoolExecutor(concurrency, thread_name_prefix="translate") as threads:
            running: deque[Future[Answer]] = deque()
            try:
                for text in texts:
                    running.append(threads.submit(self.translate, text, **options))
                    if len(running) >= concurrency:
                        yield running.popleft().result()
                while running:
                    yield running.popleft().result()
            finally:
                for future in running:
                    future.cancel()

    def score(
        self,
        text: str,
        target: str = "",
        *,
        target_tokens: Sequence[int] = (),
        omit_eos: bool = False,
        **options: Unpack[ScoreOptions],
    ) -> Score:
        """How likely a model finds `target`, or the tokens, as the translation or continuation of `text`.

        omit_eos: the target goes on behind its last word, so no end token is scored.
        """
        request = _score_request(text, target, target_tokens, omit_eos, options)
        return score_of(self._call(self._stubs.scoring.Score, request, options))

    def embed(
        self, text: str, *, normalize: bool = False, pooling: Pooling = "mean", **options: Unpack[CallOptions]
    ) -> list[float]:
        """One vector of the encoder's last states: their mean, the first one, or what the model's pooler makes of that.

        normalize: of length 1.
        """
        request = _embed_request(text, normalize, pooling, options)
        return list(self._call(self._stubs.encoding.Embed, request, options).values)

    def fill_mask(
        self, text: str, *, top_k: int = FILLINGS, **options: Unpack[CallOptions]
    ) -> list[tuple[TokenCandidate, ...]]:
        """For each mask of the text the likeliest tokens, best first. A mask is written as the model's `mask`."""
        request = pb.FillMaskRequest(model=options.get("model", ""), text=text, top_k=top_k)
        return mask_candidates_of(self._call(self._stubs.encoding.FillMask, request, options))

    def classify(self, text: str, *, token_weights: bool = False, **options: Unpack[CallOptions]) -> Classification:
        """All labels of a model with their probabilities. token_weights: also how much each token had to say."""
        request = _classify_request(text, token_weights, options)
        return classification_of(self._call(self._stubs.encoding.Classify, request, options))

    def attend(self, text: str, **options: Unpack[AttendOptions]) -> Attended:
        """What the tokens of a text, and of its answer, attend to: the model's own answer, unless one is given."""
        return attended_of(self._call(self._stubs.attention.Attend, _attend_request(text, options), options))

    def list_models(self) -> list[pb.Model]:
        return list(self._call(self._stubs.models.ListModels, pb.ListModelsRequest(), {}).models)

    def get_model(self, model: str = "") -> pb.Model:
        response: pb.GetModelResponse = self._call(self._stubs.models.GetModel, pb.GetModelRequest(model=model), {})
        return response.model

    def _call(self, method: Any, request: Any, options: Options | ScoreOptions | AttendOptions | CallOptions) -> Any:
        try:
            return method(request, timeout=options.get("timeout_s", self._timeout_s))
        except grpc.RpcError as error:
            raise ClientError(error) from None

    def _whole(self, method: Any, request: Any, options: Options) -> Answer:
        response = self._call(method, request, options)
        return answer_of(response.text, response.tokens, response)

    def _pieces(self, method: Any, request: Any, options: Options) -> Generator[Piece, None, None]:
        call, stream = method(request, timeout=options.get("timeout_s", self._timeout_s)), Stream()
        try:
            for message in call:
                yield stream.piece(message)
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            call.cancel()


class AsyncClient:
    """The same calls for asyncio. Leave a stream early with `contextlib.aclosing`, so that the server stops at once."""

    def __init__(
        self, address: str, *, timeout_s: float = TIMEOUT_S, connections: int = 1, retries: bool = True
    ) -> None:
        """connections: calls take turns on so many; one of them carries `max_concurrent_streams` of the server at once,
        and further calls wait in this process. retries: False tells every refusal, for those who measure."""
        options = [*OPTIONS, *([OWN_CONNECTION] if connections > 1 else []), *([] if retries else [NO_RETRIES])]
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(connections)]
        self._turns, self._timeout_s = itertools.cycle([_Stubs(channel) for channel in self._channels]), timeout_s

    @property
    def _stubs(self) -> _Stubs:
        return next(self._turns)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def translate(self, text: str, **options: Unpack[Options]) -> Answer:
        request = _request(pb.TranslateRequest, text, options)
        return await self._whole(self._stubs.translation.Translate, request, options)

    def stream_translate(self, text: str, **options: Unpack[Options]) -> AsyncGenerator[Piece, None]:
        request = _request(pb.StreamTranslateRequest, text, options)
        return self._pieces(self._stubs.translation.StreamTranslate, request, options)

    async def generate(self, text: str, **options: Unpack[Options]) -> Answer:
        request = _request(pb.GenerateRequest, text, options)
        return await self._whole(self._stubs.generation.Generate, request, options)

    def stream_generate(self, text: str, **options: Unpack[Options]) -> AsyncGenerator[Piece, None]:
        request = _request(pb.StreamGenerateRequest, text, options)
        return self._pieces(self._stubs.generation.StreamGenerate, request, options)

    async def translate_batch(
        self, texts: Iterable[str], *, concurrency: int = CONCURRENCY, **options: Unpack[Options]
    ) -> AsyncGenerator[Answer, None]:
        """Answers in the order of the texts, at most `concurrency` calls at once. The first failure ends it."""
        running: deque[asyncio.Task[Answer]] = deque()
        try:
            for text in texts:
                running.append(asyncio.create_task(self.translate(text, **options)))
                if len(running) >= concurrency:
                    yield await running.popleft()
            while running:
                yield await running.popleft()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def score(
        self,
        text: str,
        target: str = "",
        *,
        target_tokens: Sequence[int] = (),
        omit_eos: bool = False,
        **options: Unpack[ScoreOptions],
    ) -> Score:
        request = _score_request(text, target, target_tokens, omit_eos, options)
        return score_of(await self._call(self._stubs.scoring.Score, request, options))

    async def embed(
        self, text: str, *, normalize: bool = False, pooling: Pooling = "mean", **options: Unpack[CallOptions]
    ) -> list[float]:
        request = _embed_request(text, normalize, pooling, options)
        return list((await self._call(self._stubs.encoding.Embed, request, options)).values)

    async def fill_mask(
        self, text: str, *, top_k: int = FILLINGS, **options: Unpack[CallOptions]
    ) -> list[tuple[TokenCandidate, ...]]:
        request = pb.FillMaskRequest(model=options.get("model", ""), text=text, top_k=top_k)
        return mask_candidates_of(await self._call(self._stubs.encoding.FillMask, request, options))

    async def classify(
        self, text: str, *, token_weights: bool = False, **options: Unpack[CallOptions]
    ) -> Classification:
        request = _classify_request(text, token_weights, options)
        return classification_of(await self._call(self._stubs.encoding.Classify, request, options))

    async def attend(self, text: str, **options: Unpack[AttendOptions]) -> Attended:
        return attended_of(await self._call(self._stubs.attention.Attend, _attend_request(text, options), options))

    async def list_models(self) -> list[pb.Model]:
        response: pb.ListModelsResponse = await self._call(self._stubs.models.ListModels, pb.ListModelsRequest(), {})
        return list(response.models)

    async def get_model(self, model: str = "") -> pb.Model:
        request = pb.GetModelRequest(model=model)
        response: pb.GetModelResponse = await self._call(self._stubs.models.GetModel, request, {})
        return response.model

    async def _call(
        self, method: Any, request: Any, options: Options | ScoreOptions | AttendOptions | CallOptions
    ) -> Any:
        call = method(request, timeout=options.get("timeout_s", self._timeout_s))
        try:
            return await call
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            call.cancel()

    async def _whole(self, method: Any, request: Any, options: Options) -> Answer:
        response = await self._call(method, request, options)
        return answer_of(response.text, response.tokens, response)

    async def _pieces(self, method: Any, request: Any, options: Options) -> AsyncGenerator[Piece, None]:
        call, stream = method(request, timeout=options.get("timeout_s", self._timeout_s)), Stream()
        try:
            async for message in call:
                yield stream.piece(message)
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            call.cancel()
