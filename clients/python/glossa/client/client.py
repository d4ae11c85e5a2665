"""The clients: `Client` for blocking calls, `AsyncClient` for asyncio.

`_Calls` defines each call once, as a method of both clients (see `methods`). Every asyncio call is cancelled when its
caller leaves it: grpc never collects an abandoned one, and the server would continue it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any, Self, Unpack, cast

import grpc

from glossa.client.batches import Asynchronous, Blocking
from glossa.client.channel import (
    BLOCKING_STREAMS,
    NO_RETRIES,
    TIMEOUT_S,
    Tls,
    authenticate,
    channel_options,
    check_plaintext,
    with_bearer,
)
from glossa.client.chat import Message, chat_fields
from glossa.client.document_calls import DocumentCalls
from glossa.client.documents import Document
from glossa.client.embeddings import Embedding, embed_request
from glossa.client.errors import ClientError, ServerStatus
from glossa.client.fields import check_seconds, new_message
from glossa.client.language_calls import LanguageCalls
from glossa.client.methods import Call, Reply, streaming, unary
from glossa.client.requests import (
    AttendOptions,
    CallOptions,
    Measure,
    Options,
    Pooling,
    ScoreOptions,
    TranslateOptions,
    attend_fields,
    call_fields,
    enum_number,
    pooling_number,
    similarity_items,
    text_fields,
    translation_fields,
)
from glossa.client.token_calls import TokenCalls
from glossa.client.types import (
    Answer,
    Attended,
    Classification,
    Score,
    TokenCandidate,
    Translation,
    attended_of,
    mask_candidates_of,
    read,
)
from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as stubs

CANDIDATES = 5  # for a mask


class _Calls(TokenCalls, DocumentCalls, LanguageCalls):
    """Every call of the service. All raise ClientError."""

    _library: Any = grpc
    _options: tuple[tuple[str, str | int], ...] = (BLOCKING_STREAMS,)

    def __init__(
        self,
        address: str,
        *,
        tls: Tls = False,
        token: str = "",
        metadata: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        connections: int = 1,
        retries: bool = True,
    ) -> None:
        """address: HOST:PORT, or another form that gRPC knows; dns:///NAME:PORT, a name with an address for each of
        several replicas, spreads the calls over those that are ready. token: sent as `authorization: Bearer …`, only
        over TLS or to this machine. metadata: sent with every call. timeout_s: default deadline of a call.
        connections: used in turn; one carries as many concurrent calls as the server's setting
        `max_concurrent_streams`, further ones wait in this process. retries: False reports every refusal.

        Raises ValueError for a token without TLS to another machine, OSError for a PEM file that cannot be read.
        """
        check_seconds("timeout_s", timeout_s)
        credentials, self._metadata = authenticate(address, tls=tls, token=token, metadata=metadata)
        options = [*channel_options(address), *self._options, *([] if retries else [NO_RETRIES])]
        self._channels = [
            self._library.insecure_channel(address, options=options)
            if credentials is None
            else self._library.secure_channel(address, credentials, options=options)
            for _ in range(connections)
        ]
        self._turns = itertools.cycle([_methods(channel) for channel in self._channels])
        self._timeout_s = timeout_s
        self._plain_address = "" if credentials else address

    def with_token(self, token: str) -> Self:
        """This client for the holder of another token, over the same connections, which this one closes.

        Raises ValueError for a token without TLS to another machine.
        """
        if self._plain_address:
            check_plaintext(self._plain_address, token)
        other = copy.copy(self)
        other._metadata = with_bearer(self._metadata, token)
        return other

    @unary
    def translate(self, text: str, **options: Unpack[TranslateOptions]) -> Call[Translation]:
        """Translate a text. Raises ValueError for an unknown kind of mark."""
        tokens = options.get("include_tokens") or False
        request = new_message(pb.TranslateRequest, include_tokens=tokens, **translation_fields(text, options))
        return Call(request, options, functools.partial(read, Translation))

    @streaming
    def stream_translate(self, text: str, **options: Unpack[TranslateOptions]) -> Call[Any]:
        """Translate a text, in pieces as they become final; the last one has the whole answer."""
        return _text_call(pb.StreamTranslateRequest, translation_fields(text, options), options)

    @unary
    def generate(
        self,
        text: str = "",
        *,
        prompt_tokens: Sequence[int] = (),
        messages: Sequence[Message] = (),
        template_arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **options: Unpack[Options],
    ) -> Call[Answer]:
        """Continue a prompt: a text, token ids exactly as given, or the messages of a chat.

        messages: dictionaries with role, content and what else the model's chat template reads; the answer is the next
        message, or with continue_final_message the rest of the last one. template_arguments: variables of the template,
        such as tools. add_generation_prompt: False: without the beginning of an answer.
        """
        chat = chat_fields(messages, template_arguments, add_generation_prompt, continue_final_message)
        fields = {**text_fields(text, options), "prompt_tokens": prompt_tokens, **chat}
        return _text_call(pb.GenerateRequest, fields, options)

    @streaming
    def stream_generate(
        self,
        text: str = "",
        *,
        prompt_tokens: Sequence[int] = (),
        messages: Sequence[Message] = (),
        template_arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **options: Unpack[Options],
    ) -> Call[Any]:
        """Continue a prompt, in pieces as they become final; the last one has the whole answer. See `generate`."""
        chat = chat_fields(messages, template_arguments, add_generation_prompt, continue_final_message)
        fields = {**text_fields(text, options), "prompt_tokens": prompt_tokens, **chat}
        return _text_call(pb.StreamGenerateRequest, fields, options)

    @unary
    def score(
        self,
        text: str,
        target: str = "",
        *,
        target_tokens: Sequence[int] = (),
        text_tokens: Sequence[int] = (),
        omit_eos: bool = False,
        **options: Unpack[ScoreOptions],
    ) -> Call[Score]:
        """Score `target`, or its tokens, as the translation or continuation of `text`.

        text_tokens: a prompt as token ids exactly as given, instead of text; generation models only.
        omit_eos: the target continues after its last word, so no end token is scored.
        """
        fields: dict[str, Any] = {"target": target, "target_tokens": target_tokens, "omit_eos": omit_eos}
        fields["text_tokens"] = text_tokens
        return Call(
            new_message(pb.ScoreRequest, **text_fields(text, options), **fields),
            options,
            functools.partial(read, Score),
        )

    @unary
    def embed(
        self,
        text: str,
        *,
        normalize: bool = False,
        pooling: Pooling | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        **options: Unpack[CallOptions],
    ) -> Call[Embedding]:
        """Embed a text: the mean, also weighted, the largest values, the first or the last one of its last hidden
        states, their sum over the root of their number, or the first one through the model's pooler; without `pooling`,
        as the model was made for.

        normalize: scale to length 1. prompt_name: of `Model.prompts`; "": no prompt; None: the model's default.
        truncate: leave out the end of a text that is too long. Raises ValueError for an unknown pooling.
        """
        fields: dict[str, Any] = {"text": text, "normalize": normalize, "truncate": truncate}
        return Call(embed_request(options, pooling=pooling, prompt_name=prompt_name, **fields), options, Embedding)

    @unary
    def similarity(
        self,
        items: Sequence[str | Sequence[float]],
        others: Sequence[str | Sequence[float]] = (),
        *,
        measure: Measure = "cosine",
        pooling: Pooling | None = None,
        prompt_name: str | None = None,
        others_prompt_name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Call[list[list[float]]]:
        """Compare texts, by their embeddings, or vectors: each of `items` with each of `others`, or with one another.

        measure: cosine, dot product or Euclidean distance. prompt_name, others_prompt_name: of the texts of `items` and
        of `others`, as of `embed`. Raises ValueError for an unknown measure or pooling and
        for numbers that are too large, TypeError for what is no list of texts and vectors.
        """
        request = pb.SimilarityRequest(
            items=similarity_items("items", items),
            others=similarity_items("others", others),
            measure=enum_number("measure", pb.SimilarityMeasure.DESCRIPTOR, measure),
            pooling=pooling_number(pooling),
            prompt_name=prompt_name,
            others_prompt_name=others_prompt_name,
            **call_fields(options),
        )
        return Call(request, options, lambda response: [list(row.values) for row in response.rows])

    @unary
    def fill_mask(
        self, text: str, *, top_k: int = CANDIDATES, **options: Unpack[CallOptions]
    ) -> Call[list[tuple[TokenCandidate, ...]]]:
        """Predict each masked token: the most likely ones, best first. `Model.mask_token` is the text of a mask."""
        request = new_message(pb.FillMaskRequest, text=text, top_k=top_k, **call_fields(options))
        return Call(request, options, mask_candidates_of)

    @unary
    def classify(
        self, text: str, *, token_weights: bool = False, **options: Unpack[CallOptions]
    ) -> Call[Classification]:
        """Probabilities of all labels; with token_weights also how much each token contributed."""
        request = new_message(
            pb.ClassifyRequest, text=text, include_token_weights=token_weights, **call_fields(options)
        )
        return Call(request, options, functools.partial(read, Classification))

    @unary
    def attend(self, text: str, **options: Unpack[AttendOptions]) -> Call[Attended]:
        """Attention weights of a text and its answer; the model generates the answer unless one is given.

        Raises ValueError for an unknown kind of attention.
        """
        return Call(new_message(pb.AttendRequest, text=text, **attend_fields(options)), options, attended_of)

    @unary
    def list_models(self) -> Call[list[pb.Model]]:
        """All models of the server."""
        return Call(pb.ListModelsRequest(), {}, lambda response: list(response.models))

    @unary
    def get_model(self, model: str = "") -> Call[pb.Model]:
        """One model; without a name the only one."""
        return Call(new_message(pb.GetModelRequest, model=model), {}, lambda response: response.model)

    def _start(self, call: Call[Any]) -> Any:
        method = next(self._turns)[call.many or call.request.DESCRIPTOR.name]
        timeout_s = call.options.get("timeout_s") if call.many else self._timeout(call.options)
        return method(call.request, timeout=timeout_s, metadata=self._metadata)

    def _timeout(self, options: CallOptions) -> float:
        timeout_s = options.get("timeout_s")
        return self._timeout_s if timeout_s is None else timeout_s

    def _start_batch(self, name: str, messages: Any, options: CallOptions) -> Any:
        method = next(self._turns)[f"{name}Request"]
        return method(messages, timeout=options.get("timeout_s"), metadata=self._metadata)


def _methods(channel: Any) -> dict[str, Any]:
    """The generated methods of all services on a channel, by the name of their request."""
    found: dict[str, Any] = {}
    for name, service in pb.DESCRIPTOR.services_by_name.items():
        stub = getattr(stubs, f"{name}Stub")(channel)
        found |= {method.input_type.name: getattr(stub, method.name) for method in service.methods}
    return found


def _text_call(kind: Any, fields: dict[str, Any], options: Options) -> Call[Answer]:
    tokens = options.get("include_tokens") or False
    return Call(new_message(kind, include_tokens=tokens, **fields), options, functools.partial(read, Answer))


class Client(_Calls, Blocking):
    """Blocking calls; may be shared by threads. Close it, or use it in a `with`. All calls raise ClientError."""

    def _start_unary(self, name: str, request: Any, options: CallOptions) -> Any:
        return next(self._turns)[name].future(request, timeout=self._timeout(options), metadata=self._metadata)

    def close(self) -> None:
        """Close the connections; running calls are cancelled."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, call: Call[Reply]) -> Reply:
        try:
            return call.reply(self._start(call))
        except grpc.RpcError as error:
            raise ClientError(error) from None

    def _pieces(self, call: Call[Any]) -> Generator[Any, None, None]:
        running, stream = self._start(call), call.stream()
        try:
            for message in running:
                yield stream.piece(message)
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            running.cancel()

    def _document(self, call: Call[Document]) -> Document:
        *_, last = self._pieces(call)
        return cast(Document, last.document)


class AsyncClient(_Calls, Asynchronous):
    """The calls of `Client` for asyncio. Leave a stream early with `contextlib.aclosing`, so that the server stops it.
    All calls raise ClientError."""

    _library = grpc.aio
    _options = ()

    def _start_unary(self, name: str, request: Any, options: CallOptions) -> Any:
        return next(self._turns)[name](request, timeout=self._timeout(options), metadata=self._metadata)

    async def close(self) -> None:
        """Close the connections; running calls are cancelled."""
        for channel in self._channels:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _run(self, call: Call[Reply]) -> Reply:
        running = self._start(call)
        try:
            return call.reply(await running)
        except grpc.RpcError as error:
            raise ClientError(error) from None
        finally:
            running.cancel()

    async def _pieces(self, call: Call[Any]) -> AsyncGenerator[Any, None]:
        running, stream = self._start(call), call.stream()
        status = ServerStatus(running)
        try:
            async for message in running:
                yield stream.piece(message)
        except grpc.RpcError as error:
            raise ClientError(await status.of(error)) from None
        finally:
            running.cancel()

    async def _document(self, call: Call[Document]) -> Document:
        async with contextlib.aclosing(self._pieces(call)) as pieces:
            return cast(Document, [piece.document async for piece in pieces][-1])
